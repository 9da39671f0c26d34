//! Selects the encoding in which to request a database's changes.
//!
//! A single-byte encoding's character table is read from this server, because conversions can be
//! replaced and differ between versions. Invariant: nothing is left on the server; for UTF8 and
//! SQL_ASCII no query runs.

use tokio_postgres::SimpleQueryMessage;

use super::connect::Client;
use super::error::ControlError;
use super::inspect::get;
use crate::wal::{StreamEncoding, WalError};

const DOING: &str = "asking for the characters of the database's encoding";

pub(super) const UNTRANSLATABLE: [&str; 2] = ["22P05", "22021"];

const HIGH_BYTES: std::ops::RangeInclusive<u8> = 0x80..=0xFF;

/// UTF-8 bytes in hex.
const CHARACTER: &str = "pg_catalog.encode(pg_catalog.convert( \
    pg_catalog.set_byte(pg_catalog.decode('00', 'hex'), 0, byte), \
    pg_catalog.current_setting('server_encoding')::name, 'UTF8'), 'hex')";

/// Conversion to UTF8 fails in every session at a character that UTF8 lacks, so a single-byte
/// encoding is requested unconverted.
pub async fn stream_encoding(
    client: &Client,
    encoding: &str,
) -> Result<StreamEncoding, ControlError> {
    const WIDTH: &str = "SELECT pg_catalog.pg_encoding_max_length( \
        pg_catalog.pg_char_to_encoding(pg_catalog.current_setting('server_encoding')::name))";
    match encoding {
        "UTF8" => return Ok(StreamEncoding::Utf8),
        "SQL_ASCII" => return Ok(StreamEncoding::Unknown),
        _ => {}
    }
    let row = client.run(DOING, client.sql().query_one(WIDTH, &[])).await?;
    if get::<i32>(&row, 0)? != 1 {
        return Ok(StreamEncoding::Utf8);
    }
    let found = match at_once(client).await? {
        Some(found) => found,
        None => one_by_one(client).await?,
    };
    let mut characters = [None; 128];
    if found.len() != characters.len() {
        let source = WalError::Protocol("the server did not answer with 128 characters");
        return Err(ControlError::Connection { doing: DOING, source });
    }
    for (character, hex) in characters.iter_mut().zip(&found) {
        *character = match hex.as_deref().map(single) {
            Some(None) => return Ok(StreamEncoding::Utf8),
            Some(single) => single,
            None => None,
        };
    }
    Ok(StreamEncoding::own(encoding, characters))
}

/// A block keeps failures out of the server's log; `None` if the role may not run it.
async fn at_once(client: &Client) -> Result<Option<Vec<Option<String>>>, ControlError> {
    const NAME: &str = "postrider.characters";
    let (first, last) = (HIGH_BYTES.start(), HIGH_BYTES.end());
    // A message is one transaction, and the setting ends with it.
    let sql = format!(
        "DO LANGUAGE plpgsql $block$ \
         DECLARE found text := ''; \
         BEGIN \
            FOR byte IN {first}..{last} LOOP \
                BEGIN \
                    found := found || {CHARACTER}; \
                EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN NULL; \
                END; \
                found := found || ','; \
            END LOOP; \
            PERFORM pg_catalog.set_config('{NAME}', found, true); \
         END $block$; \
         SELECT pg_catalog.current_setting('{NAME}')"
    );
    let answer = match client.run(DOING, client.sql().simple_query(&sql)).await {
        // The language does not exist, or not for this role.
        Err(error) if error.is_of(&["42704", "42501"]) => return Ok(None),
        answer => answer?,
    };
    let found = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let one = |hex: &str| (!hex.is_empty()).then(|| hex.to_owned());
    let all = |found: &str| found.strip_suffix(',').map(|all| all.split(',').map(one).collect());
    Ok(found.and_then(all))
}

async fn one_by_one(client: &Client) -> Result<Vec<Option<String>>, ControlError> {
    let sql = format!("SELECT {CHARACTER} FROM (SELECT $1::int AS byte) AS asked");
    let statement = client.run(DOING, client.sql().prepare(&sql)).await?;
    let mut found = Vec::with_capacity(HIGH_BYTES.len());
    for byte in HIGH_BYTES {
        let row = client.run(DOING, client.sql().query_one(&statement, &[&i32::from(byte)])).await;
        found.push(match row {
            Ok(row) => Some(get(&row, 0)?),
            Err(error) if error.is_of(&UNTRANSLATABLE) => None,
            Err(error) => return Err(error),
        });
    }
    Ok(found)
}

/// Character, if it is exactly one and not ASCII.
fn single(hex: &str) -> Option<char> {
    let bytes: Option<Vec<u8>> = hex
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let text = String::from_utf8(bytes?).ok()?;
    let mut characters = text.chars();
    let single = characters.next().filter(|character| !character.is_ascii())?;
    characters.next().is_none().then_some(single)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_character_is_read_and_nothing_else() {
        assert_eq!(single("e282ac"), Some('€'));
        assert_eq!(single("c3a9"), Some('é'));
        for other in ["", "61", "00", "c3a9c3a9", "c3", "e9", "zz"] {
            assert_eq!(single(other), None, "{other}");
        }
    }
}
