//! Finds the outbox router and the decoder of logical messages in the chain of single message
//! transformations. An unknown transformation or predicate is refused.

use super::draft::{Draft, Taken, list};
use super::names::{BARE_DECODER, BARE_ROUTER, DECODE, simple_class};
use super::options_file::Flavour;
use postrider_core::outbox::TableName;
use postrider_core::route::Matcher;

#[derive(Default)]
pub(super) struct Chain {
    /// `None` if it was already refused.
    pub(super) router: Option<String>,
    pub(super) decoder: Option<String>,
    /// Transformations, with their classes, that unwrap change events before the router. A
    /// predicate must keep the outbox's rows from them.
    unwraps: Vec<(String, Taken)>,
}

const ROUTER: &str = "EventRouter";
const DECODER: &str = "DecodeLogicalDecodingMessageContent";
const UNWRAP: &str = "ExtractNewRecordState";
const ADD_ROUTER: &str = "Postrider routes as `io.debezium.transforms.outbox.EventRouter` does: set \
                          `transforms` to outbox and `transforms.outbox.type` to that";

pub(super) fn find(draft: &mut Draft) -> Chain {
    let mut chain = Chain::default();
    if draft.flavour == Flavour::Router {
        chain.router = Some(BARE_ROUTER.to_owned());
    } else if let Some(transforms) = draft.take("transforms") {
        let aliases: Vec<String> =
            transforms.text().split(',').map(str::trim).map(str::to_owned).collect();
        for alias in aliases.iter().filter(|alias| !alias.is_empty()) {
            member(draft, &mut chain, alias);
        }
        if chain.router.is_some() {
            draft.mapped(transforms, "[outbox], [route] and [format]");
        } else {
            draft.refuse(
                transforms,
                "has no outbox router in it: there is nothing to route by",
                ADD_ROUTER,
            );
        }
    } else {
        draft.lack("transforms", "is missing: there is nothing to route by", ADD_ROUTER);
    }
    if let Some(decode) = draft.take(DECODE) {
        if decode.text().eq_ignore_ascii_case("true") {
            chain.decoder.get_or_insert_with(|| BARE_DECODER.to_owned());
            draft.mapped(decode, "messages.prefixes");
        } else {
            draft.not_needed(decode, "logical messages are not read");
        }
    }
    chain
}

fn member(draft: &mut Draft, chain: &mut Chain, alias: &str) {
    let prefix = format!("transforms.{alias}.");
    let name = format!("{prefix}type");
    let Some(class) = draft.take(&name) else {
        draft.lack(&name, "is missing: what the transformation does is not said", ADD_ROUTER);
        return;
    };
    let short = simple_class(class.text()).to_owned();
    match short.as_str() {
        ROUTER if chain.router.is_none() => {
            chain.router = Some(prefix);
            draft.mapped(class, "[outbox], [route] and [format]");
            return;
        }
        DECODER if chain.router.is_none() && chain.decoder.is_none() => {
            chain.decoder = Some(prefix);
            draft.mapped(class, "messages.prefixes");
            return;
        }
        UNWRAP if chain.router.is_none() => {
            chain.unwraps.push((prefix, class));
            return;
        }
        UNWRAP => return unwrapped_behind(draft, &prefix, class),
        ROUTER | DECODER => {
            let note = "stands behind the outbox router, where it has nothing to do";
            draft.refuse(class, note, "remove it from `transforms`");
        }
        _ => {
            draft.refuse(class, "is a transformation that Postrider does not have", advice(&short));
        }
    }
    for part in draft.take_all(&prefix) {
        draft.refuse(
            part,
            "belongs to a transformation that is refused",
            "remove it with the rest",
        );
    }
}

fn advice(short: &str) -> &'static str {
    match short {
        "RegexRouter" | "ByLogicalTableRouter" | "ChangeTopicCase" | "ContentBasedRouter" => {
            "say the topic in the router's `route.topic.regex` and `route.topic.replacement`, or \
             remove it here and add [[route.rules]] afterwards"
        }
        "MongoEventRouter" => "Postrider reads PostgreSQL only",
        "Filter" => "remove it here, and leave the rows out by [[route.rules]] with `drop`",
        "InsertHeader" | "HeaderFrom" | "HeaderToValue" | "DropHeaders" | "CopyHeader" => {
            "columns become headers by the router's `table.fields.additional.placement`; remove it"
        }
        "PartitionRouting" => {
            "a column becomes the partition by the router's `table.fields.additional.placement`"
        }
        "ValueToKey" | "ExtractField" | "CreateKey" => {
            "the router's `table.field.event.key` names the column that is the key; remove it"
        }
        "ActivateTracingSpan" => {
            "the router hands the column of `tracing.span.context.field` on by itself; remove it"
        }
        _ => {
            "remove it if consumers can do without; Postrider sends the columns as the router alone \
             would"
        }
    }
}

