//! The result of the comparison. Counts cover all findings; only [`SAMPLES_MAX`] ids and places of
//! each kind are kept.

use postrider_relay::compare::{Entry, IdToken, Kind, Ordered};

pub(super) const SAMPLES_MAX: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// A row that the slot has passed has neither record nor dead letter.
    Lost,
    Duplicated,
    /// A record follows a later record of its key.
    Reordered,
    Phantom,
    /// A record differs from today's routing of its row.
    Different,
    NotUnique,
}

impl Fault {
    pub(super) const ALL: [Self; 6] = [
        Self::Lost,
        Self::Duplicated,
        Self::Reordered,
        Self::Phantom,
        Self::Different,
        Self::NotUnique,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Reordered => "reordered",
            Self::Phantom => "phantom",
            Self::Different => "different",
            Self::NotUnique => "not_unique",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Finding {
    /// `None` until the id is looked up.
    pub(super) id: Option<IdToken>,
    pub(super) topic: Option<u32>,
    pub(super) record: Option<(i32, u64)>,
}

impl Finding {
    pub(super) const fn of_id(id: IdToken) -> Self {
        Self { id: Some(id), topic: None, record: None }
    }

    pub(super) const fn missing(id: IdToken, topic: u32) -> Self {
        Self { id: Some(id), topic: Some(topic), record: None }
    }

    pub(super) fn at(id: IdToken, record: Option<Entry>) -> Self {
        let place = record.map(|record| (record.partition, record.place));
        Self { id: Some(id), topic: record.map(|record| record.topic), record: place }
    }

    pub(super) const fn in_place(record: &Ordered) -> Self {
        let place = (record.partition, record.offset);
        Self { id: None, topic: Some(record.topic), record: Some(place) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Verdict {
    pub(super) rows: u64,
    pub(super) records: u64,
    pub(super) dropped: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) reordered: u64,
    pub(super) phantom: u64,
    pub(super) different: u64,
    pub(super) not_unique: u64,
    /// The slot has not passed these rows, and they have no record.
    pub(super) pending: u64,
    /// Rows whose record the topic may have removed.
    pub(super) unknown: u64,
    /// Rows that arrived only as dead letters.
    pub(super) dead_lettered: u64,
    pub(super) without_row: u64,
    /// Records that may be newer than the snapshot of the tables.
    pub(super) newer: u64,
    pub(super) sent_again: u64,
    pub(super) ordered: u64,
    /// Records whose expected order is unknown.
    pub(super) unordered: u64,
    samples: Vec<(Fault, Finding)>,
}

impl Verdict {
    pub(super) const fn number(&self, fault: Fault) -> u64 {
        match fault {
            Fault::Lost => self.lost,
            Fault::Duplicated => self.duplicated,
            Fault::Reordered => self.reordered,
            Fault::Phantom => self.phantom,
            Fault::Different => self.different,
            Fault::NotUnique => self.not_unique,
        }
    }

    /// `duplicates`: whether duplicates count.
    pub(super) fn is_clean(&self, duplicates: bool) -> bool {
        let counts = |fault: &&Fault| duplicates || **fault != Fault::Duplicated;
        Fault::ALL.iter().filter(counts).all(|fault| self.number(*fault) == 0)
    }

    pub(super) fn samples(&self, fault: Fault) -> impl Iterator<Item = &Finding> {
        self.samples.iter().filter(move |(of, _)| *of == fault).map(|(_, finding)| finding)
    }

    pub(super) const fn count(&mut self, kind: Kind) {
        if kind.is_row() {
            self.rows += 1;
        } else {
            self.records += 1;
        }
        if matches!(kind, Kind::Dropped) {
            self.dropped += 1;
        }
    }

    pub(super) fn find(&mut self, fault: Fault, finding: impl FnOnce() -> Finding) {
        let number = match fault {
            Fault::Lost => &mut self.lost,
            Fault::Duplicated => &mut self.duplicated,
            Fault::Reordered => &mut self.reordered,
            Fault::Phantom => &mut self.phantom,
            Fault::Different => &mut self.different,
            Fault::NotUnique => &mut self.not_unique,
        };
        *number += 1;
        self.sample(fault, finding);
    }

    pub(super) fn sample(&mut self, fault: Fault, finding: impl FnOnce() -> Finding) {
        if self.samples(fault).count() < SAMPLES_MAX {
            self.samples.push((fault, finding()));
        }
    }

    #[cfg(test)]
    pub(super) fn without_samples(self) -> Self {
        Self { samples: Vec::new(), ..self }
    }

    pub(super) fn has_unnamed(&self) -> bool {
        self.samples.iter().any(|(_, finding)| finding.id.is_none())
    }

    /// Sets the id of findings at the place of this record.
    pub(super) fn name(&mut self, record: &Entry) {
        let place = (Some(record.topic), Some((record.partition, record.place)));
        for (_, finding) in &mut self.samples {
            if finding.id.is_none() && (finding.topic, finding.record) == place {
                finding.id = Some(record.id);
            }
        }
    }
}
