//! Access to the connection for reading a table's rows. Text has the stream's encoding in both
//! directions, so that rows have the stream's bytes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use super::{Connection, StreamEncoding, TextRow};
use crate::wal::error::WalError;
use crate::wal::message_channel::MessageChannel;
use crate::wal::transport::Transport;
use postrider_core::pgoutput::Charset;

impl<T: Transport> Connection<T> {
    /// The answer arrives over [`Self::channel`], in the stream's encoding.
    pub(in crate::wal) fn send_in_own_encoding(&mut self, sql: &str) -> Result<(), WalError> {
        let StreamEncoding::Own(charset) = self.params.encoding.clone() else {
            return self.send_command(sql).map(|_| ());
        };
        let Some(command) = charset.encode(sql) else {
            return Err(WalError::QueryUntranslatable);
        };
        self.speak(Some(charset))?;
        self.send_query(&command).map(|_| ())
    }

    /// Non-ASCII text of the answer may be damaged.
    pub(in crate::wal) fn query_in_own_encoding(
        &mut self,
        sql: &str,
    ) -> Result<Vec<TextRow>, WalError> {
        self.send_in_own_encoding(sql)?;
        let deadline = Instant::now().checked_add(self.params.reply_timeout);
        self.answer(deadline)
    }

    /// Text in the stream's encoding. A character that it lacks stays UTF-8, and cannot match any
    /// row.
    pub(in crate::wal) fn encoded<'a>(&self, text: &'a str) -> Cow<'a, [u8]> {
        let encoded = self.session.charset.as_ref().and_then(|charset| charset.encode(text));
        encoded.map_or(Cow::Borrowed(text.as_bytes()), Cow::Owned)
    }

    pub(in crate::wal) fn text(&self, bytes: &[u8]) -> String {
        match &self.session.charset {
            None => String::from_utf8_lossy(bytes).into_owned(),
            Some(charset) => charset.text(bytes),
        }
    }

    /// Encoding of the stream, if not UTF-8.
    pub(in crate::wal) fn charset(&self) -> Option<Arc<Charset>> {
        self.session.charset.clone()
    }

    pub(in crate::wal) const fn bytes_read(&self) -> u64 {
        self.session.bytes_read
    }

    pub(in crate::wal) fn buffered(&self) -> usize {
        self.session.buffer.len()
    }

    pub(in crate::wal) const fn channel(&mut self) -> &mut MessageChannel<T> {
        &mut self.session
    }

    #[cfg(test)]
    pub(in crate::wal) fn channel_written(&self) -> Vec<u8>
    where
        T: AsRef<[u8]>,
    {
        self.session.transport.as_ref().to_vec()
    }
}
