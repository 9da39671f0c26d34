//! Parses a JSON payload, and writes it by its shape like Debezium.
//!
//! Floating-point numbers are printed as in Java.

use super::number::write_double;
use super::shape::Shape;
use super::text::write_string;
use crate::json::{Json, Number};

/// Parses a payload that starts like an object or array. Like Jackson, ignores everything after the
/// document.
pub(in crate::route) fn parse(text: &str) -> Option<Json> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    Json::parse_first(text.as_bytes()).ok()
}

/// Every object of an array gets the members of all, so the result may grow far. It is cut off
/// beyond `bytes_max`.
pub(in crate::route) fn write_json(
    out: &mut Vec<u8>,
    json: &Json,
    shape: &Shape,
    bytes_max: usize,
) {
    match json {
        Json::Null => out.extend(b"null"),
        Json::Bool(on) => out.extend(on.to_string().as_bytes()),
        Json::String(text) => write_string(out, text),
        Json::Number(number) => write_number(out, number, true),
        Json::Array(elements) => {
            let element_shape =
                if let Shape::Array(shape) = shape { shape } else { &Shape::Several };
            out.push(b'[');
            for (index, element) in elements.iter().enumerate() {
                if out.len() > bytes_max {
                    break;
                }
                if index > 0 {
                    out.push(b',');
                }
                write_json(out, element, element_shape, bytes_max);
            }
            out.push(b']');
        }
        Json::Object(members) => {
            out.push(b'{');
            let mut member = |index: usize, name: &str, json: &Json, shape: &Shape| {
                if index > 0 {
                    out.push(b',');
                }
                write_string(out, name);
                out.push(b':');
                write_json(out, json, shape, bytes_max);
                out.len() <= bytes_max
            };
            if let Shape::Struct(known) = shape {
                let mut shapes = known.shapes.iter().enumerate();
                shapes.all(|(index, (name, shape))| {
                    member(index, name, members.get(name).unwrap_or(&Json::Null), shape)
                });
            } else {
                let mut members = members.iter().enumerate();
                members.all(|(index, (name, json))| member(index, name, json, &Shape::Several));
            }
            out.push(b'}');
        }
    }
}

/// Null members are omitted, and nothing is quoted.
pub(in crate::route) fn write_java(out: &mut Vec<u8>, json: &Json, shape: &Shape) {
    match json {
        Json::Null => out.extend(b"null"),
        Json::Bool(on) => out.extend(on.to_string().as_bytes()),
        Json::String(text) => out.extend(text.as_bytes()),
        Json::Number(number) => write_number(out, number, false),
        Json::Array(elements) => {
            let element_shape =
                if let Shape::Array(shape) = shape { shape } else { &Shape::Several };
            out.push(b'[');
            separated(out, b", ", elements, |out, element| write_java(out, element, element_shape));
            out.push(b']');
        }
        Json::Object(members) => {
            out.extend(b"Struct{");
            if let Shape::Struct(known) = shape {
                // Over the object's own members: all members would take quadratic time.
                let mut present: Vec<_> = members
                    .iter()
                    .filter(|(_, member)| !member.is_null())
                    .filter_map(|(name, member)| Some((known.place(name)?, name, member)))
                    .collect();
                present.sort_unstable_by_key(|(place, ..)| *place);
                let shaped = present.into_iter().filter_map(|(place, name, member)| {
                    Some((name, member, known.shapes.get(place).map(|(_, shape)| shape)?))
                });
                separated(out, b",", shaped, |out, (name, member, shape)| {
                    out.extend(name.as_bytes());
                    out.push(b'=');
                    write_java(out, member, shape);
                });
            } else {
                separated(out, b",", members, |out, (name, member)| {
                    out.extend(name.as_bytes());
                    out.push(b'=');
                    write_java(out, member, &Shape::Several);
                });
            }
            out.push(b'}');
        }
    }
}

fn separated<T>(
    out: &mut Vec<u8>,
    separator: &[u8],
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.extend(separator);
        }
        write(out, item);
    }
}

/// A number beyond a double becomes a word, a string in JSON.
fn write_number(out: &mut Vec<u8>, number: &Number, in_json: bool) {
    let text = number.as_str();
    if number.is_whole() {
        return out.extend(if text == "-0" { "0" } else { text }.as_bytes());
    }
    let Ok(double) = text.parse::<f64>() else { unreachable!("JSON's numbers are Rust's too") };
    if double.is_finite() || !in_json {
        return write_double(out, double);
    }
    out.push(b'"');
    write_double(out, double);
    out.push(b'"');
}
