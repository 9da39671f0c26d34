//! Remembers which changes of the publication were logged, so that sessions and the source monitor of one
//! process log each change once.
//!
//! Input: a warning with the id of the transaction that last wrote the publication's row in the catalog;
//! the end of the WAL at each check of the source. Output: the log line if the change is new; the end of
//! the WAL at the check before.

use std::sync::{Arc, Mutex, PoisonError};

use crate::audit;
use postrider_core::gate::Warning;
use postrider_core::lsn::Lsn;

/// See the module. Copies share what they know.
#[derive(Debug, Clone, Default)]
pub(super) struct PublicationChanges(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// What wrote the row, when an alteration was told last.
    told: Option<u32>,
    /// Where the log ended before the last look.
    looked: Option<Lsn>,
}

impl PublicationChanges {
    /// Logs the warning, unless it is of an alteration by `xid` that was told before: the progress says so at
    /// each session until it is written anew, and the watch at each look.
    pub(super) fn warn(&self, warning: &Warning, xid: Option<u32>) {
        let is_alteration = matches!(
            warning,
            Warning::PublicationAltered { .. } | Warning::AlteredMeanwhile { .. }
        );
        if matches!(warning, Warning::TailLost { .. }) {
            audit::tail_lost(warning);
        } else if !is_alteration || self.tell(xid) {
            tracing::warn!(help = warning.hint(), "{warning}");
        }
    }

    /// Takes the alteration by this transaction as told; whether it was not before.
    fn tell(&self, xid: Option<u32>) -> bool {
        self.with(|seen| std::mem::replace(&mut seen.told, xid) != xid)
    }

    /// Notes a look that began when the log ended at `end`, and returns where it ended before the last one.
    pub(super) fn look(&self, end: Lsn) -> Option<Lsn> {
        self.with(|seen| seen.looked.replace(end))
    }

    fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alteration_is_told_once_by_whoever_notices_it() {
        let watch = PublicationChanges::default();
        let session = watch.clone();
        assert!(session.tell(Some(7)) && !watch.tell(Some(7)) && watch.tell(Some(8)));
        assert_eq!(watch.look(Lsn::new(1)), None);
        assert_eq!(session.look(Lsn::new(2)), Some(Lsn::new(1)));
    }
}
