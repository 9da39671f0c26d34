//! Identifies the stream of a dead letter, because several streams may share a topic.
//!
//! A letter that does not name its source never counts as another stream's.

use super::headers::{DATABASE_HEADER, SLOT_HEADER, STREAM_HEADER, SYSTEM_HEADER};
use super::{Header, text};

/// Names of a dead letter's stream, if known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LetterSource {
    /// System identifier.
    pub system: Option<String>,
    /// The database.
    pub database: Option<String>,
    /// The slot.
    pub slot: Option<String>,
    /// The configured name.
    pub stream: Option<String>,
}

/// Relation of a dead letter to a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinship {
    /// Perhaps this stream's: no source, or another system, as after a server upgrade.
    Unknown = 0,
    /// This stream's.
    Own = 1,
    /// Another database or slot of this system, perhaps a former name. The letter counts only for a
    /// row with its id.
    Sibling = 2,
    /// Another stream's.
    Foreign = 3,
}

impl LetterSource {
    pub(crate) fn headers(&self) -> Vec<Header> {
        let Self { system, database, slot, stream } = self;
        let named = [
            (SYSTEM_HEADER, system),
            (DATABASE_HEADER, database),
            (SLOT_HEADER, slot),
            (STREAM_HEADER, stream),
        ];
        let known = named.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        known.map(|(name, value)| text(name, value.as_str())).collect()
    }

    pub(super) fn take(mut take: impl FnMut(&str) -> Option<String>) -> Self {
        Self {
            system: take(SYSTEM_HEADER),
            database: take(DATABASE_HEADER),
            slot: take(SLOT_HEADER),
            stream: take(STREAM_HEADER),
        }
    }

    /// Relation of a letter to this stream, whose configured name may change.
    pub fn kinship(&self, letter: &Self) -> Kinship {
        let differs = |own: &Option<String>, other: &Option<String>| {
            own.as_ref().zip(other.as_ref()).is_some_and(|(own, other)| own != other)
        };
        let is_of_system = !differs(&self.system, &letter.system);
        let is_named_so =
            !differs(&self.database, &letter.database) && !differs(&self.slot, &letter.slot);
        match (is_of_system, is_named_so) {
            (false, false) => Kinship::Foreign,
            (true, false) => Kinship::Sibling,
            (true, true) if letter.database.is_some() => Kinship::Own,
            (_, true) => Kinship::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(system: &str, database: &str, slot: &str) -> LetterSource {
        let [system, database, slot] = [system, database, slot].map(|it| Some(it.to_owned()));
        LetterSource { system, database, slot, stream: None }
    }

    #[test]
    fn a_letter_is_foreign_only_if_system_and_source_differ() {
        let own = source("7", "shop", "postrider");
        for (letter, kinship) in [
            (source("7", "shop", "postrider"), Kinship::Own),
            (LetterSource { stream: Some("a".to_owned()), ..own.clone() }, Kinship::Own),
            (LetterSource { system: None, ..own.clone() }, Kinship::Own),
            (source("8", "shop", "postrider"), Kinship::Unknown),
            (LetterSource::default(), Kinship::Unknown),
            (source("7", "renamed", "postrider"), Kinship::Sibling),
            (source("7", "shop", "former"), Kinship::Sibling),
            (LetterSource { system: None, ..source("7", "shop", "former") }, Kinship::Sibling),
            (source("8", "other", "postrider"), Kinship::Foreign),
            (source("8", "shop", "audit"), Kinship::Foreign),
        ] {
            assert_eq!(own.kinship(&letter), kinship, "{letter:?}");
        }
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        let whole = LetterSource { stream: Some("a".to_owned()), ..source("7", "shop", "s") };
        for source in [whole, LetterSource::default(), source("7", "é", "s")] {
            let mut headers = source.headers().into_iter().peekable();
            let read = LetterSource::take(|wanted| {
                let (_, value) = headers.next_if(|(name, _)| name == wanted)?;
                String::from_utf8(value?).ok()
            });
            assert_eq!(read, source);
        }
    }
}
