//! Checks of single values: names, templates, rules, globs, numbers and addresses. A wrong one is
//! reported before anything is contacted. No I/O.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use postrider_core::outbox::TableName;
use postrider_core::pipeline::CreateRule;
use postrider_core::route::{
    FieldSpec, PROGRESS_PREFIX, RouteSpecError, RuleAction, RuleSpec, TopicTemplate, TopicsSpec,
    check_beginning, check_topic,
};

use super::model::{RouteSection, unquoted};
use postrider_secrets::mask::mask_text;
use postrider_service::units::InvalidValue;

/// Postgres's NAMEDATALEN - 1, in bytes.
const NAME_BYTES_MAX: usize = 63;
const OWN_PREFIX: &str = "postrider-";

pub(super) fn identifier(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("must not be empty")),
        text if text.len() > NAME_BYTES_MAX => Err(InvalidValue::new(format!(
            "`{text}` is longer than Postgres's {NAME_BYTES_MAX} bytes"
        ))),
        text if text.contains('\0') => Err(InvalidValue::new("must not hold a NUL")),
        text => Ok(text.to_owned()),
    }
}

pub(super) fn slot(text: &str) -> Result<String, InvalidValue> {
    let name = identifier(text)?;
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.chars().all(legal) {
        return Ok(name);
    }
    // The name may be a password in a wrong place.
    let name = mask_text(&name);
    let suggestion: String =
        name.to_ascii_lowercase().chars().map(|c| if legal(c) { c } else { '_' }).collect();
    Err(InvalidValue::new(format!("`{name}` is not a slot name: a-z, 0-9 and _ only"))
        .help(format!("for example \"{suggestion}\"")))
}

/// `schema.table`; parts with capitals, dots or the like in double quotes, as in SQL.
pub(super) fn table(text: &str) -> Result<TableName, InvalidValue> {
    let parts = split_identifier(text)
        .ok_or_else(|| InvalidValue::new(format!("`{text}` is not a table name")).help(QUOTES))?;
    match parts.as_slice() {
        [schema, name] => Ok(TableName { schema: identifier(schema)?, name: identifier(name)? }),
        [name] => Err(InvalidValue::new(format!("`{text}` has no schema"))
            .help(format!("write \"public.{}\"", as_written(name)))),
        _ => Err(InvalidValue::new(format!("`{text}` is not a table name")).help(QUOTES)),
    }
}

const QUOTES: &str = "write schema.table; a part with capitals, dots or the like goes in double quotes, as in SQL: \
                      public.\"Outbox\"";

/// Part of a name as [`table`] reads it.
fn as_written(part: &str) -> String {
    match split_identifier(part) {
        Some(parts) if parts == [part] => part.to_owned(),
        _ => format!("\"{}\"", part.replace('"', "\"\"")),
    }
}

/// Splits at dots outside of double quotes. SQL must not fold unquoted parts.
fn split_identifier(text: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, tail) = if let Some(quoted) = rest.strip_prefix('"') {
            take_quoted(quoted)?
        } else {
            let (part, tail) = rest.split_at(rest.find('.').unwrap_or(rest.len()));
            let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
            let folded = part.chars().any(|c| c.is_ascii_uppercase());
            let legal = !part.is_empty() && part.chars().all(plain) && !folded;
            legal.then(|| (part.to_owned(), tail))?
        };
        parts.push(part);
        match tail.strip_prefix('.') {
            Some(next) => rest = next,
            None => return tail.is_empty().then_some(parts),
        }
    }
}

fn take_quoted(text: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(next) => {
                name.push('"');
                rest = next;
            }
            None => return Some((name, after)),
        }
    }
}

pub(super) fn field(text: &str) -> Result<FieldSpec, InvalidValue> {
    let field: FieldSpec = text.parse().map_err(|error: RouteSpecError| {
        InvalidValue::new(error.to_string()).help("write \"column\" or \"column:name\"")
    })?;
    identifier(unquoted(&field.column))?;
    let name = if field.name == field.column { unquoted(&field.name) } else { &field.name };
    let name = header_name(name)?;
    Ok(FieldSpec { name, ..field })
}

