//! Writes a column's schema like Debezium's connector.
//!
//! Unlike Debezium, it omits defaults, the values of an enum, and columns whose style is text.

use super::column::{Kind, precision};
use super::debezium_time::is_in_milliseconds;
use super::format::ColumnStyle;
use super::json::{Attributes, begin, end, write_scalar};
use crate::outbox::{Declared, type_oid as oid};

pub(super) fn write_column(
    out: &mut Vec<u8>,
    declared: Declared,
    kind: Kind,
    style: ColumnStyle,
    field: Option<&str>,
) {
    let plain = Attributes { is_optional: declared.is_nullable, field, ..Attributes::default() };
    let named = Attributes { name: semantic_name(declared, kind, style), ..plain };
    let named = Attributes { version: named.name.map(|_| 1), ..named };
    let connect_type = match kind {
        Kind::Boolean => "boolean",
        Kind::Int16 => "int16",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Float32 => "float",
        Kind::Float64 => "double",
        Kind::Decimal { .. } if style == ColumnStyle::Postgres => "double",
        Kind::Decimal { scale: Some(scale) } => {
            let parameters = parameters(declared, scale);
            let decimal = Attributes { parameters: Some(&parameters), ..named };
            return write_scalar(out, "bytes", &decimal);
        }
        Kind::Decimal { scale: None } => {
            begin(out, "struct");
            out.extend(
                b",\"fields\":[{\"type\":\"int32\",\"optional\":false,\"field\":\"scale\"},\
                  {\"type\":\"bytes\",\"optional\":false,\"field\":\"value\"}]",
            );
            return end(out, &Attributes { doc: Some("Variable scaled decimal"), ..named });
        }
        Kind::Text | Kind::Document => "string",
        Kind::Bytes => "bytes",
    };
    write_scalar(out, connect_type, &named);
}

pub(super) fn write_list(
    out: &mut Vec<u8>,
    of: Declared,
    is_optional: bool,
    style: ColumnStyle,
    field: Option<&str>,
) {
    begin(out, "array");
    out.extend(b",\"items\":");
    write_column(out, of, Kind::of(of, style), style, None);
    end(out, &Attributes { is_optional, field, ..Attributes::default() });
}

fn parameters(declared: Declared, scale: i32) -> String {
    let precision = precision(declared.modifier).unwrap_or(0);
    format!("{{\"scale\":\"{scale}\",\"connect.decimal.precision\":\"{precision}\"}}")
}

fn semantic_name(declared: Declared, kind: Kind, style: ColumnStyle) -> Option<&'static str> {
    if style == ColumnStyle::Postgres {
        return None;
    }
    let in_milliseconds = is_in_milliseconds(declared.modifier);
    Some(match declared.type_oid {
        oid::UUID => "io.debezium.data.Uuid",
        oid::JSON | oid::JSONB => "io.debezium.data.Json",
        oid::XML => "io.debezium.data.Xml",
        oid::TSVECTOR => "io.debezium.data.Tsvector",
        oid::DATE => "io.debezium.time.Date",
        oid::TIME if in_milliseconds => "io.debezium.time.Time",
        oid::TIME => "io.debezium.time.MicroTime",
        oid::TIMETZ => "io.debezium.time.ZonedTime",
        oid::TIMESTAMP if in_milliseconds => "io.debezium.time.Timestamp",
        oid::TIMESTAMP => "io.debezium.time.MicroTimestamp",
        oid::TIMESTAMPTZ => "io.debezium.time.ZonedTimestamp",
        oid::NUMERIC if kind == (Kind::Decimal { scale: None }) => {
            "io.debezium.data.VariableScaleDecimal"
        }
        oid::NUMERIC => "org.apache.kafka.connect.data.Decimal",
        _ => return None,
    })
}
