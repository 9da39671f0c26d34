//! Remembers the logged changes of the publication, so that one process logs each change only once.

use std::sync::{Arc, Mutex, PoisonError};

use crate::audit;
use postrider_core::gate::Warning;
use postrider_core::lsn::Lsn;

#[derive(Debug, Clone, Default)]
pub(super) struct PublicationChanges(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    /// Transaction that wrote the catalog row of the last logged change.
    told: Option<u32>,
    looked: Option<Lsn>,
}

impl PublicationChanges {
    /// Ignores an alteration by `xid` that was logged before.
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

    fn tell(&self, xid: Option<u32>) -> bool {
        self.with(|seen| std::mem::replace(&mut seen.told, xid) != xid)
    }

    /// Returns the end of the WAL at the previous check.
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
