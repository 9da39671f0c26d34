//! Decides at which offset a partition is read, from what the database has, what Kafka has, and what this
//! process has handled.
//!
//! Input: the consumer's rows in `consumer_offsets`, the group's committed offsets, the ends of the log.
//! Output: for each partition an offset to read from and one that the database has or is to be given; a log
//! line where they do not fit together. Invariant: nothing that the database has not is skipped, while the
//! topic has it; where the answer is not known, messages are read again, which their markers make harmless.

use std::collections::BTreeMap;

use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaResult;

use super::assignments::{Partition, Unverified};
use super::lag::{LogEnds, committed_offsets, partitions_of};

/// What the database has of a consumer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DatabaseOffsets {
    /// Its rows in `consumer_offsets`.
    pub(super) next: BTreeMap<Partition, i64>,
    /// Whether there are markers; asked only where there is no row.
    pub(super) has_markers: bool,
}

/// Where a partition is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) partition: Partition,
    /// The assignment's epoch, for which this was decided.
    pub(super) epoch: u64,
    /// The next offset to read.
    pub(super) position: i64,
    /// What the database has once the plan's rows are written.
    pub(super) stored: i64,
    /// Whether the database has less than it had.
    pub(super) went_back: bool,
}

/// Where all partitions are read from, and which rows are written before.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) starts: Vec<Start>,
    /// Rows that are not there.
    pub(super) new_rows: Vec<(Partition, i64)>,
    /// Rows of a log that no longer reaches so far: what they are, and what they become.
    pub(super) resets: Vec<(Partition, i64, i64)>,
}

/// What is known of one partition.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// In the database.
    row: Option<i64>,
    /// The next offset in this process, or else the group's.
    reached: Option<i64>,
    /// The highest offset that the database has had, as far as is known.
    known: Option<i64>,
    /// Whether the group's offset stands for a row: the database is from before there were rows.
    adopts: bool,
    low: i64,
    high: i64,
}

/// How the facts fit together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Fits,
    /// The database is behind.
    WentBack,
    /// The database has no row, and the group has an offset.
    Unknown,
    /// The log ends before the database's offset.
    Recreated,
    /// The database has an offset, and the group has none: it has expired, or the topic was created again and
    /// reaches beyond the database's offset by now.
    Forgotten,
}

impl Plan {
    /// Asks the brokers and decides. A partition of which they say nothing is left out. `may_adopt`: this
    /// process has not seen a row; if it had, the database would have lost it.
    pub(super) fn make<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
        topics: &[String],
        partitions: Vec<Unverified>,
        (database, may_adopt): (&DatabaseOffsets, bool),
    ) -> KafkaResult<Self> {
        let names: Vec<Partition> = partitions.iter().map(|it| it.partition.clone()).collect();
        let ends = LogEnds::ask(consumer, &names)?;
        let adopts = may_adopt && database.next.is_empty() && database.has_markers;
        // The first rows are written for all partitions at once, also those of other members: where there
        // is any row, a partition without one is new to this database.
        let asked = if adopts { partitions_of(consumer, topics)? } else { names };
        let committed = committed_offsets(consumer, &asked)?;
        let mut plan = Self::default();
        if adopts {
            plan.new_rows = committed.iter().map(|(it, next)| (it.clone(), *next)).collect();
        }
        for Unverified { partition, epoch, handled, stored } in partitions {
            let Some((low, high)) = ends.of(&partition) else { continue };
            let group = committed.get(&partition).copied();
            let facts = Facts {
                row: database.next.get(&partition).copied(),
                reached: handled.or(group),
                known: group.max(stored),
                adopts,
                low,
                high,
            };
            plan.add((partition, epoch), facts);
        }
        Ok(plan)
    }

    fn add(&mut self, (partition, epoch): (Partition, u64), facts: Facts) {
        let (position, stored, finding) = facts.decide();
        facts.report(&partition, position, finding);
        match facts.row {
            None => {
                self.new_rows.retain(|(it, _)| *it != partition);
                self.new_rows.push((partition.clone(), stored));
            }
            Some(row) if row > stored => self.resets.push((partition.clone(), row, stored)),
            Some(_) => {}
        }
        let went_back = matches!(finding, Finding::WentBack | Finding::Unknown);
        self.starts.push(Start { partition, epoch, position, stored, went_back });
    }
}

impl Facts {
    /// The offset to read from, the one that the database has then, and how the facts fit.
    fn decide(&self) -> (i64, i64, Finding) {
        let in_log = self.reached.filter(|next| *next <= self.high);
        let (position, stored, finding) = match self.row {
            // Offsets of another log: those of the database say nothing about this one.
            Some(row) if row > self.high => {
                let position = in_log.unwrap_or(self.low);
                (position, position, Finding::Recreated)
            }
            Some(row) if self.reached.is_none() && row > self.low => {
                (self.low, self.low, Finding::Forgotten)
            }
            Some(row) if self.known.is_some_and(|known| known > row) => {
                (self.reached.map_or(row, |next| next.min(row)), row, Finding::WentBack)
            }
            // Kafka may be behind: messages are then read again.
            Some(row) => (self.reached.unwrap_or(row), row, Finding::Fits),
            None if self.adopts => {
                let position = in_log.unwrap_or(self.low);
                (position, position, Finding::Fits)
            }
            None => {
                let is_known = self.known.is_some_and(|known| known > self.low);
                let finding = if is_known { Finding::Unknown } else { Finding::Fits };
                (self.low, self.low, finding)
            }
        };
        // librdkafka would go to the beginning as well, and say nothing.
        (position.max(self.low), stored, finding)
    }

