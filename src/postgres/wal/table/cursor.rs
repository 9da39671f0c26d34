//! Places between two rows of a table, at which a later session resumes. Invariant: only the last
//! delivered place is kept, so there are as many places as transactions in flight (G3).

use std::collections::VecDeque;

use postrider_core::lsn::Lsn;
use postrider_core::progress::RowCursor;

#[derive(Debug, Default)]
pub(super) struct Ends(VecDeque<(Lsn, RowCursor)>);

impl Ends {
    /// Ends a transaction; without an order there is no place.
    pub(super) fn push(&mut self, end: Lsn, cursor: Option<RowCursor>) {
        assert!(self.0.back().is_none_or(|(last, _)| *last < end), "transactions end one by one");
        self.0.extend(cursor.map(|cursor| (end, cursor)));
    }

    pub(super) fn at(&self, end: Lsn) -> Option<&RowCursor> {
        self.0.iter().rev().find(|(at, _)| *at <= end).map(|(_, cursor)| cursor)
    }

    pub(super) fn settled(&mut self, end: Lsn) {
        while self.0.get(1).is_some_and(|(next, _)| *next <= end) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_is_delivered_the_last_place_is_kept() {
        let cursor = |n: u64| RowCursor {
            table: "public.outbox".to_owned(),
            order_by: vec!["n".to_owned()],
            after: vec![n.to_string()],
        };
        let mut ends = Ends::default();
        ends.settled(Lsn::new(9));
        assert_eq!(ends.at(Lsn::new(9)), None);
        for end in 2..6 {
            ends.push(Lsn::new(end), Some(cursor(end)));
        }
        assert_eq!(ends.at(Lsn::new(1)), None);
        assert_eq!(ends.at(Lsn::new(3)), Some(&cursor(3)));
        ends.settled(Lsn::new(4));
        assert_eq!((ends.0.len(), ends.at(Lsn::new(4))), (2, Some(&cursor(4))));
        ends.settled(Lsn::new(99));
        assert_eq!((ends.0.len(), ends.at(Lsn::new(99))), (1, Some(&cursor(5))));
    }
}
