//! JSON as Kafka Connect writes it.
//!
//! Enters: column values and payloads that hold JSON. Leaves: bytes, the same that Connect's
//! converters write for Debezium's records. Always holds: what Debezium would pass on, it passes on
//! byte for byte; where Debezium would stop, the result is faithful to the payload, or there is none
//! (G4). The encoder of `route` calls it, for formats that ask for JSON.

mod document;
mod number;
mod schema;
mod shape;
#[cfg(test)]
mod tests;
mod text;

pub(super) use document::{parse, write_java, write_json};
pub(super) use number::{write_double, write_float};
pub(super) use schema::{Attributes, begin, end, write_scalar, write_shape};
pub(super) use shape::{Inference, Shape, infer};
pub(super) use text::{base64, write_string};
