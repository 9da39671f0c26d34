//! Parses the column types of `postrider route`, written as in SQL, such as `varchar(255) null`. An
//! unknown name is a type whose values are text.

use postrider_core::outbox::type_oid as oid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ColumnType {
    pub(super) type_oid: u32,
    pub(super) modifier: i32,
    pub(super) is_nullable: bool,
}

/// Offset of a length or precision in `pg_attribute.atttypmod`.
const HEADER_BYTES: i32 = 4;

/// Parses `numeric(10,2) default 0 null`. Only the words ` null` make a column nullable.
pub(super) fn parse(text: &str) -> ColumnType {
    let text = text.trim().to_ascii_lowercase();
    let is_nullable = text.ends_with(" null") && !text.ends_with("not null");
    let text = text.trim_end_matches(" null").trim_end_matches(" not");
    let text = text.split_once(" default ").map_or(text, |(name, _)| name).trim();
    let (name, numbers) = match text.split_once('(') {
        None => (text.to_owned(), Vec::new()),
        Some((before, rest)) => {
            let (inside, after) = rest.split_once(')').unwrap_or((rest, ""));
            let numbers = inside.split(',').filter_map(|number| number.trim().parse().ok());
            (format!("{}{after}", before.trim_end()), numbers.collect())
        }
    };
    let (element, is_array) = name.strip_suffix("[]").map_or((name.as_str(), false), |e| (e, true));
    let element = type_oid(element);
    let type_oid = if is_array { oid::array_of(element).unwrap_or(oid::TEXT) } else { element };
    // An array has the modifier of its elements.
    ColumnType { type_oid, modifier: modifier(element, &numbers), is_nullable }
}

fn type_oid(name: &str) -> u32 {
    match name {
        "boolean" => oid::BOOL,
        "smallint" | "smallserial" => oid::INT2,
        "int" | "integer" | "serial" => oid::INT4,
        "bigint" | "bigserial" => oid::INT8,
        "real" => oid::FLOAT4,
        "double precision" | "float" => oid::FLOAT8,
        "decimal" => oid::NUMERIC,
        "character varying" => oid::VARCHAR,
        "timestamp without time zone" => oid::TIMESTAMP,
        "timestamp with time zone" => oid::TIMESTAMPTZ,
        "time without time zone" => oid::TIME,
        "time with time zone" => oid::TIMETZ,
        // The catalog's type `char` is written in quotes.
        "character" | "char" => oid::BPCHAR,
        name => oid::by_name(name.as_bytes()).unwrap_or(oid::TEXT),
    }
}

fn modifier(type_oid: u32, numbers: &[i32]) -> i32 {
    match (type_oid, numbers) {
        (_, []) => -1,
        (oid::NUMERIC, [precision]) => (precision << 16) + HEADER_BYTES,
        (oid::NUMERIC, [precision, scale, ..]) => {
            ((precision << 16) | (scale & 0x7FF)) + HEADER_BYTES
        }
        (oid::VARCHAR | oid::BPCHAR, [length, ..]) => length.saturating_add(HEADER_BYTES),
        (_, [digits, ..]) => *digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_definition() {
        let read = |text: &str| {
            let ColumnType { type_oid, modifier, is_nullable } = parse(text);
            (type_oid, modifier, is_nullable)
        };
        assert_eq!(read("uuid"), (oid::UUID, -1, false));
        assert_eq!(read("jsonb null"), (oid::JSONB, -1, true));
        assert_eq!(read("varchar(255)"), (oid::VARCHAR, 259, false));
        assert_eq!(read("timestamp(3)"), (oid::TIMESTAMP, 3, false));
        assert_eq!(read("Timestamp (6) With Time Zone null"), (oid::TIMESTAMPTZ, 6, true));
        assert_eq!(read("numeric(10,2) not null"), (oid::NUMERIC, 655_366, false));
        assert_eq!(read("bool default false null"), (oid::BOOL, -1, true));
        assert_eq!(read("character varying(3)[] null"), (1015, 7, true));
        assert_eq!(read("my_enum[]"), (1009, -1, false));
        assert_eq!(read("INTEGER"), (oid::INT4, -1, false));
        assert_eq!(read("my_enum"), (oid::TEXT, -1, false));
    }
}
