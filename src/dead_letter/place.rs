//! Where a record lies in a topic.
//!
//! Enters and leaves: text, `PARTITION:OFFSET`. Pure. Called by the rest of the room, and by whoever
//! asks an operator for one.

use std::fmt;
use std::str::FromStr;

/// Where a record lies in the dead-letter topic. Prints as `PARTITION:OFFSET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// From 0.
    pub partition: i32,
    /// From 0.
    pub offset: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.partition, self.offset)
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (partition, offset) = text.split_once(':').ok_or(())?;
        if !plain(partition) || !plain(offset) {
            return Err(());
        }
        let place = (partition.parse(), offset.parse());
        let (Ok(partition), Ok(offset)) = place else { return Err(()) };
        Ok(Self { partition, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_as_it_prints_and_nothing_else_is_one() {
        let place = Place { partition: 3, offset: 17 };
        assert_eq!((place.to_string().as_str(), "3:17".parse()), ("3:17", Ok(place)));
        for wrong in ["", "3", "3:", ":17", "+3:17", "3:-17", "3:17:1", "99999999999:1"] {
            assert_eq!(wrong.parse::<Place>(), Err(()), "{wrong}");
        }
    }
}
