//! OIDs of built-in types (from `pg_type.dat`; they never change).

/// `bool`
pub const BOOL: u32 = 16;
/// `bytea`
pub const BYTEA: u32 = 17;
/// `"char"`
pub const CHAR: u32 = 18;
/// `name`
pub const NAME: u32 = 19;
/// `int8`
pub const INT8: u32 = 20;
/// `int2`
pub const INT2: u32 = 21;
/// `int4`
pub const INT4: u32 = 23;
/// `text`
pub const TEXT: u32 = 25;
/// `json`
pub const JSON: u32 = 114;
/// `xml`
pub const XML: u32 = 142;
/// `bpchar`, that is `char(n)`
pub const BPCHAR: u32 = 1042;
/// `varchar`
pub const VARCHAR: u32 = 1043;
/// `timestamp` without time zone
pub const TIMESTAMP: u32 = 1114;
/// `timestamptz`
pub const TIMESTAMPTZ: u32 = 1184;
/// `uuid`
pub const UUID: u32 = 2950;
/// `jsonb`
pub const JSONB: u32 = 3802;
/// `oid`
pub const OID: u32 = 26;
/// `float4`
pub const FLOAT4: u32 = 700;
/// `float8`
pub const FLOAT8: u32 = 701;
/// `date`
pub const DATE: u32 = 1082;
/// `time` without time zone
pub const TIME: u32 = 1083;
/// `timetz`
pub const TIMETZ: u32 = 1266;
/// `numeric`
pub const NUMERIC: u32 = 1700;
/// `tsvector`
pub const TSVECTOR: u32 = 3614;
/// Not a Postgres type (0 is `InvalidOid`): a JSON object or array in a logical message.
pub const DOCUMENT: u32 = 0;

/// OID of a listed type in `pg_catalog`.
pub fn by_name(name: &[u8]) -> Option<u32> {
    Some(match name {
        b"bool" => BOOL,
        b"bytea" => BYTEA,
        b"char" => CHAR,
        b"name" => NAME,
        b"int8" => INT8,
        b"int2" => INT2,
        b"int4" => INT4,
        b"text" => TEXT,
        b"json" => JSON,
        b"xml" => XML,
        b"bpchar" => BPCHAR,
        b"varchar" => VARCHAR,
        b"timestamp" => TIMESTAMP,
        b"timestamptz" => TIMESTAMPTZ,
        b"uuid" => UUID,
        b"jsonb" => JSONB,
        b"oid" => OID,
        b"float4" => FLOAT4,
        b"float8" => FLOAT8,
        b"date" => DATE,
        b"time" => TIME,
        b"timetz" => TIMETZ,
        b"numeric" => NUMERIC,
        b"tsvector" => TSVECTOR,
        _ => return None,
    })
}

/// Array and element types.
const ARRAYS: [(u32, u32); 20] = [
    (199, JSON),
    (1000, BOOL),
    (1002, CHAR),
    (1005, INT2),
    (1007, INT4),
    (1009, TEXT),
    (1014, BPCHAR),
    (1015, VARCHAR),
    (1016, INT8),
    (1021, FLOAT4),
    (1022, FLOAT8),
    (1028, OID),
    (1115, TIMESTAMP),
    (1182, DATE),
    (1183, TIME),
    (1185, TIMESTAMPTZ),
    (1231, NUMERIC),
    (1270, TIMETZ),
    (2951, UUID),
    (3807, JSONB),
];

/// Element type of an array.
pub fn element_of(array: u32) -> Option<u32> {
    ARRAYS.iter().find(|(of, _)| *of == array).map(|(_, element)| *element)
}

/// Array type of an element.
pub fn array_of(element: u32) -> Option<u32> {
    ARRAYS.iter().find(|(_, of)| *of == element).map(|(array, _)| *array)
}
