//! Parses and writes JSON like Kafka Connect for Debezium's records.
//!
//! The output equals Debezium's byte for byte. If Debezium would stop, the result contains the
//! unchanged payload, or there is none (G4).

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
