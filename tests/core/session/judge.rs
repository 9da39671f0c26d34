//! The referee: knows what was written, sees every append and every acknowledgement.

use std::collections::{BTreeSet, HashMap};

use postrider::route::{LSN_HEADER, OwnedRecord};

use crate::session::broker::DEAD_LETTERS;
use crate::session::history::{Fate, History, Row};
use crate::session::relay::Routes;

/// A guarantee that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// `G1` to `G6`, `G8`, or `phantom`, `bytes`, `stuck`, `error`, `assertion`.
    pub(crate) guarantee: &'static str,
    pub(crate) what: String,
}

impl Violation {
    pub(crate) fn new(guarantee: &'static str, what: impl Into<String>) -> Self {
        Self { guarantee, what: what.into() }
    }
}

/// Where a row has been stored so far.
#[derive(Debug, Clone, Copy, Default)]
struct Stored {
    in_topic: bool,
    in_dead_letters: bool,
}

/// Everything that ever reached the brokers.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    stored: HashMap<usize, Stored>,
    /// Topic and key -> the newest first occurrence.
    newest: HashMap<(String, String), (usize, usize)>,
    /// Appends that the history must still explain; the broker knows no history.
    appended: Vec<OwnedRecord>,
    /// By which routes each transaction was delivered.
    routed: HashMap<usize, Option<Routes>>,
    pub(crate) duplicates: usize,
    pub(crate) records: usize,
    /// Whether a second record of a row is a violation.
    pub(crate) exactly_once: bool,
    /// Rows that the sessions of this process have handed over, and that it does not know to be acknowledged.
    sent: BTreeSet<usize>,
}

impl Judge {
    pub(crate) fn new(exactly_once: bool) -> Self {
        Self { exactly_once, ..Self::default() }
    }

    /// A record is in a topic.
    pub(crate) fn appended(&mut self, record: &OwnedRecord) {
        self.appended.push(record.clone());
    }

    /// Explains every new record by a committed row. To be called after each step.
    pub(crate) fn examine(&mut self, history: &History) -> Result<(), Violation> {
        for record in std::mem::take(&mut self.appended) {
            let id = record.headers.iter().find(|(name, _)| name == "id");
            let id = id.and_then(|(_, value)| value.as_deref()).unwrap_or_default();
            let id = String::from_utf8_lossy(id).into_owned();
            let unknown = || Violation::new("phantom", format!("nobody committed `{id}`"));
            let index = *history.by_id.get(&id).ok_or_else(unknown)?;
            let row = &history.rows[index];
            let (transaction, number) = row.order;
            let commit_lsn = history.transactions[transaction].commit_lsn;
            let position = format!("{commit_lsn:016X}.{number:010}");
            let header = record.headers.iter().find(|(name, _)| name == LSN_HEADER);
            if header.and_then(|(_, value)| value.as_deref()) != Some(position.as_bytes()) {
                let what = format!("{id} does not say that it stands at {position}");
                return Err(Violation::new("G2", what));
            }
            self.explain(index, row, &record)?;
        }
        Ok(())
    }

    fn explain(&mut self, index: usize, row: &Row, record: &OwnedRecord) -> Result<(), Violation> {
        self.records += 1;
        let stored = self.stored.entry(index).or_default();
        if record.topic == DEAD_LETTERS {
            if row.fate == Fate::Deliver {
                return Err(Violation::new("G4", format!("{} was dead-lettered", row.id)));
            }
            if std::mem::replace(&mut stored.in_dead_letters, true) && self.exactly_once {
                return Err(Violation::new("G6", format!("{} was dead-lettered twice", row.id)));
            }
            return Ok(());
        }
        let is_topic_of = |routes: &Routes| {
            let kind = record.topic.strip_prefix(routes.prefix());
            kind.is_some() && kind == row.aggregate_type
        };
        let by = Routes::ALL.into_iter().find(is_topic_of);
        let same = by.is_some()
            && row.key.as_deref().map(str::as_bytes) == record.key.as_deref()
            && record.value.as_deref() == Some(row.payload.as_bytes());
        if !same {
            return Err(Violation::new("bytes", format!("{} arrived altered", row.id)));
        }
        if stored.in_topic && self.exactly_once {
            return Err(Violation::new("G6", format!("{} is there twice", row.id)));
        }
        let before = self.routed.insert(row.order.0, by).unwrap_or(by);
        if before != by && self.exactly_once {
            let what = format!("the transaction of {} is routed in two ways", row.id);
            return Err(Violation::new("G6", what));
        }
        self.duplicates += usize::from(stored.in_topic);
        let is_first = !std::mem::replace(&mut stored.in_topic, true);
        let Some(key) = row.key.clone().filter(|_| is_first) else { return Ok(()) };
        let place = self.newest.entry((record.topic.clone(), key)).or_default();
        if row.order < *place {
            let what = format!("{} came after {place:?}, a later row of its key", row.id);
            return Err(Violation::new("G2", what));
        }
        *place = row.order;
        Ok(())
    }

    /// Postgres is told `settled`.
    pub(crate) fn acknowledged(&self, settled: u64, history: &History) -> Result<(), Violation> {
        // A row is lost once the end of its commit is acknowledged; a position inside the commit
        // record is no business of ours either.
        let reached = |row: &&Row| history.transactions[row.order.0].commit_lsn < settled;
        let behind = history.rows.iter().take_while(reached);
        let lost = behind.enumerate().find(|(index, row)| !self.is_delivered(*index, row));
        match lost {
            None => Ok(()),
            Some((_, row)) => {
                Err(Violation::new("G1", format!("{settled} told with {} unconfirmed", row.id)))
            }
        }
    }

    /// The relay handed over something of these rows.
    pub(crate) fn sent(&mut self, ids: impl IntoIterator<Item = String>, history: &History) {
        self.sent.extend(ids.into_iter().filter_map(|id| history.by_id.get(&id)));
    }

    /// Everything before `confirmed` is acknowledged, as far as this process can know.
    pub(crate) fn known(&mut self, confirmed: u64, history: &History) {
        self.sent.retain(|row| history.end_of(*row) > confirmed);
    }

    /// The process is killed: what it knew is forgotten.
    pub(crate) fn forget(&mut self) {
        self.sent.clear();
    }

    /// The relay ends in good order: the next start repeats nothing.
    pub(crate) fn ended_well(
        &mut self,
        confirmed: u64,
        history: &History,
    ) -> Result<(), Violation> {
        self.known(confirmed, history);
        if self.exactly_once {
            // What is delivered is covered by progress, acknowledged or not.
            let sent = std::mem::take(&mut self.sent);
            let is_missing = |row: &usize| !self.is_delivered(*row, &history.rows[*row]);
            self.sent = sent.into_iter().filter(is_missing).collect();
        }
        match self.sent.first() {
            None => Ok(()),
            Some(row) => {
                let id = &history.rows[*row].id;
                Err(Violation::new("G8", format!("{id} was sent and is not acknowledged")))
            }
        }
    }

    /// At the end of a run in which everything healed.
    pub(crate) fn all_delivered(&self, history: &History) -> Result<(), Violation> {
        let mut rows = history.rows.iter().enumerate();
        match rows.find(|(index, row)| !self.is_delivered(*index, row)) {
            None => Ok(()),
            Some((_, row)) => Err(Violation::new("G4", format!("{} is nowhere", row.id))),
        }
    }

    fn is_delivered(&self, index: usize, row: &Row) -> bool {
        let stored = self.stored.get(&index).copied().unwrap_or_default();
        if row.fate == Fate::Deliver { stored.in_topic } else { stored.in_dead_letters }
    }
}
