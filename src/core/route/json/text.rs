//! Writes JSON strings with the escapes of Jackson's generator, and bytes as base64.

use std::io::Write as _;

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Characters beyond the basic plane become two surrogates; digits are upper case.
pub(in crate::route) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(needs_escape) {
        let (before, after) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.extend(before.as_bytes());
        let mut characters = after.chars();
        if let Some(character) = characters.next() {
            escape(out, character);
        }
        rest = characters.as_str();
    }
    out.extend(rest.as_bytes());
    out.push(b'"');
}

/// `F0` and above start four bytes.
const fn needs_escape(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\' || byte >= 0xF0
}

fn escape(out: &mut Vec<u8>, character: char) {
    let short = match character {
        '"' => b'"',
        '\\' => b'\\',
        '\u{8}' => b'b',
        '\t' => b't',
        '\n' => b'n',
        '\u{C}' => b'f',
        '\r' => b'r',
        _ => {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04X}");
            }
            return;
        }
    };
    out.extend([b'\\', short]);
}

pub(in crate::route) fn base64(out: &mut Vec<u8>, bytes: &[u8], for_urls: bool) {
    let digit = |bits: u32| {
        let Some(&digit) = BASE64.get((bits & 63) as usize) else {
            unreachable!("six bits number 64 digits");
        };
        match digit {
            b'+' if for_urls => b'-',
            b'/' if for_urls => b'_',
            digit => digit,
        }
    };
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        let third = if chunk.len() > 1 { digit(bits >> 6) } else { b'=' };
        let fourth = if chunk.len() > 2 { digit(bits) } else { b'=' };
        out.extend([digit(bits >> 18), digit(bits >> 12), third, fourth]);
    }
}
