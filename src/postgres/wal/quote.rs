//! Quotes names and strings for SQL, whatever the server's settings, and writes the replication
//! command that starts a stream.

use super::error::WalError;

/// Always quoted, so that case and keywords do not matter.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A backslash makes it an `E''` literal, so that `standard_conforming_strings` does not matter.
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
/// `messages`.
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