/// The router's output is not a change event, so it passes unchanged unless something is added.
fn unwrapped_behind(draft: &mut Draft, prefix: &str, class: Taken) {
    const UNCHANGED: &str = "the output of the router is not a change event, and passes unchanged";
    let of =
        |draft: &Draft, name: &str| draft.peek(&format!("{prefix}{name}")).unwrap_or("").to_owned();
    let keeps_tombstones = of(draft, "drop.tombstones").eq_ignore_ascii_case("false")
        || ["tombstone", "rewrite-with-tombstone"]
            .contains(&of(draft, "delete.tombstone.handling.mode").as_str());
    if keeps_tombstones {
        draft.not_needed(class, UNCHANGED);
    } else {
        let note = format!(
            "{UNCHANGED}; but it may drop rows without a payload, which Postrider sends as tombstones"
        );
        draft.changed(class, &note, Some("if consumers must not see them, do not write such rows"));
    }
    for part in draft.take_all(prefix) {
        let option = part.name().rsplit(prefix).next().unwrap_or("").to_owned();
        let adds = ["add.headers", "add.fields", "add.source.fields", "operation.header"];
        let is_off = part.text().is_empty() || part.text().eq_ignore_ascii_case("false");
        if adds.contains(&option.as_str()) && !is_off {
            let help = "columns become headers and members by the router's \
                        `table.fields.additional.placement`; remove it";
            draft.refuse(part.known(), "adds to records, which Postrider does not", help);
        } else {
            draft.not_needed(part.known(), UNCHANGED);
        }
    }
}

/// The router needs the whole change event.
fn unwrapped_before(draft: &mut Draft, unwraps: Vec<(String, Taken)>, topics: &[String]) {
    for (prefix, class) in unwraps {
        let predicate = draft.peek(&format!("{prefix}predicate")).unwrap_or("").to_owned();
        let negated = draft
            .peek(&format!("{prefix}negate"))
            .is_some_and(|it| it.eq_ignore_ascii_case("true"));
        let verdicts = holds(draft, &predicate, negated, topics);
        let passes_by =
            !predicate.is_empty() && verdicts.is_some_and(|found| !found.contains(&true));
        if passes_by {
            draft.not_needed(class, "its predicate keeps the outbox's rows from it");
        } else {
            let help = "move it behind the outbox router in `transforms`, or give it a predicate that holds for no \
                        outbox table";
            draft.refuse(
                class,
                "stands before the outbox router, which needs the whole change event",
                help,
            );
        }
        for part in draft.take_all(&prefix) {
            if passes_by {
                draft.not_needed(
                    part.known(),
                    "goes with a transformation that the outbox's rows do not meet",
                );
            } else {
                let note = "belongs to a transformation that is refused";
                draft.refuse(part.known(), note, "remove it with the rest, or move it");
            }
        }
    }
}

pub(super) fn predicates(draft: &mut Draft, chain: &mut Chain, tables: &[TableName]) {
    let topic_prefix = draft.peek("topic.prefix").unwrap_or("debezium").to_owned();
    let topic = |table: &TableName| format!("{topic_prefix}.{}.{}", table.schema, table.name);
    let topics: Vec<String> = tables.iter().map(topic).collect();
    unwrapped_before(draft, std::mem::take(&mut chain.unwraps), &topics);
    if let Some(prefix) = &chain.router {
        let verdicts = predicate(draft, prefix, &topics);
        restrict(draft, tables, &verdicts);
    }
    if let Some(prefix) = &chain.decoder {
        predicate(draft, prefix, &[format!("{topic_prefix}.message")]);
    }
    let list = draft.take("predicates");
    for part in list.into_iter().chain(draft.take_all("predicates.")) {
        draft.not_needed(part.known(), "goes with the transformations that name it");
    }
}

fn restrict(draft: &mut Draft, tables: &[TableName], verdicts: &[bool]) {
    let of = |wanted: bool| -> Vec<String> {
        let tables = tables.iter().zip(verdicts).filter(|(_, routed)| **routed == wanted);
        tables.map(|(table, _)| table.to_string()).collect()
    };
    let (routed, others) = (of(true), of(false));
    if !others.is_empty() {
        let note = format!("rows of {} do not go through the router: not read", others.join(", "));
        let help =
            "where their changes are wanted, leave a connector for them, with a slot of its own";
        let value = list(routed.iter().map(String::as_str));
        draft.change_setting("source.tables", value, &note, help);
    }
}

/// Result per topic. Refuses a predicate that is unknown or holds nowhere.
fn predicate(draft: &mut Draft, prefix: &str, topics: &[String]) -> Vec<bool> {
    let negate = draft.take(&format!("{prefix}negate"));
    let negated = negate.as_ref().is_some_and(|negate| negate.text().eq_ignore_ascii_case("true"));
    let mut verdicts = vec![true; topics.len()];
    if let Some(predicate) = draft.take(&format!("{prefix}predicate")) {
        match holds(draft, predicate.text(), negated, topics) {
            Some(found) if found.contains(&true) || topics.is_empty() => {
                verdicts = found;
                draft.not_needed(predicate, "holds for every row of the outbox tables");
            }
            _ => {
                let note =
                    "applies the transformation to some records, and which is not understood";
                let help =
                    "name only outbox tables in `table.include.list` and remove the predicate";
                draft.refuse(predicate, note, help);
            }
        }
    }
    if let Some(negate) = negate {
        draft.not_needed(negate, "goes with the predicate");
    }
    verdicts
}

/// Result per topic; `None` if unknown.
fn holds(draft: &Draft, predicate: &str, negated: bool, topics: &[String]) -> Option<Vec<bool>> {
    let part = |name: &str| draft.peek(&format!("predicates.{predicate}.{name}"));
    match (part("type").map_or("", simple_class), negated) {
        ("TopicNameMatches", _) => {
            let matcher = Matcher::compile(part("pattern").unwrap_or("")).ok()?;
            let one = |topic: &String| Some(matcher.matches(topic).ok()? != negated);
            topics.iter().map(one).collect()
        }
        // No tombstones exist before the router.
        ("RecordIsTombstone", true) => Some(vec![true; topics.len()]),
        _ => None,
    }
}
