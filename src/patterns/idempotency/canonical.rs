//! Writes JSON texts with one meaning in one form, for the fingerprint of a request.
//!
//! Invariant: white space, the order of members, escapes and the notation of a number do not
//! matter. Every other difference counts. If members share a name, each counts in order, because
//! parsers differ.
//!
//! `serde_json::Value` does not suffice: a cargo feature that any crate may enable decides which
//! digits of a number it keeps.

use serde_core::Deserialize;
use serde_core::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Deeper values are taken unchanged. Each level reads its inner text again, so this bounds the
/// time.
const DEPTH_MAX: usize = 32;
/// Fits into an `i64`. A longer exponent is taken unchanged.
const EXPONENT_DIGITS_MAX: usize = 18;

pub(super) fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    let whole: &RawValue = serde_json::from_slice(text).ok()?;
    let mut out = Vec::with_capacity(text.len());
    write(whole, DEPTH_MAX, &mut out)?;
    Some(out)
}

fn write(value: &RawValue, depth: usize, out: &mut Vec<u8>) -> Option<()> {
    let text = value.get();
    match text.as_bytes().first()? {
        b'{' if depth > 0 => {
            let Members(mut members) = serde_json::from_str(text).ok()?;
            // The sort is stable: members with one name keep their order.
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            out.push(b'{');
            for (name, member) in members {
                serde_json::to_writer(&mut *out, &name).ok()?;
                out.push(b':');
                write(member, depth - 1, out)?;
                out.push(b',');
            }
            out.push(b'}');
        }
        b'[' if depth > 0 => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            out.push(b'[');
            for item in items {
                write(item, depth - 1, out)?;
                out.push(b',');
            }
            out.push(b']');
        }
        b'"' => {
            let string: String = serde_json::from_str(text).ok()?;
            serde_json::to_writer(out, &string).ok()?;
        }
        b'-' | b'0'..=b'9' => write_number(text, out),
        _ => out.extend_from_slice(text.as_bytes()),
    }
    Some(())
}

/// Writes the sign, the digits without zeros at either end, and the power of ten of the last digit.
/// Zero is `0`, whatever its sign.
fn write_number(text: &str, out: &mut Vec<u8>) {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        out.push(b'0');
        return;
    }
    let shortest = significant.trim_end_matches('0');
    let magnitude = exponent.trim_start_matches(['+', '-']).trim_start_matches('0');
    if magnitude.len() > EXPONENT_DIGITS_MAX {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let magnitude = magnitude.bytes().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let exponent = if exponent.starts_with('-') { -magnitude } else { magnitude };
    let zeros = significant.len() - shortest.len();
    let exponent = exponent + length(zeros) - length(fraction.len());
    if mantissa.len() > unsigned.len() {
        out.push(b'-');
    }
    out.extend_from_slice(shortest.as_bytes());
    out.extend_from_slice(format!("e{exponent}").as_bytes());
}

fn length(of: usize) -> i64 {
    let Ok(length) = i64::try_from(of) else {
        unreachable!("no text is longer than memory");
    };
    length
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = Members<'de>;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> String {
        String::from_utf8(canonical(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn what_means_the_same_is_written_the_same() {
        for (one, other) in [
            ("1.0", "1.00"),
            ("1", "1e0"),
            ("10", "1E+1"),
            ("100e-2", "1"),
            ("0.00120", "12e-4"),
            ("-0.0", "0"),
            ("0e999999999999999999999", "0"),
            ("1e000000000000000000000000", "1"),
            ("1e999999999999999999", "10e999999999999999998"),
            ("\"t\\u0065a\\/\"", "\"tea/\""),
            (" { \"b\" : [ 1 , 2 ] , \"a\" : { } } ", "{\"a\":{},\"b\":[1.0,2]}"),
            ("{\"\\u0061\":1,\"b\":2}", "{\"b\":2,\"a\":1}"),
            (
                "{\"$serde_json::private::Number\":\"1.0\"}",
                "{\"$serde_json::private::Number\":\"1.0\"}",
            ),
        ] {
            assert_eq!(of(one), of(other), "{one} and {other}");
        }
    }

    #[test]
    fn what_means_something_else_is_written_otherwise() {
        for (one, other) in [
            // Both numbers are equal as 64-bit floating-point numbers.
            ("9007199254740993", "9007199254740992"),
            ("18446744073709551617", "18446744073709551616"),
            ("0.1", "0.1000000000000000055511151231257827"),
            ("1e400", "1e401"),
            ("1e-400", "0"),
            ("1", "-1"),
            ("1", "\"1\""),
            ("1e99999999999999999999", "1e99999999999999999998"),
            ("1e99999999999999999999", "1e-99999999999999999999"),
            ("null", "false"),
            ("[]", "{}"),
            ("[1,2]", "[2,1]"),
            ("[[1],2]", "[[1,2]]"),
            ("{\"a\":1,\"a\":2}", "{\"a\":2}"),
            ("{\"a\":1,\"a\":2}", "{\"a\":2,\"a\":1}"),
            ("{\"$serde_json::private::Number\":\"1.0\"}", "1.0"),
        ] {
            assert_ne!(of(one), of(other), "{one} and {other}");
        }
    }

    #[test]
    fn what_is_not_json_has_no_canonical_form() {
        for text in
            ["", "{", "01", "1.", "NaN", "'a'", "{\"a\":1,}", "1 2", "\"\\ud800\"", "\"\n\""]
        {
            assert_eq!(canonical(text.as_bytes()), None, "{text}");
        }
        assert_eq!(canonical(b"\"\xff\""), None);
    }

    /// A megabyte of brackets neither overflows the stack nor takes long.
    #[test]
    fn what_is_nested_too_deeply_is_taken_as_it_is_written() {
        let depth = 500_000;
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(canonical(text.as_bytes()).is_some_and(|form| form.len() > 2 * depth));
        let nested = |inner: &str| format!("{}{inner}{}", "[".repeat(40), "]".repeat(40));
        assert_eq!(of(&nested("1")), of(&nested("1")));
        assert_ne!(of(&nested("1")), of(&nested("2")));
    }

    proptest! {
        #[test]
        fn a_number_is_the_same_in_each_way_to_write_it(
            digits in "[1-9][0-9]{0,30}", exponent in -1_000..1_000_i64, shift in 1..40_usize,
        ) {
            let plain = format!("{digits}e{exponent}");
            let zeros = "0".repeat(shift);
            let power = i64::try_from(shift).unwrap();
            let all = [
                format!("{digits}{zeros}E{}", exponent - power),
                format!("{digits}.{zeros}e{exponent}"),
                format!("0.{}{digits}e{}", "0".repeat(shift - 1), exponent + i64::try_from(digits.len()).unwrap() + power - 1),
            ];
            for other in all {
                prop_assert_eq!(of(&plain), of(&other), "{}", other);
            }
            prop_assert_ne!(of(&plain), of(&format!("{digits}1e{exponent}")));
            prop_assert_ne!(of(&plain), of(&format!("{digits}e{}", exponent + 1)));
        }

        #[test]
        fn the_canonical_form_of_a_canonical_form_is_itself(text in "[\\[\\]{}\",:0-9.eE+\\-a ]{0,40}") {
            if let Some(form) = canonical(text.as_bytes()) {
                let strict = String::from_utf8(form).unwrap().replace(",}", "}").replace(",]", "]");
                prop_assert_eq!(of(&strict).replace(",}", "}").replace(",]", "]"), strict);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            canonical(&bytes);
        }
    }
}
