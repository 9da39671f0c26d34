//! Translates converters to the formats of `[format]`. The report names an assumed converter. An
//! unsupported one, such as Avro, is refused.

use super::connector::refuse_placeholder;
use super::draft::{Draft, Taken, text};
use super::names::simple_class;
use super::options_file::Flavour;

/// Encoding of binary keys and values. The setting covers both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bytes {
    Any,
    /// Base64 within JSON.
    Encoded,
    Raw,
}

#[derive(Clone, Copy)]
struct ConverterFormat {
    word: &'static str,
    bytes: Bytes,
}

const RAW: ConverterFormat = ConverterFormat { word: "raw", bytes: Bytes::Any };
const STRING: ConverterFormat = ConverterFormat { word: "string", bytes: Bytes::Any };

/// Options of Kafka's converters. Others may contain secrets.
const KNOWN: [&str; 5] =
    ["schemas.enable", "schemas.cache.size", "decimal.format", "encoding", "converter.type"];

pub(super) fn map(draft: &mut Draft) {
    let key = side(draft, "key");
    let value = side(draft, "value");
    header(draft);
    let comment = "columns in keys, headers and envelopes are written as Debezium's connector does";
    draft.set("format.columns", text("debezium"), comment);
    bytes(draft, key, value);
    let rest: Vec<Taken> = ["key.", "value.", "header.", ""]
        .iter()
        .flat_map(|side| draft.take_all(&format!("{side}converter.")))
        .collect();
    for taken in rest {
        let option = taken.name().rsplit("converter.").next().unwrap_or("").to_owned();
        let taken = if KNOWN.contains(&option.as_str()) { taken.known() } else { taken };
        match (option.as_str(), taken.text().to_ascii_lowercase().as_str()) {
            ("decimal.format", "numeric") => {
                draft.changed(taken, "decimals in JSON are base64, as without this option", None);
            }
            ("encoding", encoding) if !["utf-8", "utf8", ""].contains(&encoding) => {
                draft.refuse(taken, "text is always UTF-8", "remove it");
            }
            _ => draft.not_needed(taken, "changes nothing here"),
        }
    }
}

fn side(draft: &mut Draft, side: &str) -> ConverterFormat {
    let option = format!("{side}.converter");
    let setting = format!("format.{side}");
    let word = draft.take(&option);
    // Debezium Server's words stand for classes, which may also be named.
    let class = draft.take(&format!("{option}.class"));
    let (taken, other) = if class.is_some() { (class, word) } else { (word, None) };
    let (form, options, comment) = if let Some(taken) = &taken {
        match form(draft, side, taken.text()) {
            Ok((form, options)) => (form, options, ""),
            Err(help) => {
                refuse(draft, taken.clone(), help);
                if let Some(other) = other {
                    draft.not_needed(other, "the class goes before it");
                }
                return RAW;
            }
        }
    } else {
        let (form, comment) = absent(draft, side);
        (form, Vec::new(), comment)
    };
    // A text key has identical bytes in both formats.
    let word = if side == "key" && form.word == "string" { "raw" } else { form.word };
    let all: Vec<&Taken> = taken.iter().chain(&options).collect();
    draft.set_from(&setting, text(word), comment, &all);
    for taken in taken.into_iter().chain(options).chain(other) {
        draft.mapped(taken, &setting);
    }
    form
}

fn refuse(draft: &mut Draft, taken: Taken, help: &str) {
    if taken.is_placeholder(draft.flavour) {
        refuse_placeholder(draft, taken);
    } else {
        draft.refuse(taken, "is a converter that Postrider does not have", help);
    }
}

/// Default: Debezium Server's, or the Connect worker's.
fn absent(draft: &mut Draft, side: &str) -> (ConverterFormat, &'static str) {
    let option = format!("{side}.converter");
    if draft.flavour == Flavour::Server {
        let enabled = draft.peek("converter.schemas.enable").is_none_or(|it| it != "false");
        return (json(enabled), "Debezium Server's default");
    }
    let is_struct = draft.setting("format.expand_json") == Some("true")
        || draft.setting("route.envelope").is_some();
    let hint = draft.peek(&format!("{option}.schemas.enable")).map(|hint| hint != "false");
    let (form, said) = match side {
        _ if hint == Some(true) => (json(true), "JsonConverter with schemas"),
        _ if hint == Some(false) => (json(false), "JsonConverter without schemas"),
        "value" if is_struct => (json(false), "JsonConverter without schemas"),
        _ => (RAW, "StringConverter"),
    };
    let note = format!("is not set, so the worker's default applies: {said} is assumed");
    let help = format!("set format.{side} to raw, json or json_schema as the worker's file says");
    draft.assume(&option, &note, Some(&help));
    (form, "assumed, since the file names no converter")
}

const fn json(schemas: bool) -> ConverterFormat {
    ConverterFormat { word: if schemas { "json_schema" } else { "json" }, bytes: Bytes::Encoded }
}

