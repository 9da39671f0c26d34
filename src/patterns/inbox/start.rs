//! Decides at which offset a partition is read, from the offsets of the database, of Kafka, and of
//! this process.
//!
//! Invariant: a message that the database lacks is not skipped while the topic has it. In doubt,
//! messages are read again, and their markers make this harmless.

use std::collections::BTreeMap;

use rdkafka::consumer::{BaseConsumer, ConsumerContext};
use rdkafka::error::KafkaResult;

use super::assignments::{Partition, Unverified};
use super::lag::{LogEnds, committed_offsets, partitions_of};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DatabaseOffsets {
    pub(super) next: BTreeMap<Partition, i64>,
    /// Asked only if there is no row.
    pub(super) has_markers: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) partition: Partition,
    pub(super) epoch: u64,
    pub(super) position: i64,
    /// Offset in the database after the plan's rows are written.
    pub(super) stored: i64,
    pub(super) went_back: bool,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) starts: Vec<Start>,
    pub(super) new_rows: Vec<(Partition, i64)>,
    /// Rows beyond the end of their log: the old offset and the new one.
    pub(super) resets: Vec<(Partition, i64, i64)>,
}

#[derive(Debug, Clone, Copy)]
struct Facts {
    row: Option<i64>,
    /// Next offset in this process, or else the group's offset.
    reached: Option<i64>,
    /// Highest known offset that the database has had.
    known: Option<i64>,
    /// Whether the group's offset replaces a row: the database is older than these rows.
    adopts: bool,
    low: i64,
    high: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finding {
    Fits,
    WentBack,
    /// The group has an offset, and the database has no row.
    Unknown,
    Recreated,
    /// The database has an offset, and the group has none: it has expired, or the topic was created
    /// again.
    Forgotten,
}

impl Plan {
    /// Omits a partition without an answer. `may_adopt` means that this process has seen no row:
    /// afterwards a missing row was lost.
    pub(super) fn make<C: ConsumerContext>(
        consumer: &BaseConsumer<C>,
        topics: &[String],
        partitions: Vec<Unverified>,
        (database, may_adopt): (&DatabaseOffsets, bool),
    ) -> KafkaResult<Self> {
        let names: Vec<Partition> = partitions.iter().map(|it| it.partition.clone()).collect();
        let ends = LogEnds::ask(consumer, &names)?;
        let adopts = may_adopt && database.next.is_empty() && database.has_markers;
        // The first rows are written for all partitions at once, so a missing row means a new
        // partition.
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
    fn decide(&self) -> (i64, i64, Finding) {
        let in_log = self.reached.filter(|next| *next <= self.high);
        let (position, stored, finding) = match self.row {
            // The database's offset belongs to another log.
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
            // Kafka may be behind, so messages are read again.
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
        // librdkafka would also start at the beginning, but without a warning.
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
                "the database is older than the group's offset: it was restored, or a lagging \
                 standby took over; reading the missing messages again"
            ),
            Finding::Unknown => tracing::warn!(
                topic,
                partition,
                known,
                position,
                "the database has no offset of a partition that the group has read; reading the \
                 partition from its beginning"
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

    fn facts(row: Option<i64>, group: Option<i64>) -> Facts {
        Facts { row, reached: group, known: group, ..LOG }
    }

    #[test]
    fn the_database_decides_where_it_is_behind_and_kafka_where_kafka_is() {
        assert_eq!(facts(Some(40), Some(60)).decide(), (40, 40, Finding::WentBack));
        assert_eq!(facts(Some(60), Some(60)).decide(), (60, 60, Finding::Fits));
        assert_eq!(facts(Some(60), Some(40)).decide(), (40, 60, Finding::Fits));
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
        // Kafka was rewound: reading is at 30, and the database had 50 and has 40 now.
        assert_eq!(running(40, 30, 50).decide(), (30, 40, Finding::WentBack));
    }

    proptest! {
        /// Every message below the position is covered by the row, handled here, adopted from the
        /// group at the first start, or not in the log.
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
            prop_assert!(row.is_none_or(|row| kept == row || row > facts.high || reached.is_none()));
            prop_assert!(row.is_some() || kept <= position);
        }
    }
}