/// `orders.*: partitions=12 replication=3 cleanup.policy=compact`
pub(super) fn create_rule(text: &str) -> Result<CreateRule, InvalidValue> {
    let help = "write \"orders.*: partitions=12 replication=3 cleanup.policy=compact\"";
    let refuse = |reason: String| InvalidValue::new(reason).help(help);
    let (names, settings) = text.split_once(':').unwrap_or((text, ""));
    let names = glob(names.trim())?;
    let mut rule = CreateRule { names, partitions: None, replication: None, settings: Vec::new() };
    for setting in settings.split_whitespace() {
        let pair =
            setting.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let Some((name, value)) = pair else {
            return Err(refuse(format!("`{setting}` is not a setting and its value")));
        };
        let number = || match value.parse::<i32>() {
            Ok(number) if number > 0 => Ok(Some(number)),
            _ => Err(refuse(format!("`{setting}`: a number from 1 on is wanted"))),
        };
        match name {
            "partitions" => rule.partitions = number()?,
            "replication" => rule.replication = number()?,
            name => rule.settings.push((name.to_owned(), value.to_owned())),
        }
    }
    Ok(rule)
}

/// An unreplaced variable of a shell or of Kubernetes: `${NAME}` or `$(NAME)`.
pub(super) fn has_variable(text: &str) -> bool {
    [("${", '}'), ("$(", ')')].into_iter().any(|(opening, closing)| {
        text.match_indices(opening).any(|(at, _)| {
            let rest = text.get(at + opening.len()..).unwrap_or("");
            let name = rest.split_once(closing).map_or("", |(name, _)| name);
            let is_name = |char: char| char.is_ascii_alphanumeric() || "_.:/-".contains(char);
            name.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
                && name.chars().all(is_name)
        })
    })
}

fn header_name(text: &str) -> Result<String, InvalidValue> {
    let help = "write \"column:name\" with another name";
    match text {
        "" => Err(InvalidValue::new("a name must not be empty").help(help)),
        text if text.contains('\0') => {
            Err(InvalidValue::new("a name must not hold a NUL").help(help))
        }
        text if text.starts_with(OWN_PREFIX) => {
            let reason =
                format!("`{text}`: names that begin with `{OWN_PREFIX}` are the relay's own");
            Err(InvalidValue::new(reason).help(help))
        }
        text => Ok(text.to_owned()),
    }
}

/// The topic must hold only dead letters.
pub(super) fn dead_letters(
    text: &str,
    route: Option<&RouteSection>,
) -> Result<String, InvalidValue> {
    let is_shared = route.is_some_and(|route| {
        let by_rule = |rule: &RuleSpec| match &rule.action {
            RuleAction::Send(destination) => destination.topic.as_deref() == Some(text),
            RuleAction::Drop => false,
        };
        route.topic == text || route.rules.iter().any(by_rule)
    });
    if is_shared {
        return Err(InvalidValue::new(format!("rows are routed to `{text}` too"))
            .help("give dead letters a topic of their own: `dead-letters retry` reads it whole"));
    }
    let topic = topic(text)?;
    check_beginning(&topic).map_err(InvalidValue::new)?;
    Ok(topic)
}

/// The topic must hold only progress. The default name may be another slot's.
pub(super) fn progress_topic(text: &str) -> Result<String, InvalidValue> {
    let topic = topic(text)?;
    if topic.starts_with(PROGRESS_PREFIX) {
        return Ok(topic);
    }
    check_beginning(&topic).map_err(InvalidValue::new)?;
    Ok(topic)
}

pub(super) fn reachable(spec: &TopicsSpec, regex: &str, topic: &str) -> Result<(), InvalidValue> {
    let Ok(template) = TopicTemplate::compile(regex, topic) else { return Ok(()) };
    let judged = match template.fixed() {
        Some(name) => spec.check(name),
        None => check_beginning(template.beginning()),
    };
    judged.map_err(|reason| {
        InvalidValue::new(format!("no row could go to `{topic}`: {reason}"))
            .help("name another topic, or one that route.topics_allowed has a pattern for")
    })
}

