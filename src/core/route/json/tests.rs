//! Tests against documents of Debezium 3.7.0.Final.

use proptest::prelude::*;

use super::*;
use crate::route::format::Members;

const DROP: Inference = Inference { null_members: Members::Drop, empty_arrays: Members::Drop };
const KEEP: Inference = Inference { null_members: Members::Keep, empty_arrays: Members::Keep };

fn expanded(text: &str, inference: Inference) -> Option<String> {
    let document = parse(text)?;
    let shape = infer(&document, inference).ok()?;
    let mut out = Vec::new();
    write_json(&mut out, &document, &shape, usize::MAX);
    Some(String::from_utf8(out).expect("UTF-8"))
}

fn java(text: &str, inference: Inference) -> String {
    let document = parse(text).expect("JSON");
    let shape = infer(&document, inference).expect("a shape");
    let mut out = Vec::new();
    write_java(&mut out, &document, &shape);
    String::from_utf8(out).expect("UTF-8")
}

fn schema(text: &str, inference: Inference) -> String {
    let document = parse(text).expect("JSON");
    let shape = infer(&document, inference).expect("a shape");
    let mut out = Vec::new();
    write_shape(&mut out, &shape, Some("payload"), None);
    String::from_utf8(out).expect("UTF-8")
}

#[test]
fn nulls_and_empty_arrays_are_dropped_or_kept() {
    for (text, dropped, kept) in [
        (r#"{"a":[]}"#, "{}", r#"{"a":[]}"#),
        (r#"{"b":{}}"#, r#"{"b":{}}"#, r#"{"b":{}}"#),
        (r#"{"a":{"b":[]}}"#, r#"{"a":{}}"#, r#"{"a":{"b":[]}}"#),
        (r#"{"a":null}"#, "{}", r#"{"a":null}"#),
        (r#"{"a":[{"b":null,"c":1}]}"#, r#"{"a":[{"c":1}]}"#, r#"{"a":[{"b":null,"c":1}]}"#),
        (r#"{"d":[[1],[]]}"#, r#"{"d":[[1],[]]}"#, r#"{"d":[[1],[]]}"#),
        (r#"{"h":[null,1]}"#, r#"{"h":[null,1]}"#, r#"{"h":[null,1]}"#),
        (r#"{"o":[null,{"q":2}]}"#, r#"{"o":[null,{"q":2}]}"#, r#"{"o":[null,{"q":2}]}"#),
    ] {
        assert_eq!(expanded(text, DROP).as_deref(), Some(dropped), "{text}");
        assert_eq!(expanded(text, KEEP).as_deref(), Some(kept), "{text}");
    }
}

#[test]
fn deep_documents_take_no_longer_than_wide_ones() {
    // Twice would be 2^120 steps.
    let arrays = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    assert_eq!(expanded(&arrays, DROP).as_deref(), Some(arrays.as_str()));
}

#[test]
fn g3_objects_without_number_do_not_take_their_square() {
    let objects: Vec<String> = (0..20_000).map(|number| format!(r#"{{"m{number}":1}}"#)).collect();
    for text in
        [format!("[{}]", objects.join(",")), format!(r#"[{{"p":{}}}]"#, objects.join(r#"},{"p":"#))]
    {
        let document = parse(&text).expect("JSON");
        let shape = infer(&document, DROP).expect("a shape");
        let mut out = Vec::new();
        write_json(&mut out, &document, &shape, text.len());
        assert!((text.len()..text.len() + 100).contains(&out.len()), "{}", out.len());
    }
}

#[test]
fn objects_of_one_array_have_the_members_of_all() {
    for (text, wanted) in [
        (r#"{"a":[{"z":1},{"y":2.50}]}"#, r#"{"a":[{"z":1,"y":null},{"z":null,"y":2.5}]}"#),
        (r#"{"e":[{},{"a":1}]}"#, r#"{"e":[{"a":null},{"a":1}]}"#),
        (r#"{"f":[{"x":[]},{"x":[1]}]}"#, r#"{"f":[{"x":[]},{"x":[1]}]}"#),
        (r#"{"o":[{"p":null},{"p":1}]}"#, r#"{"o":[{"p":null},{"p":1}]}"#),
        (r#"{"a":[{"x":[]},{"y":1}]}"#, r#"{"a":[{"y":null},{"y":1}]}"#),
        // Debezium loses `q`, because it uses one element's members for all.
        (
            r#"{"o":[{"p":{"q":1}},{"p":{"r":2}}]}"#,
            r#"{"o":[{"p":{"q":1,"r":null}},{"p":{"q":null,"r":2}}]}"#,
        ),
    ] {
        assert_eq!(expanded(text, DROP).as_deref(), Some(wanted), "{text}");
    }
}

#[test]
fn arrays_of_several_kinds_leave_the_document_as_it_is() {
    for text in [
        r#"{"j":[1,"a"]}"#,
        r#"{"k":[1,2147483648]}"#,
        r#"{"l":[1,1.5]}"#,
        r#"{"g":[null]}"#,
        r#"{"c":[[]]}"#,
        r#"{"d":[[],[1]]}"#,
        r#"{"o":[{"p":1},1]}"#,
        r#"{"a":[1,9223372036854775808]}"#,
        r#"{"":7}"#,
        "[]",
        "42",
        " {}",
        r#"{"a":01}"#,
        r#"{"a":1"#,
        "{a:1}",
    ] {
        assert_eq!(expanded(text, DROP), None, "{text}");
    }
    assert_eq!(expanded(r#"{"g":[null]}"#, KEEP).as_deref(), Some(r#"{"g":[null]}"#));
}

#[test]
fn where_debezium_stops_the_document_is_written_as_it_is() {
    for text in [
        "[1,2]",
        r#"{"a":9223372036854775808}"#,
        r#"{"n":[[1],["a"]]}"#,
        r#"{"o":[{"p":1},{"p":"a"}]}"#,
        r#"{"o":[{"p":1},{"p":1.5}]}"#,
        r#"{"o":[{"p":{"a":1}},{"p":1}]}"#,
    ] {
        assert_eq!(expanded(text, DROP).as_deref(), Some(text));
        let shape = infer(&parse(text).unwrap(), DROP).unwrap();
        assert_eq!(shape.has_schema(), text == "[1,2]", "{text}");
    }
}

#[test]
fn numbers_are_those_of_java() {
    let text = r#"{"d":1e3,"f":1.0,"h":1e-7,"i":1.5e300,"j":-0,"k":-0.0,"m":123456789012.5,
        "o":1e400,"x":1.7976931348623157e308,"y":4.9e-324,"z":1e23,"q":2e-3,"r":0.00001,
        "s":9007199254740993,"t":9007199254740993.0,"u":1E+2,"w":123456789.123456789,"v":0.1e1}"#;
    let wanted = r#"{"d":1000.0,"f":1.0,"h":1.0E-7,"i":1.5E300,"j":0,"k":-0.0,"m":1.234567890125E11,
        "o":"Infinity","x":1.7976931348623157E308,"y":4.9E-324,"z":1.0E23,"q":0.002,"r":1.0E-5,
        "s":9007199254740993,"t":9.007199254740992E15,"u":100.0,"w":1.2345678912345679E8,"v":1.0}"#;
    let plain: String = wanted.split_whitespace().collect();
    assert_eq!(expanded(text, DROP), Some(plain));
}

#[test]
fn strings_are_those_of_jackson() {
    let text =
        "{\"s\":\"é 😀 \\u0001 \\u001f \\u007f / \\\" \\\\ \\b\\f\\n\\r\\t \\ud83d\\ude00\"}";
    let wanted = "{\"s\":\"é \\uD83D\\uDE00 \\u0001 \\u001F \u{7f} / \\\" \\\\ \\b\\f\\n\\r\\t \\uD83D\\uDE00\"}";
    assert_eq!(expanded(text, DROP).as_deref(), Some(wanted));
    assert_eq!(expanded(r#"{"a":1,"b":5,"a":"x"} x"#, DROP).as_deref(), Some(r#"{"a":"x","b":5}"#));
}

#[test]
fn structures_print_as_in_java() {
    assert_eq!(
        java(r#"{"b":1,"a":[{"z":1},{"y":2.50}],"n":null,"e":{}}"#, DROP),
        "Struct{b=1,a=[Struct{z=1}, Struct{y=2.5}],e=Struct{}}"
    );
    assert_eq!(
        java(r#"{"h":[null,1],"o":1e400,"t":true,"s":"x"}"#, DROP),
        "Struct{h=[null, 1],o=Infinity,t=true,s=x}"
    );
}

#[test]
fn schemas_are_those_of_the_converter() {
    assert_eq!(
        schema(r#"{"a":{"b":[1]},"c":[[{"d":{"e":true}}]],"f":[{"g":"x"},{"h":1.5}]}"#, DROP),
        concat!(
            r#"{"type":"struct","fields":[{"type":"struct","fields":[{"type":"array","items":{"type":"int32","optional":true},"optional":true,"field":"b"}],"optional":true,"name":"payload.a","field":"a"},"#,
            r#"{"type":"array","items":{"type":"array","items":{"type":"struct","fields":[{"type":"struct","fields":[{"type":"boolean","optional":true,"field":"e"}],"optional":true,"name":"d","field":"d"}],"optional":true},"optional":true},"optional":true,"field":"c"},"#,
            r#"{"type":"array","items":{"type":"struct","fields":[{"type":"string","optional":true,"field":"g"},{"type":"double","optional":true,"field":"h"}],"optional":false,"name":"payload.f"},"optional":true,"field":"f"}],"optional":true,"name":"payload"}"#
        )
    );
}

#[test]
fn bytes_are_base64() {
    for (bytes, standard, for_urls) in [
        (&b""[..], "", ""),
        (b"ab", "YWI=", "YWI="),
        (b"\xfb\xef\xff", "++//", "--__"),
        (b"a", "YQ==", "YQ=="),
    ] {
        let encoded = |for_urls| {
            let mut out = Vec::new();
            base64(&mut out, bytes, for_urls);
            String::from_utf8(out).unwrap()
        };
        assert_eq!((encoded(false).as_str(), encoded(true).as_str()), (standard, for_urls));
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1e9..1e9).prop_map(|float: f64| serde_json::json!(float)),
        ".{0,6}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::vec(("[a-e]{1,2}", inner), 0..5)
                .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn g7_any_document_is_written_as_json(document in any_json(), keep: bool) {
        let text = document.to_string();
        if let Some(written) = expanded(&text, if keep { KEEP } else { DROP }) {
            let read: serde_json::Value = serde_json::from_str(&written).expect("JSON");
            let again = expanded(&written, KEEP).expect("a shape");
            let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
            prop_assert_eq!(again, read);
        }
    }

    #[test]
    fn g7_any_text_is_written_again_as_json_or_left(text in r#"[\[{]["\[{}\]:,0-9a-z.eE+\\ -]{0,24}"#) {
        if let Some(again) = expanded(&text, DROP) {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&again).is_ok(), "{}", again);
        }
    }

    #[test]
    fn doubles_read_back(double: f64) {
        let mut out = Vec::new();
        write_double(&mut out, double);
        let text = String::from_utf8(out).unwrap();
        let read: f64 = text.parse().unwrap();
        prop_assert!(read.to_bits() == double.to_bits() || (read.is_nan() && double.is_nan()), "{} {}", text, double);
    }
}
