//! Writes `numeric` like Kafka Connect and Java.
//!
//! JSON: Connect's base64 of the unscaled value, with the scale if none is declared, or the plain
//! number. Headers and keys: as Java's `BigDecimal` prints.

use super::json::{base64, write_string};

pub(super) fn write_fixed(out: &mut Vec<u8>, printed: &[u8]) {
    out.push(b'"');
    base64(out, &unscaled(printed), false);
    out.push(b'"');
}

/// `{"scale":1,"value":"Dw=="}`. Trailing zeros do not count: 1.50 has scale 1 (observed with
/// Debezium 3.7.0.Final).
pub(super) fn write_struct(out: &mut Vec<u8>, printed: &[u8]) {
    let printed = without_zeros(printed);
    let scale = printed.iter().rev().position(|byte| *byte == b'.').unwrap_or(0);
    out.extend(format!("{{\"scale\":{scale},\"value\":").as_bytes());
    write_fixed(out, printed);
    out.push(b'}');
}

fn without_zeros(printed: &[u8]) -> &[u8] {
    if !printed.contains(&b'.') {
        return printed;
    }
    let end = printed.iter().rposition(|byte| *byte != b'0').map_or(0, |last| last + 1);
    let printed = printed.get(..end).unwrap_or(printed);
    printed.strip_suffix(b".").unwrap_or(printed)
}

/// Largest count whose power of ten is below 2^32.
const DIGITS_AT_ONCE: usize = 9;

/// Digits of `-12.50` without the point, as the shortest two's complement.
fn unscaled(printed: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = printed.iter().copied().filter(u8::is_ascii_digit).collect();
    // Least significant limb first. Postgres's longest numeric has about 14,000.
    let mut limbs: Vec<u32> = Vec::new();
    for chunk in digits.chunks(DIGITS_AT_ONCE) {
        let (mut factor, mut carry) = (1_u64, 0_u64);
        for digit in chunk {
            (factor, carry) = (factor * 10, carry * 10 + u64::from(digit - b'0'));
        }
        for limb in &mut limbs {
            let product = u64::from(*limb) * factor + carry;
            (*limb, carry) = (low(product), product >> 32);
        }
        if carry > 0 {
            limbs.push(low(carry));
        }
    }
    let mut bytes: Vec<u8> = limbs.iter().flat_map(|limb| limb.to_le_bytes()).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    if printed.starts_with(b"-") && !bytes.is_empty() {
        negate(&mut bytes);
    } else if bytes.last().is_none_or(|byte| byte & 0x80 != 0) {
        bytes.push(0);
    }
    bytes.reverse();
    bytes
}

fn low(product: u64) -> u32 {
    u32::try_from(product & u64::from(u32::MAX)).unwrap_or_default()
}

fn negate(magnitude: &mut Vec<u8>) {
    magnitude.push(0);
    let mut carry = true;
    for byte in magnitude.iter_mut() {
        let (negated, overflow) = (!*byte).overflowing_add(u8::from(carry));
        (*byte, carry) = (negated, overflow);
    }
    // The sign byte is redundant if the byte below has the sign bit.
    while let [.., below, 0xFF] = magnitude.as_slice() {
        if below & 0x80 == 0 {
            break;
        }
        magnitude.pop();
    }
}

/// Java's scientific notation (`BigDecimal.toString`) below 10^-6.
pub(super) fn scientific(printed: &[u8]) -> Option<Vec<u8>> {
    let point = printed.iter().position(|byte| *byte == b'.')?;
    let scale = printed.len() - point - 1;
    let digits: Vec<u8> = printed.iter().copied().filter(u8::is_ascii_digit).collect();
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let significant = digits.get(zeros.min(digits.len().saturating_sub(1))..)?;
    // Negated exponent of the first significant digit.
    let exponent = (scale + 1).checked_sub(significant.len())?;
    if exponent <= 6 {
        return None;
    }
    let (first, rest) = significant.split_first()?;
    let mut out = Vec::with_capacity(significant.len() + 8);
    out.extend(printed.strip_prefix(b"-").map(|_| b'-'));
    out.push(*first);
    if !rest.is_empty() {
        out.push(b'.');
        out.extend(rest);
    }
    out.extend(format!("E-{exponent}").as_bytes());
    Some(out)
}

pub(super) fn write_plain(out: &mut Vec<u8>, printed: &[u8]) {
    let text = String::from_utf8_lossy(printed);
    if text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'.')) {
        out.extend(text.as_bytes());
    } else {
        write_string(out, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_connect() {
        let fixed = |text: &str| {
            let mut out = Vec::new();
            write_fixed(&mut out, text.as_bytes());
            String::from_utf8(out).unwrap()
        };
        // Observed with Debezium 3.7.0.Final and numeric(10,2).
        for (text, wanted) in [
            ("1.50", "AJY="),
            ("-3.00", "/tQ="),
            ("0.00", "AA=="),
            ("-0.01", "/w=="),
            ("12345678.90", "SZYC0g=="),
            ("1.28", "AIA="),
            ("-1.28", "gA=="),
            ("655.36", "AQAA"),
        ] {
            assert_eq!(fixed(text), format!("\"{wanted}\""), "{text}");
        }
    }

    #[test]
    fn small_numbers_are_printed_as_by_java() {
        for (printed, wanted) in [
            ("0.0000001234", Some("1.234E-7")),
            ("-0.0000000001", Some("-1E-10")),
            ("0.0000000000", Some("0E-10")),
            ("0.000001", None),
            ("0.0000010", None),
            ("0.000000", None),
            ("0.0000000", Some("0E-7")),
            ("12.50", None),
            ("100", None),
        ] {
            let made = scientific(printed.as_bytes()).map(|made| String::from_utf8(made).unwrap());
            assert_eq!(made.as_deref(), wanted, "{printed}");
        }
    }

    #[test]
    fn a_number_of_its_own_scale_tells_it() {
        let own = |text: &str| {
            let mut out = Vec::new();
            write_struct(&mut out, text.as_bytes());
            String::from_utf8(out).unwrap()
        };
        assert_eq!(own("1.5"), r#"{"scale":1,"value":"Dw=="}"#);
        assert_eq!(own("100000000000000000000"), r#"{"scale":0,"value":"BWvHXi1jEAAA"}"#);
        assert_eq!(own("12345678901234567890.123"), r#"{"scale":3,"value":"Ap1Ctk52cUJEyw=="}"#);
        assert_eq!(own("-0.5"), r#"{"scale":1,"value":"+w=="}"#);
        assert_eq!(own("0.00"), r#"{"scale":0,"value":"AA=="}"#);
        assert_eq!(own("100"), r#"{"scale":0,"value":"ZA=="}"#);
        assert_eq!(own("1.50"), own("1.5"));
        assert_eq!(own("-100.00"), own("-100"));
    }
}