pub(super) fn message_prefix(text: &str) -> Result<String, InvalidValue> {
    if text == "postrider" {
        return Err(InvalidValue::new("messages with the prefix `postrider` are the relay's own")
            .help("write rows under another prefix, such as \"outbox\""));
    }
    glob(text)
}

pub(super) fn glob(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("an empty pattern matches nothing").help("`*` matches all")),
        text => Ok(text.to_owned()),
    }
}

pub(super) fn client_id(text: &str) -> Result<String, InvalidValue> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    match text {
        "" => Err(InvalidValue::new("must not be empty")),
        text if text.chars().all(legal) => Ok(text.to_owned()),
        _ => Err(InvalidValue::new(format!("`{text}` is not a client id"))
            .help("a-z, A-Z, 0-9, dot, _ and - are allowed")),
    }
}

pub(super) fn id_header(text: &str) -> Result<String, InvalidValue> {
    match text {
        "" => Err(InvalidValue::new("must not be empty: consumers recognise repeats by it")),
        text => header_name(text).map_err(|refusal| refusal.help("choose another name")),
    }
}

pub(super) fn topic(text: &str) -> Result<String, InvalidValue> {
    check_topic(text).map(|()| text.to_owned()).map_err(InvalidValue::new)
}

/// An error names the responsible setting.
pub(super) fn template(regex: &str, topic: &str) -> Result<(), (&'static str, InvalidValue)> {
    let error = match TopicTemplate::compile(regex, topic) {
        Ok(_) if topic.is_empty() => {
            return Err(("route.topic", InvalidValue::new("must not be empty")));
        }
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let help = error.hint();
    let (key, reason) = match &error {
        RouteSpecError::Regex { reason } => {
            ("route.regex", format!("`{regex}` is not a regular expression: {reason}"))
        }
        other => ("route.topic", other.to_string()),
    };
    Err((key, InvalidValue { reason, help }))
}

/// Without a port librdkafka takes 9092. A protocol before `://` is refused: librdkafka accepts
/// only the one that `security.protocol` names.
pub(super) fn broker(text: &str) -> Result<String, InvalidValue> {
    let help = "write \"host:port\", such as \"localhost:9092\"";
    let refusal = |help: String| {
        Err(InvalidValue::new(format!("`{text}` is not a broker's address")).help(help))
    };
    if let Some((protocol, address)) = text.split_once("://") {
        let address = address.trim_end_matches('/');
        if broker(address).is_err() {
            return refusal(help.to_owned());
        }
        return Err(InvalidValue::new(format!("`{text}` begins with a protocol, `{protocol}`"))
            .help(format!(
                "write host:port: \"{address}\"; the protocol is kafka.properties.\"security.protocol\""
            )));
    }
    if let Some(separator) = [';', ','].into_iter().find(|separator| text.contains(*separator)) {
        let addresses: Vec<&str> = text.split(separator).map(str::trim).collect();
        return refusal(if addresses.iter().all(|address| broker(address).is_ok()) {
            format!("write {}, or {addresses:?} in the file", addresses.join(","))
        } else {
            help.to_owned()
        });
    }
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or(""))),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let is_address = text.starts_with('[');
    let without_zone = host.split('%').next().unwrap_or("");
    if is_address && without_zone.parse::<Ipv6Addr>().is_err() {
        return refusal("write \"[::1]:9092\": an IPv6 address in brackets, and a port".to_owned());
    }
    if !is_address && text.parse::<Ipv6Addr>().is_ok() {
        return refusal(format!(
            "write \"[{text}]:9092\": brackets tell the address from the port"
        ));
    }
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let strange = |c: char| !c.is_alphanumeric() && !matches!(c, '.' | '-' | '_');
    let is_host = is_address || !host.is_empty() && !host.contains(strange);
    if is_host && port.is_none_or(is_port) { Ok(text.to_owned()) } else { refusal(help.to_owned()) }
}

