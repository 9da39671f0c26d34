//! An application with JSON types of its own that links every piece of the library.
//!
//! Input: JSON as `serde_json` reads it in a program without Postrider. Output: the same values. Invariant: no
//! piece turns on a feature of a shared crate that changes what the application's types accept:
//! `arbitrary_precision` refuses floating-point numbers in tagged and untagged enums, and makes `1.0` and `1.00`
//! differ; `preserve_order` changes the order in which an application's documents are written.

#[cfg(test)]
mod tests {
    use postrider_patterns as _;
    use postrider_sandbox as _;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Weight { kilograms: f64 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(f64),
        Text(String),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Flattened {
        #[serde(flatten)]
        inner: Inner,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        rate: f64,
    }

    #[test]
    fn floating_point_numbers_are_read_in_every_form_of_enum_and_struct() {
        let weight = json!({ "kind": "Weight", "kilograms": 1.5 });
        let tagged = Tagged::Weight { kilograms: 1.5 };
        assert_eq!(serde_json::from_value::<Tagged>(weight.clone()).unwrap(), tagged);
        assert_eq!(serde_json::from_str::<Tagged>(&weight.to_string()).unwrap(), tagged);
        assert_eq!(serde_json::from_str::<Untagged>("1.5").unwrap(), Untagged::Number(1.5));
        let flattened: Flattened = serde_json::from_str(r#"{"rate":1e-3}"#).unwrap();
        assert_eq!(flattened, Flattened { inner: Inner { rate: 0.001 } });
    }

    #[test]
    fn numbers_are_compared_by_value_and_members_are_sorted() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(value("1.0"), value("1.00"));
        assert_eq!(value(r#"{"b":1,"a":2}"#).to_string(), r#"{"a":2,"b":1}"#);
    }
}
