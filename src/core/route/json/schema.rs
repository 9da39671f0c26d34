//! Writes the schemas of Kafka Connect's JsonConverter.
//!
//! Members have JsonConverter's order. `begin` and `end` enclose the caller's members.

use super::shape::Shape;
use super::text::write_string;

#[derive(Debug, Clone, Copy, Default)]
pub(in crate::route) struct Attributes<'a> {
    pub(in crate::route) is_optional: bool,
    pub(in crate::route) name: Option<&'a str>,
    pub(in crate::route) version: Option<i64>,
    pub(in crate::route) doc: Option<&'a str>,
    pub(in crate::route) parameters: Option<&'a str>,
    pub(in crate::route) field: Option<&'a str>,
}

pub(in crate::route) fn write_scalar(
    out: &mut Vec<u8>,
    connect_type: &str,
    attributes: &Attributes<'_>,
) {
    begin(out, connect_type);
    end(out, attributes);
}

pub(in crate::route) fn begin(out: &mut Vec<u8>, connect_type: &str) {
    out.extend(b"{\"type\":\"");
    out.extend(connect_type.as_bytes());
    out.push(b'"');
}

pub(in crate::route) fn end(out: &mut Vec<u8>, attributes: &Attributes<'_>) {
    out.extend(b",\"optional\":");
    out.extend(attributes.is_optional.to_string().as_bytes());
    if let Some(name) = attributes.name {
        out.extend(b",\"name\":");
        write_string(out, name);
    }
    if let Some(version) = attributes.version {
        out.extend(b",\"version\":");
        out.extend(version.to_string().as_bytes());
    }
    if let Some(doc) = attributes.doc {
        out.extend(b",\"doc\":");
        write_string(out, doc);
    }
    if let Some(parameters) = attributes.parameters {
        out.extend(b",\"parameters\":");
        out.extend(parameters.as_bytes());
    }
    if let Some(field) = attributes.field {
        out.extend(b",\"field\":");
        write_string(out, field);
    }
    out.push(b'}');
}

/// `path` names a document's objects: the payload's column, then members, joined by points.
/// Elements of nested arrays have no name.
pub(in crate::route) fn write_shape(
    out: &mut Vec<u8>,
    shape: &Shape,
    path: Option<&str>,
    field: Option<&str>,
) {
    let optional = Attributes { is_optional: true, field, ..Attributes::default() };
    let scalar = match shape {
        Shape::Struct(members) => {
            begin(out, "struct");
            out.extend(b",\"fields\":[");
            for (index, (name, member)) in members.shapes.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                let below = path.map_or_else(|| name.clone(), |path| format!("{path}.{name}"));
                write_shape(out, member, Some(&below), Some(name));
            }
            out.push(b']');
            let is_optional = !members.are_merged;
            return end(out, &Attributes { is_optional, name: path, ..optional });
        }
        Shape::Array(element) => {
            begin(out, "array");
            out.extend(b",\"items\":");
            let path = if matches!(**element, Shape::Struct(_)) { path } else { None };
            write_shape(out, element, path, None);
            return end(out, &optional);
        }
        Shape::Nothing => "bytes",
        Shape::Boolean => "boolean",
        Shape::Int32 => "int32",
        Shape::Int64 => "int64",
        Shape::Float64 => "double",
        Shape::Text | Shape::Unknown | Shape::Huge | Shape::Several => "string",
    };
    write_scalar(out, scalar, &optional);
}