pub(super) fn bind(text: &str) -> Result<Option<SocketAddr>, InvalidValue> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
        return Err(InvalidValue::new(format!("`{text}` has a port and no address")).help(format!(
            "write \"127.0.0.1:{port}\" for this machine alone, or \"0.0.0.0:{port}\" for every network: the dashboard \
             asks nobody for a password"
        )));
    }
    // `localhost` needs no resolver.
    let local = text.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    let local = local.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    local.or_else(|| text.parse().ok()).map(Some).ok_or_else(|| {
        InvalidValue::new(format!("`{text}` is not an address to listen on"))
            .help("write \"127.0.0.1:8484\", \"0.0.0.0:8484\", or \"\" for none")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tables() {
        let name = |text| table(text).map(|t| (t.schema, t.name));
        assert_eq!(name("public.outbox").unwrap(), ("public".into(), "outbox".into()));
        assert_eq!(name("\"A.b\".\"x\"\"y\"").unwrap(), ("A.b".into(), "x\"y".into()));
        assert!(table("outbox").unwrap_err().help.unwrap().contains("public.outbox"));
        for wrong in ["", ".", "a.", "a.b.c", "Shop.outbox", "a b.c", "\"a.b", "\"a\"b.c", "\"\".a"]
        {
            assert!(table(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn templates_know_their_groups() {
        let regex = "(?<kind>[a-z]+)";
        for right in ["shop.${kind}", "orders", "shop.$1"] {
            assert!(template(regex, right).is_ok(), "{right}");
        }
        let (key, refusal) = template(regex, "${kinds}").unwrap_err();
        assert_eq!(key, "route.topic");
        assert!(refusal.help.unwrap().contains("kind"));
        for wrong in ["", "${kind", "a/${kind}", "a b"] {
            assert_eq!(template(regex, wrong).unwrap_err().0, "route.topic", "{wrong}");
        }
        let (key, refusal) = template("(?<kind", "x").unwrap_err();
        assert!(key == "route.regex" && !refusal.reason.contains('\n'), "{refusal:?}");
    }

    #[test]
    fn brokers_and_addresses() {
        for right in [
            "localhost",
            "kafka:9092",
            "[::1]:9092",
            "[fe80::1%eth0]",
            "10.0.0.1:9092",
            "a_b-c.d:1",
        ] {
            assert!(broker(right).is_ok(), "{right}");
        }
        for (wrong, words) in [
            ("", "host:port"),
            (":9092", "host:port"),
            ("kafka:", "host:port"),
            ("kafka:0", "host:port"),
            ("kafka:99999", "host:port"),
            ("a b:9092", "host:port"),
            ("u@k:9092", "host:port"),
            ("http://k:9092", "write host:port: \"k:9092\""),
            ("PLAINTEXT://k:9092", "write host:port: \"k:9092\"; the protocol is kafka.properties"),
            ("SASL_SSL://k:9093/", "write host:port: \"k:9093\""),
            ("ssl://:9093", "host:port"),
            ("a:1;b:2", "write a:1,b:2, or [\"a:1\", \"b:2\"]"),
            ("a:1, b:2", "write a:1,b:2, or [\"a:1\", \"b:2\"]"),
            ("a:1 b:2", "host:port"),
            ("::1", "write \"[::1]:9092\""),
            ("[::1", "in brackets"),
            ("[k]:9092", "in brackets"),
            ("[::1]9092", "host:port"),
        ] {
            let help = broker(wrong).unwrap_err().help.unwrap();
            assert!(help.contains(words), "{wrong}: {help}");
        }
        assert_eq!(bind("").unwrap(), None);
        assert_eq!(bind("localhost:1").unwrap(), Some("127.0.0.1:1".parse().unwrap()));
        for wrong in ["8484", "localhost", "host:1", "127.0.0.1:x", ":8484", ":"] {
            assert!(bind(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn printed_table_names_parse_back(schema in "[^\0]{1,12}", name in "[^\0]{1,12}") {
            let table_name = TableName { schema, name };
            prop_assert_eq!(table(&table_name.to_string()).unwrap(), table_name);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in ".{0,30}") {
            let _ = (slot(&text), table(&text), field(&text), topic(&text), broker(&text));
            let _ = (bind(&text), template(&text, "x"), template("(x)", &text), client_id(&text));
        }
    }
}