/// Format and the options that decided it, or the fix.
fn form(
    draft: &mut Draft,
    side: &str,
    class: &str,
) -> Result<(ConverterFormat, Vec<Taken>), &'static str> {
    let prefix = format!("{side}.converter.");
    match simple_class(class) {
        "StringConverter" | "simplestring" => Ok((STRING, Vec::new())),
        "JsonConverter" | "json" | "jsonbytearray" => Ok(json_form(draft, &prefix)),
        "ByteArrayConverter" => Ok((RAW, Vec::new())),
        "BinaryDataConverter" | "ByteBufferConverter" | "binary" => {
            let Some(delegate) = draft.take(&format!("{prefix}delegate.converter.type")) else {
                return Ok((RAW, Vec::new()));
            };
            let prefix = format!("{prefix}delegate.converter.type.");
            let (form, mut options) = match simple_class(delegate.text()) {
                "StringConverter" => (STRING, Vec::new()),
                "JsonConverter" => json_form(draft, &prefix),
                _ => {
                    let help = "write StringConverter or JsonConverter";
                    draft.refuse(delegate, "is a converter that Postrider does not have", help);
                    return Ok((RAW, Vec::new()));
                }
            };
            options.push(delegate);
            Ok((ConverterFormat { bytes: Bytes::Raw, ..form }, options))
        }
        "CloudEventsConverter" | "cloudevents" => {
            Err("remove it here; afterwards format.value = \"cloudevents_structured\" or \
             \"cloudevents_binary\" writes CloudEvents, with attributes of the row")
        }
        name if ["Avro", "avro", "Protobuf", "protobuf", "JsonSchema"]
            .iter()
            .any(|it| name.contains(it)) =>
        {
            Err(
                "Postrider registers no schemas: write the encoded bytes into a bytea column, and name \
                 ByteArrayConverter here",
            )
        }
        _ => Err(
            "the choices are StringConverter, JsonConverter, ByteArrayConverter and Debezium's \
                  BinaryDataConverter",
        ),
    }
}

fn json_form(draft: &mut Draft, prefix: &str) -> (ConverterFormat, Vec<Taken>) {
    let own = draft.take(&format!("{prefix}schemas.enable"));
    // Debezium Server's `format.schemas.enable` applies to key and value.
    let common = draft.peek("converter.schemas.enable").map(str::to_owned);
    let said = own.as_ref().map(|taken| taken.text().to_owned()).or(common);
    let enabled = !said.is_some_and(|said| said.eq_ignore_ascii_case("false"));
    (json(enabled), own.into_iter().collect())
}

/// Headers are plain text, as SimpleHeaderConverter writes them.
fn header(draft: &mut Draft) {
    let note = "headers are sent as plain text; JsonConverter puts quotes, or a schema, around it";
    let help = "a consumer that parses headers as JSON must accept them unchanged";
    let word = draft.take("header.converter");
    let class = draft.take("header.converter.class");
    let plain = ["SimpleHeaderConverter", "StringConverter", "ByteArrayConverter"];
    let said = class.iter().chain(&word).next().map(|taken| simple_class(taken.text()).to_owned());
    let is_plain = said.as_ref().is_some_and(|said| plain.contains(&said.as_str()));
    for taken in class.into_iter().chain(word) {
        if is_plain {
            draft.not_needed(taken, "headers are the columns' text");
        } else {
            draft.changed(taken, note, Some(help));
        }
    }
    if said.is_none() && draft.flavour == Flavour::Server {
        draft.assume("debezium.format.header", note, Some(help));
    }
}

fn bytes(draft: &mut Draft, key: ConverterFormat, value: ConverterFormat) {
    let setting = "format.bytea";
    if let Some(taken) = draft.take("binary.handling.mode") {
        let word = match taken.text().to_ascii_lowercase().as_str() {
            "bytes" => None,
            "base64" => Some("base64"),
            "base64-url-safe" => Some("base64url"),
            "hex" => Some("hex"),
            _ => {
                let help = "the choices are bytes, base64, base64-url-safe, hex";
                return draft.refuse(taken, "is not one of its choices", help);
            }
        };
        if let Some(word) = word {
            return draft.map(taken, setting, text(word));
        }
        draft.mapped(taken, setting);
    }
    match (key.bytes, value.bytes) {
        (Bytes::Raw, Bytes::Encoded) | (Bytes::Encoded, Bytes::Raw) => draft.refuse_setting(
            "format.key",
            "writes bytes in another way than value.converter, and format.bytea is for both",
            Some("give both the same converter"),
        ),
        (Bytes::Raw, _) | (_, Bytes::Raw) => {
            draft.set(setting, text("raw"), "BinaryDataConverter: bytes stay bytes");
        }
        _ => draft.set(setting, text("encoded"), "bytes are written as the converter does"),
    }
}