    fn report(&self, (topic, partition): &Partition, position: i64, finding: Finding) {
        let (database, known) = (self.row, self.known);
        match finding {
            Finding::Fits => {}
            Finding::WentBack => tracing::warn!(
                topic,
                partition,
                database,
                known,
                position,
                "the database is behind what was processed: it was restored, or a standby that lagged took \
                 over; reading again what it lacks"
            ),
            Finding::Unknown => tracing::warn!(
                topic,
                partition,
                known,
                position,
                "the database knows nothing of a partition that the group has read; reading it from its \
                 beginning"
            ),
            Finding::Recreated => tracing::warn!(
                topic,
                partition,
                database,
                end = self.high,
                position,
                "the topic ends before the database's offset: it was created again, or brokers lost data"
            ),
            Finding::Forgotten => tracing::warn!(
                topic,
                partition,
                database,
                position,
                "the group has no offset of a partition: it has expired, or the topic was created again; reading \
                 it from its beginning"
            ),
        }
        let wanted = match (finding, self.row) {
            (Finding::WentBack, row) => row,
            (Finding::Fits, _) => self.reached.or(self.row),
            (Finding::Unknown | Finding::Recreated | Finding::Forgotten, _) => None,
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted < self.low) {
            let missing = self.low - wanted;
            tracing::warn!(
                topic,
                partition,
                wanted,
                position,
                missing,
                "the topic no longer has the next messages: its retention has deleted these offsets"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: Facts =
        Facts { row: None, reached: None, known: None, adopts: false, low: 10, high: 100 };

    /// As at an assignment.
    fn facts(row: Option<i64>, group: Option<i64>) -> Facts {
        Facts { row, reached: group, known: group, ..LOG }
    }

    #[test]
    fn the_database_decides_where_it_is_behind_and_kafka_where_kafka_is() {
        assert_eq!(facts(Some(40), Some(60)).decide(), (40, 40, Finding::WentBack));
        assert_eq!(facts(Some(60), Some(60)).decide(), (60, 60, Finding::Fits));
        assert_eq!(facts(Some(60), Some(40)).decide(), (40, 60, Finding::Fits));
        // The group's offsets have expired, or those are of another log.
        assert_eq!(facts(Some(60), None).decide(), (10, 10, Finding::Forgotten));
        assert_eq!(facts(Some(10), None).decide(), (10, 10, Finding::Fits));
    }

    #[test]
    fn a_partition_without_a_row_is_read_from_its_beginning_unless_there_were_no_rows_before() {
        assert_eq!(facts(None, None).decide(), (10, 10, Finding::Fits));
        assert_eq!(facts(None, Some(60)).decide(), (10, 10, Finding::Unknown));
        let adopts = |group| Facts { adopts: true, ..facts(None, group) };
        assert_eq!(adopts(Some(60)).decide(), (60, 60, Finding::Fits));
        assert_eq!(adopts(None).decide(), (10, 10, Finding::Fits));
    }

    #[test]
    fn a_log_that_does_not_reach_so_far_is_another_one() {
        assert_eq!(facts(Some(400), Some(400)).decide(), (10, 10, Finding::Recreated));
        assert_eq!(facts(Some(400), Some(60)).decide(), (60, 60, Finding::Recreated));
        // At its end it is the same.
        assert_eq!(facts(Some(100), Some(100)).decide(), (100, 100, Finding::Fits));
    }

    #[test]
    fn what_retention_has_deleted_is_not_asked_for() {
        assert_eq!(facts(Some(4), Some(7)).decide(), (10, 4, Finding::WentBack));
        assert_eq!(facts(Some(7), Some(4)).decide(), (10, 7, Finding::Fits));
    }

    #[test]
    fn what_was_handled_and_not_stored_is_not_read_again_unless_the_database_went_back() {
        let running = |row, handled, stored| Facts {
            row: Some(row),
            reached: Some(handled),
            known: Some(stored),
            ..LOG
        };
        assert_eq!(running(50, 60, 50).decide(), (60, 50, Finding::Fits));
        assert_eq!(running(40, 60, 50).decide(), (40, 40, Finding::WentBack));
        // Kafka was rewound: reading is at 30 where the database had 50, and it has 40 now.
        assert_eq!(running(40, 30, 50).decide(), (30, 40, Finding::WentBack));
    }

    proptest! {
        /// Below the position everything is in the database, by its own row; or was handled in this process,
        /// with a database that has not gone back; or was taken over from the group at the first start; or
        /// is not in the log.
        #[test]
        fn nothing_that_the_database_lacks_is_skipped(
            row in proptest::option::of(0_i64..120),
            group in proptest::option::of(0_i64..120),
            (handled, stored) in (proptest::option::of(0_i64..120), proptest::option::of(0_i64..120)),
            (low, length) in (0_i64..60, 0_i64..60),
            adopts: bool,
        ) {
            let adopts = adopts && row.is_none() && stored.is_none();
            let (reached, known) = (handled.or(group), group.max(stored));
            let facts = Facts { row, reached, known, adopts, low, high: low + length };
            let (position, kept, _) = facts.decide();
            prop_assert!(position >= low);
            let went_back = known > row;
            let in_database = row.is_some_and(|row| row <= facts.high && position <= row);
            let in_process = !went_back && row.is_some() && Some(position) == reached;
            let taken_over = adopts && Some(position) == reached;
            let of_another_log = row.is_some_and(|row| row > facts.high) && Some(position) == reached;
            prop_assert!(
                position == low || in_database || in_process || taken_over || of_another_log,
                "{facts:?}: {position}"
            );
            // A row only falls for what may be another log, and is never put further than what is read.
            prop_assert!(row.is_none_or(|row| kept == row || row > facts.high || reached.is_none()));
            prop_assert!(row.is_some() || kept <= position);
        }
    }
}
