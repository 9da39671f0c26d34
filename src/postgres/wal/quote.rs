//! Quotes names and strings for SQL, and writes the replication command that starts a stream.
//!
//! `identifier` quotes a name, `literal` quotes a string; the server reads exactly that value,
//! whatever its settings. `start_replication` writes START_REPLICATION for a slot, a publication
//! and a position; its grammar has only plain literals, so it has its own quoting.

use super::error::WalError;

/// A name as an identifier: always quoted, so that case and keywords do not matter.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Text as a string literal. With a backslash it becomes an `E''` literal, so that
/// `standard_conforming_strings` does not matter.
pub fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// The replication command. Its grammar has only plain literals without backslash escapes; the
/// publication option is a list of identifiers inside a literal. Servers before 14 lack the option
/// `messages`, so it is omitted unless requested.
pub(super) fn start_replication(
    slot: &str,
    publication: &str,
    start: postrider_core::lsn::Lsn,
    messages: bool,
) -> String {
    let publication = identifier(publication).replace('\'', "''");
    let messages = if messages { ", messages 'true'" } else { "" };
    format!(
        "START_REPLICATION SLOT {} LOGICAL {start} (proto_version '1', publication_names '{publication}'{messages})",
        identifier(slot),
    )
}

pub(super) fn query_message(text: &[u8]) -> Result<Vec<u8>, WalError> {
    /// The length includes itself and the text's final zero byte.
    const FRAMING_BYTES: usize = 5;
    let length = i32::try_from(text.len() + FRAMING_BYTES)
        .map_err(|_| WalError::Protocol("a command of 2 GiB"))?;
    if text.contains(&0) {
        return Err(WalError::Protocol("a command that contains a NUL"));
    }
    Ok([b"Q", length.to_be_bytes().as_slice(), text, &[0]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_core::lsn::Lsn;

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'b"), "E'a\\\\''b'");
        assert_eq!(
            start_replication("s", "p'\"x", Lsn::new(0x1_0000_0002), false),
            "START_REPLICATION SLOT \"s\" LOGICAL 1/2 (proto_version '1', publication_names '\"p''\"\"x\"')"
        );
    }
}
