//! Tests of routing rules.

use super::*;
use crate::outbox::Outbox;
use crate::outbox::fixture::{TABLE, describe, insert, spec};
use crate::outbox::type_oid::TEXT;
use crate::pgoutput::Column::{self, Null, Text};
use crate::route::{
    DestinationSpec, FieldSpec, PatternSpec, RejectionCode, RouteSpec, Router, RuleAction,
    RuleSpec, TopicsSpec,
};

const COLUMNS: [&str; 6] =
    ["id", "aggregate_type", "aggregate_id", "event_type", "payload", "tenant"];

fn rule(column: &str, pattern: PatternSpec, action: RuleAction) -> RuleSpec {
    RuleSpec { column: column.to_owned(), pattern, action }
}

fn to(topic: &str) -> RuleAction {
    RuleAction::Send(DestinationSpec { topic: Some(topic.to_owned()), ..Default::default() })
}

fn glob(text: &str) -> PatternSpec {
    PatternSpec::Glob(text.to_owned())
}

struct Stage {
    router: Router,
    outbox: Outbox,
}

impl Stage {
    fn new(spec_of: &RouteSpec) -> Self {
        let mut wanted = spec();
        let router = Router::compile(spec_of, &mut wanted).unwrap();
        let mut outbox = Outbox::new(wanted);
        describe(&mut outbox, TABLE, "outbox", &COLUMNS.map(|name| (name, TEXT)));
        Self { router, outbox }
    }

    fn route(
        &mut self,
        event_type: Column<'_>,
        tenant: Column<'_>,
    ) -> Result<Option<(String, String, usize)>, Rejection> {
        let row = [Text(b"1"), Text(b"order"), Text(b"a-1"), event_type, Text(b"{}"), tenant];
        let mut data = Vec::new();
        let row = insert(&mut self.outbox, &mut data, TABLE, &row).unwrap().unwrap();
        let record = self.router.route(&row)?;
        Ok(record.map(|record| {
            let key = String::from_utf8_lossy(record.key.unwrap_or(b"none")).into_owned();
            (record.topic.to_owned(), key, record.headers.len())
        }))
    }

