//! What a reason says of a difference, where that can be checked.

use serde_json::Value;

use super::dry_run::Answer;

/// Whether the difference is of the kind that its reason names.
pub(crate) fn holds(why: &str, expected: &Value, answer: &Answer) -> bool {
    let told = expected.to_string();
    match why {
        "refused at start" => *answer == Answer::Exit(78),
        "NULL id" => code(answer) == Some("missing_value"),
        "topic" => matches!(code(answer), Some("invalid_topic" | "no_route")),
        "timestamp" | "partition" | "message content" => code(answer) == Some("invalid_value"),
        "undecoded message" => answer.is("dropped"),
        "Java text" => ["HeapByteBuffer[", "[B@", "[Ljava."].iter().any(|it| told.contains(it)),
        "lone surrogate" => told.to_ascii_lowercase().contains("ud83d") || told.contains('?'),
        "member order" => texts(expected, answer, |one, other| match (json(one), json(other)) {
            (Some(one), Some(other)) => without_order(one) == without_order(other),
            _ => false,
        }),
        "double digits" => texts(expected, answer, |one, other| parts(one) == parts(other)),
        _ => true,
    }
}

fn code(answer: &Answer) -> Option<&str> {
    match answer {
        Answer::Line(line) => line.get("code")?.as_str(),
        Answer::Exit(_) => None,
    }
}

/// Whether keys, values and headers are the same in this sense.
fn texts(expected: &Value, answer: &Answer, same: impl Fn(&str, &str) -> bool) -> bool {
    let Some(record) = answer.record() else { return false };
    ["key", "value", "headers"].iter().all(|member| {
        let (one, other) = (&expected[member], &record[member]);
        one == other
            || match (one.as_str(), other.as_str()) {
                (Some(one), Some(other)) => same(one, other),
                _ => same(&one.to_string(), &other.to_string()),
            }
    })
}

fn json(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

/// Objects compare without order; the fields of a schema are sorted.
fn without_order(json: Value) -> Value {
    match json {
        Value::Array(elements) => elements.into_iter().map(without_order).collect(),
        Value::Object(members) => {
            let sorted = |(name, json): (String, Value)| {
                let mut json = without_order(json);
                if let (true, Some(fields)) = (name == "fields", json.as_array_mut()) {
                    fields.sort_by_key(|field| field["field"].to_string());
                }
                (name, json)
            };
            Value::Object(members.into_iter().map(sorted).collect())
        }
        json => json,
    }
}

/// A text's numbers as such, and what is between them.
fn parts(text: &str) -> (Vec<f64>, Vec<&str>) {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | 'E');
    let numbers = text.split(|c| !is_number(c)).filter_map(|number| number.parse().ok());
    (numbers.collect(), text.split(is_number).filter(|text| !text.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_digits_are_all_that_may_differ() {
        let one = json(r#"{"fields":[{"field":"a"},{"field":"b"}],"p":[1,2],"x":1}"#).unwrap();
        let same = json(r#"{"x":1,"p":[1,2],"fields":[{"field":"b"},{"field":"a"}]}"#).unwrap();
        let other = json(r#"{"x":1,"p":[2,1],"fields":[{"field":"b"},{"field":"a"}]}"#).unwrap();
        assert_eq!(without_order(one.clone()), without_order(same));
        assert_ne!(without_order(one), without_order(other));
        assert_eq!(parts("{\"a\":9.999999999999999E22}"), parts("{\"a\":1.0E23}"));
        assert_ne!(parts("{\"a\":1.0E22}"), parts("{\"a\":1.0E23}"));
        assert_ne!(parts("{\"a\":1}"), parts("{\"b\":1}"));
    }
}
