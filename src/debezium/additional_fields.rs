//! Parses `table.fields.additional.placement` as `EventRouterConfigDefinition` does: outbox columns
//! that become headers, envelope fields, or the partition. Debezium accepts an unknown placement
//! and fails on the first row; this module refuses it.

/// Entries are `column` or `column:name`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) headers: Vec<String>,
    pub(super) envelope: Vec<String>,
    /// The last one, because Debezium supports only one.
    pub(super) partition: Option<String>,
}

pub(super) struct Misplaced {
    pub(super) reason: String,
    pub(super) help: &'static str,
}

const FORM: &str = "write column:placement or column:placement:alias, where placement is header, \
                    envelope or partition";

pub(super) fn parse(text: &str) -> Result<Placement, Misplaced> {
    let misplaced = |reason: String| Misplaced { reason, help: FORM };
    let mut placement = Placement::default();
    let entries = without_empty_end(text, ',');
    if entries.is_empty() {
        return Err(misplaced("is empty".to_owned()));
    }
    for entry in entries {
        let parts = without_empty_end(entry, ':');
        let (column, word, name) = match parts.as_slice() {
            [column, word] => (*column, *word, *column),
            [column, word, name] => (*column, *word, *name),
            _ => {
                return Err(misplaced(format!("`{entry}` is not two or three names with colons")));
            }
        };
        if column.is_empty() || name.is_empty() {
            return Err(misplaced(format!("`{entry}` has an empty name")));
        }
        let field = if name == column { column.to_owned() } else { format!("{column}:{name}") };
        match word.to_ascii_lowercase().as_str() {
            "header" => placement.headers.push(field),
            "envelope" => placement.envelope.push(field),
            "partition" => placement.partition = Some(column.to_owned()),
            _ => return Err(misplaced(format!("`{word}` is not a placement"))),
        }
    }
    Ok(placement)
}

/// Splits like Java's `String.split`, and trims blanks.
fn without_empty_end(text: &str, separator: char) -> Vec<&str> {
    let mut parts: Vec<&str> = text.split(separator).map(str::trim).collect();
    while parts.last().is_some_and(|part| part.is_empty()) {
        parts.pop();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_by_placement() {
        let text =
            " type:header , type:Envelope:eventType,id:header:event-id,p:partition,q:PARTITION:x,";
        let placement = parse(text).ok().unwrap();
        assert_eq!(placement.headers, ["type", "id:event-id"]);
        assert_eq!(placement.envelope, ["type:eventType"]);
        assert_eq!(placement.partition.as_deref(), Some("q"));
    }

    #[test]
    fn what_is_no_placement_is_refused() {
        for (text, words) in [
            ("", "is empty"),
            (" , ", "is empty"),
            ("type", "two or three"),
            ("a:header:b:c", "two or three"),
            ("a:header,,b:header", "two or three"),
            ("a:heder", "`heder`"),
            (":header", "empty name"),
            ("a: header : ,b:envelope: :", ""),
        ] {
            match parse(text) {
                Err(misplaced) => assert!(misplaced.reason.contains(words), "{}", misplaced.reason),
                Ok(placement) => assert_eq!((words, placement.headers.len()), ("", 1), "{text}"),
            }
        }
    }
}