    fn topic(&mut self, event_type: &str, tenant: Column<'_>) -> Option<String> {
        let routed = self.route(Text(event_type.as_bytes()), tenant).unwrap();
        routed.map(|(topic, ..)| topic)
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let mut stage = Stage::new(&RouteSpec {
        rules: vec![
            rule("event_type", glob("Draft*"), RuleAction::Drop),
            rule("tenant", PatternSpec::Regex("test-(?<name>[a-z]+)".to_owned()), to("t.${name}")),
            rule("event_type", glob("Order*"), to("orders.${routedByValue}")),
            rule("event_type", glob("OrderPaid"), to("never")),
        ],
        ..RouteSpec::default()
    });
    // The second answer is cached.
    for _ in 0..2 {
        assert_eq!(stage.topic("DraftOrder", Text(b"test-a")), None);
        assert_eq!(stage.topic("OrderPaid", Text(b"test-a")).as_deref(), Some("t.a"));
        assert_eq!(stage.topic("OrderPaid", Text(b"test-")).as_deref(), Some("orders.OrderPaid"));
        assert_eq!(stage.topic("OrderPaid", Null).as_deref(), Some("orders.OrderPaid"));
        assert_eq!(stage.topic("User", Null).as_deref(), Some("User"));
        // Their plain concatenation would be equal.
        assert_eq!(stage.topic("Userte", Text(b"st-a")).as_deref(), Some("Userte"));
        assert_eq!(stage.topic("User", Text(b"test-a")).as_deref(), Some("t.a"));
    }
}

#[test]
fn null_matches_no_rule_and_is_no_empty_text() {
    let all = |column| rule(column, glob("*"), to("all"));
    let mut stage = Stage::new(&RouteSpec { rules: vec![all("tenant")], ..RouteSpec::default() });
    for _ in 0..2 {
        assert_eq!(stage.topic("a", Null).as_deref(), Some("a"));
        assert_eq!(stage.topic("a", Text(b"")).as_deref(), Some("all"));
        let rejection = stage.route(Null, Null).unwrap_err();
        assert_eq!(rejection.code, RejectionCode::NoRoute);
        // A rule's own topic needs no value to route by.
        assert!(stage.route(Null, Text(b"x")).unwrap().is_some());
    }
    let mut stage =
        Stage::new(&RouteSpec { rules: vec![all("event_type")], ..RouteSpec::default() });
    assert!(stage.route(Null, Null).is_err());
}

#[test]
fn a_rule_changes_what_it_names_and_nothing_else() {
    let destination = DestinationSpec {
        key: Some("tenant".to_owned()),
        headers: Some(vec![FieldSpec::of_column("tenant")]),
        ..DestinationSpec::default()
    };
    let mut stage = Stage::new(&RouteSpec {
        rules: vec![rule("event_type", glob("Order*"), RuleAction::Send(destination))],
        lsn_header: false,
        ..RouteSpec::default()
    });
    let routed = stage.route(Text(b"OrderPaid"), Text(b"acme")).unwrap();
    assert_eq!(routed, Some(("OrderPaid".to_owned(), "acme".to_owned(), 2)));
    let routed = stage.route(Text(b"User"), Text(b"acme")).unwrap();
    assert_eq!(routed, Some(("User".to_owned(), "a-1".to_owned(), 3)));
}

#[test]
fn a_dead_letter_is_made_as_the_rule_says() {
    let destination = DestinationSpec {
        topic: Some("orders".to_owned()),
        key: Some("tenant".to_owned()),
        headers: Some(vec![FieldSpec::of_column("tenant")]),
        ..DestinationSpec::default()
    };
    let mut stage = Stage::new(&RouteSpec {
        rules: vec![rule("event_type", glob("Order*"), RuleAction::Send(destination))],
        ..RouteSpec::default()
    });
    let rejection = Rejection { code: RejectionCode::Refused, reason: String::new() };
    let mut letter = |event_type| {
        let row =
            [Text(b"1"), Text(b"order"), Text(b"a-1"), event_type, Text(b"{}"), Text(b"acme")];
        let mut data = Vec::new();
        let row = insert(&mut stage.outbox, &mut data, TABLE, &row).unwrap().unwrap();
        let letter = stage.router.dead_letter(&row, &rejection, "dead");
        let is_named = |name| letter.headers.iter().any(|(known, _)| known == name);
        let key = String::from_utf8(letter.key.clone().unwrap()).unwrap();
        (key, ["postrider-topic", "id", "tenant"].map(is_named))
    };
    assert_eq!(letter(Text(b"OrderPaid")), ("acme".to_owned(), [true, true, true]));
    assert_eq!(letter(Text(b"User")), ("a-1".to_owned(), [true, true, false]));
    assert_eq!(letter(Null), ("a-1".to_owned(), [false, true, false]));
}

#[test]
fn g3_remembered_decisions_stay_right_and_bounded() {
    for rules in [Vec::new(), vec![rule("tenant", glob("t*"), to("t"))]] {
        let mut stage = Stage::new(&RouteSpec {
            regex: "v([0-9]*)-*".to_owned(),
            topic: "t.$1".to_owned(),
            rules,
            ..RouteSpec::default()
        });
        for round in 0..3 {
            for number in 0..REMEMBERED_MAX + 10 {
                let topic = stage.topic(&format!("v{number}"), Null);
                assert_eq!(topic, Some(format!("t.{number}")), "round {round}");
            }
            let long = format!("v7{}", "-".repeat(REMEMBERED_BYTES_MAX));
            assert_eq!(stage.topic(&long, Null).as_deref(), Some("t.7"));
        }
        let decisions = &stage.router.decisions;
        assert!(decisions.remembered.len() <= REMEMBERED_MAX);
        assert!(decisions.names.len() <= REMEMBERED_MAX + 1);
    }
}

#[test]
fn rejections_name_the_column_and_not_the_value() {
    let mut stage = Stage::new(&RouteSpec::default());
    for (value, code) in [
        (&b"secret/word"[..], RejectionCode::InvalidTopic),
        (b"", RejectionCode::NoRoute),
        (b"\xff", RejectionCode::NoRoute),
    ] {
        let rejection = stage.route(Text(value), Null).unwrap_err();
        assert_eq!(rejection.code, code);
        assert!(rejection.reason.contains("`event_type`"), "{}", rejection.reason);
        assert!(!rejection.reason.contains("secret"));
    }
}

#[test]
fn an_expression_without_an_end_rejects_its_row_alone() {
    let evil = PatternSpec::Regex(r"(?=x)(x+x+)+\1y".to_owned());
    let mut stage = Stage::new(&RouteSpec {
        rules: vec![rule("tenant", evil, to("evil"))],
        ..RouteSpec::default()
    });
    let rejection = stage.route(Text(b"a"), Text(&[b'x'; 80])).unwrap_err();
    assert_eq!(rejection.code, RejectionCode::NoRoute);
    assert_eq!(stage.topic("a", Text(b"z")).as_deref(), Some("a"));
}

#[test]
fn g4_reserved_topics_are_no_rows_to_choose_by_template_or_rule() {
    let progress = "postrider_progress.mine".to_owned();
    let mut stage = Stage::new(&RouteSpec {
        rules: vec![rule("tenant", glob("*"), to("postrider.${routedByValue}"))],
        topics: TopicsSpec { own: vec!["dead".to_owned(), progress], allowed: Vec::new() },
        ..RouteSpec::default()
    });
    let mut code = |event_type: &str, tenant| {
        let routed = stage.route(Text(event_type.as_bytes()), tenant);
        routed.map_or_else(|rejection| Some(rejection.code), |_| None)
    };
    // A refused name is refused again.
    for _ in 0..2 {
        for reserved in ["dead", "__consumer_offsets", "postrider.progress.x"] {
            assert_eq!(code(reserved, Null), Some(RejectionCode::InvalidTopic), "{reserved}");
        }
        assert_eq!(code("deadly", Null), None);
        assert_eq!(code("x", Text(b"progress.mine")), Some(RejectionCode::InvalidTopic));
        assert_eq!(code("dead", Text(b"x")), None);
    }
}
