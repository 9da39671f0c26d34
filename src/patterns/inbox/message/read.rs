//! Reads the parts of a message from its record. Invariant: headers come before members of the
//! value. An empty or null part counts as absent. A malformed part is an error, even if it is
//! optional.

use std::fmt::Write as _;

use serde_json::value::RawValue;
use uuid::Uuid;

use postrider_core::record::StoredRecord;

use super::format::{
    AGGREGATE_TYPE_HEADERS, EVENT_TYPE_HEADERS, EventTypeFallback, ID_HEADERS, KeyFormat,
    MessageFormat, SEQUENCE_HEADERS, TEXT_ID_NAMESPACE,
};
use super::value::{Body, Members, WRAPPED, members, scalar};
use super::{InvalidMessage, Message};

const UUID_BYTES: usize = 36;

pub(super) fn parts(
    record: &StoredRecord,
    format: &MessageFormat,
) -> Result<Message, InvalidMessage> {
    let body = Body::read(record, format)?;
    let fields = Fields { record, members: &body.members };
    let (id_header, id) = fields.required(format.id_header.as_deref(), &ID_HEADERS)?;
    let (sequence_header, sequence) =
        fields.find(format.sequence_header.as_deref(), &SEQUENCE_HEADERS)?;
    let sequence = sequence.map(|number| {
        let wanted = "a whole number of 64 bits";
        number.parse().map_err(|_| malformed(sequence_header, wanted))
    });
    Ok(Message {
        id: marker(&id, record, format).ok_or_else(|| {
            malformed(id_header, "a UUID; `MessageFormat::text_ids` is for other ids")
        })?,
        event_type: fields.event_type(format)?,
        aggregate_type: fields
            .find(format.aggregate_type_header.as_deref(), &AGGREGATE_TYPE_HEADERS)?
            .1,
        aggregate_id: key(record.key.as_deref(), format.key)?,
        sequence: sequence.transpose()?,
        payload: body.payload,
        bytes: body.bytes,
        record: StoredRecord::default(),
    })
}

fn malformed(field: &str, wanted: &'static str) -> InvalidMessage {
    InvalidMessage::Malformed { field: field.to_owned(), wanted }
}

/// `None` if the id is not a UUID and must be one.
fn marker(id: &str, record: &StoredRecord, format: &MessageFormat) -> Option<Uuid> {
    if !format.has_text_ids {
        return Uuid::try_parse(id).ok();
    }
    let uuid = Uuid::try_parse(id).ok().filter(|_| id.len() == UUID_BYTES);
    // Topic names contain no slash, so the name is unambiguous.
    let of_text = || Uuid::new_v5(&TEXT_ID_NAMESPACE, format!("{}/{id}", record.topic).as_bytes());
    Some(uuid.unwrap_or_else(of_text))
}

/// First the headers, then the members of the value.
struct Fields<'r> {
    record: &'r StoredRecord,
    members: &'r Members<'r>,
}

impl Fields<'_> {
    /// First name that is present and not empty, or the missing name.
    fn find<'n>(
        &self,
        set: Option<&'n str>,
        usual: &[&'n str],
    ) -> Result<(&'n str, Option<String>), InvalidMessage> {
        let usual_name = usual.first().copied();
        let Some(wanted) = set.or(usual_name) else { unreachable!("each field has a name") };
        let names = || set.into_iter().chain(usual.iter().copied().filter(|_| set.is_none()));
        for name in names() {
            let Some(bytes) = self.record.header(name) else { continue };
            let text = str::from_utf8(bytes).map_err(|_| malformed(name, "UTF-8"))?;
            if !text.is_empty() {
                return Ok((name, Some(text.to_owned())));
            }
        }
        for name in names() {
            let Some(member) = self.members.get(name) else { continue };
            let text = scalar(member).ok_or_else(|| malformed(name, "a string or a number"))?;
            if !text.is_empty() {
                return Ok((name, Some(text)));
            }
        }
        Ok((wanted, None))
    }

    fn required<'n>(
        &self,
        set: Option<&'n str>,
        usual: &[&'n str],
    ) -> Result<(&'n str, String), InvalidMessage> {
        let (name, text) = self.find(set, usual)?;
        Ok((name, text.ok_or_else(|| InvalidMessage::Missing(name.to_owned()))?))
    }

    fn event_type(&self, format: &MessageFormat) -> Result<String, InvalidMessage> {
        let set = format.event_type_header.as_deref();
        let (name, found) = self.find(set, &EVENT_TYPE_HEADERS)?;
        let fallback = || match format.event_type_fallback.as_ref()? {
            EventTypeFallback::Topic => Some(self.record.topic.clone()),
            EventTypeFallback::Fixed(event_type) => Some(event_type.clone()),
        };
        found.or_else(fallback).ok_or_else(|| InvalidMessage::Missing(name.to_owned()))
    }
}

fn key(key: Option<&[u8]>, format: KeyFormat) -> Result<String, InvalidMessage> {
    let Some(key) = key else { return Ok(String::new()) };
    match format {
        KeyFormat::Text => {
            let text = str::from_utf8(key).map_err(|_| InvalidMessage::Key { wanted: "UTF-8" })?;
            Ok(text.to_owned())
        }
        KeyFormat::Json => {
            let json: Option<&RawValue> = serde_json::from_slice(key).ok();
            let wanted = "a JSON string or number";
            json.and_then(scalar).ok_or(InvalidMessage::Key { wanted })
        }
        KeyFormat::ConnectJson => {
            let wrapped = members(key, WRAPPED).ok();
            let payload = wrapped.and_then(|members| scalar(members.get("payload")?));
            payload.ok_or(InvalidMessage::Key { wanted: WRAPPED })
        }
        KeyFormat::Bytes => {
            let mut text = String::from("\\x");
            for byte in key {
                let _ = write!(text, "{byte:02x}");
            }
            Ok(text)
        }
    }
}
