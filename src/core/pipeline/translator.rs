//! Converts frames from a single-byte encoding to UTF-8.
//!
//! A frame is converted once. A row that would be too large in UTF-8 becomes an excerpt (G3).

use std::sync::Arc;

use crate::frame::Frame;
use crate::pgoutput::{Charset, Conversion, Converted, DecodeError, Excerpt};

/// Converts frames and keeps the current one.
#[derive(Debug)]
pub struct Translator {
    charset: Arc<Charset>,
    bytes_max: usize,
    converted: Converted,
    excerpt: Option<Box<Excerpt>>,
    at_hand: Option<Conversion>,
}

impl Translator {
    /// Converts from `charset`; larger messages than `bytes_max` become excerpts.
    pub fn new(charset: Arc<Charset>, bytes_max: usize) -> Self {
        Self { charset, bytes_max, converted: Converted::default(), excerpt: None, at_hand: None }
    }

    /// Drops the current frame.
    pub const fn consume(&mut self) {
        self.at_hand = None;
    }

    /// The frame in UTF-8; kept until [`Translator::consume`].
    pub fn frame<'a>(&'a mut self, frame: Frame<'a>) -> Result<Frame<'a>, DecodeError> {
        // An excerpt was converted when it was made.
        let Frame::Wal { start, sent_us, data } = frame else { return Ok(frame) };
        let conversion = match self.at_hand {
            Some(known) => known,
            None => self.convert(data)?,
        };
        self.at_hand = Some(conversion);
        match conversion {
            Conversion::Same => Ok(frame),
            Conversion::Converted if self.converted.untranslatable.is_empty() => {
                Ok(Frame::Wal { start, sent_us, data: &self.converted.message })
            }
            Conversion::Converted => {
                let Converted { message, untranslatable } = &self.converted;
                Ok(Frame::Untranslatable { start, sent_us, data: message, columns: untranslatable })
            }
            Conversion::TooLong => {
                let Some(excerpt) = &self.excerpt else { unreachable!("it was made") };
                Ok(Frame::Excerpt { start, sent_us, excerpt })
            }
        }
    }

    fn convert(&mut self, data: &[u8]) -> Result<Conversion, DecodeError> {
        let conversion = self.charset.convert(data, self.bytes_max, &mut self.converted)?;
        if conversion == Conversion::TooLong {
            let charset = Some(Arc::clone(&self.charset));
            let mut excerpt = Excerpt::begin(data.len()).in_charset(charset);
            excerpt.take(data)?;
            self.excerpt = Some(Box::new(excerpt));
        }
        Ok(conversion)
    }
}

#[cfg(test)]
mod tests;
