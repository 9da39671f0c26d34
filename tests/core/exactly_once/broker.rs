//! Kafka: the transaction coordinator, the leaders of the partitions, and what is under way to them.
//!
//! Input: requests, each at the moment in which a broker handles it. Output: the new state and the
//! answer. Invariant: this follows the first version of Kafka's transaction protocol, which
//! librdkafka 2.12 speaks: the epoch changes when a producer is fenced, not with each transaction.
//! Facts are from `TransactionCoordinator.scala` and `ProducerStateManager.java`.

use crate::exactly_once::stream::{self, Place};
use crate::exactly_once::violation::Violation;

/// Number of a producer's incarnation under the one transactional id; 0 is before the first.
pub type Epoch = u8;

/// Two partitions of data and the one of progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Partition {
    A,
    B,
    Progress,
}

impl Partition {
    pub const ALL: [Self; 3] = [Self::A, Self::B, Self::Progress];

    pub const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// How a transaction is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum End {
    #[default]
    Commit,
    Abort,
}

/// Where the coordinator stands with the one transactional id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Empty,
    Ongoing,
    /// The outcome is decided and on disk; markers are still to be written.
    PreparedCommit,
    PreparedAbort,
    CompleteCommit,
    CompleteAbort,
}

impl Phase {
    pub const ALL: [Self; 6] = [
        Self::Empty,
        Self::Ongoing,
        Self::PreparedCommit,
        Self::PreparedAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
    ];
}

/// The transaction coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coordinator {
    pub epoch: Epoch,
    pub phase: Phase,
    /// Those in the ongoing transaction; once it is decided, those whose marker is to be written.
    pub partitions: u8,
}

impl Coordinator {
    pub fn is_prepared(self) -> bool {
        matches!(self.phase, Phase::PreparedCommit | Phase::PreparedAbort)
    }

    /// InitProducerId: a transaction that is open is aborted, one that is ending is waited for;
    /// only then there is an answer. `None`: ask again.
    pub fn fence(&mut self) -> Option<Epoch> {
        if self.is_prepared() || self.expire() {
            return None;
        }
        self.epoch += 1;
        self.phase = Phase::Empty;
        Some(self.epoch)
    }

    /// Aborts the ongoing transaction under a new epoch: its producer is gone, or took too long.
    pub fn expire(&mut self) -> bool {
        let ongoing = self.phase == Phase::Ongoing;
        if ongoing {
            self.epoch += 1;
            self.phase = Phase::PreparedAbort;
        }
        ongoing
    }

    /// AddPartitionsToTxn. `false`: not now, or never for this epoch.
    pub fn enlist(&mut self, epoch: Epoch, partition: Partition) -> bool {
        if epoch != self.epoch || self.is_prepared() {
            return false;
        }
        self.phase = Phase::Ongoing;
        self.partitions |= partition.bit();
        true
    }

    /// EndTxn. `true`: done, or done before. It is answered when the outcome is decided, before the
    /// markers are written. Nothing here tells one transaction of an epoch from the next.
    pub fn end(&mut self, epoch: Epoch, end: End) -> bool {
        let (prepared, complete) = match end {
            End::Commit => (Phase::PreparedCommit, Phase::CompleteCommit),
            End::Abort => (Phase::PreparedAbort, Phase::CompleteAbort),
        };
        if epoch != self.epoch {
            return false;
        }
        if self.phase == Phase::Ongoing {
            self.phase = prepared;
            return true;
        }
        self.phase == complete
    }

    /// Notes that a partition has its marker.
    pub fn marked(&mut self, partition: Partition) {
        self.partitions &= !partition.bit();
        if self.partitions == 0 {
            self.phase = match self.phase {
                Phase::PreparedCommit => Phase::CompleteCommit,
                _ => Phase::CompleteAbort,
            };
        }
    }

    /// Whether the partition takes part in the ongoing transaction of this epoch.
    fn vouches(self, epoch: Epoch, partition: Partition) -> bool {
        let enlisted = self.partitions & partition.bit() != 0;
        self.phase == Phase::Ongoing && self.epoch == epoch && enlisted
    }
}

/// Records of an undecided transaction that a leader holds at most.
pub const PENDING: usize = 3;

/// The leader of a partition. A record of data is the place of its row; a record of progress is how
/// many places are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leader {
    /// The highest epoch that wrote here, records or markers.
    pub epoch: Epoch,
    /// Records without a marker behind them, in order; 0 for none.
    pub pending: [Place; PENDING],
    /// What a reader of committed records has seen: the set of rows, or the newest progress.
    pub committed: u8,
}

impl Leader {
    pub fn is_clean(self) -> bool {
        self.pending[0] == 0
    }

    /// Produce. `false`: refused. `vouched`: whether the coordinator, asked by this leader when it
    /// knows of no open transaction here, says that there is one (Kafka 3.6 and later).
    pub fn store(&mut self, epoch: Epoch, record: Place, vouched: bool) -> bool {
        let room = self.pending.iter().position(|&pending| pending == 0);
        let (false, Some(free)) = (epoch < self.epoch, room) else { return false };
        if self.is_clean() && !vouched {
            return false;
        }
        self.epoch = epoch;
        self.pending[free] = record;
        true
    }

    /// Writes the marker, which decides about every pending record, whoever wrote it.
    fn mark(&mut self, epoch: Epoch, partition: Partition, end: End) -> Result<(), Violation> {
        self.epoch = self.epoch.max(epoch);
        let pending = std::mem::take(&mut self.pending);
        if end == End::Abort {
            return Ok(());
        }
        for record in pending.into_iter().filter(|&record| record != 0) {
            if partition == Partition::Progress {
                self.committed = record;
                continue;
            }
            let row = 1 << (record - 1);
            if self.committed & row != 0 {
                return Err(Violation::Duplicate);
            }
            if self.committed > row {
                return Err(Violation::Reordered);
            }
            self.committed |= row;
        }
        Ok(())
    }
}

/// EndTxn under way. The client library sends it again by itself when an answer does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct EndTxn {
    pub epoch: Epoch,
    pub end: End,
    /// The relay that hears the answer; none once its connection is gone.
    pub hears: Option<u8>,
}

/// The brokers and the network before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kafka {
    pub coordinator: Coordinator,
    /// By [`Partition`].
    pub leaders: [Leader; 3],
    /// Requests to end a transaction that may still be handled, in any order, or never.
    pub end_txns: [Option<EndTxn>; 2],
    /// One record for each partition, sent by a session that is gone or has given it up.
    pub late: [Option<(Epoch, Place)>; 3],
}

impl Kafka {
    pub fn leader(&self, partition: Partition) -> Leader {
        self.leaders[partition as usize]
    }

    /// Produce arrives.
    pub fn store(
        &mut self,
        epoch: Epoch,
        partition: Partition,
        record: Place,
        verifies: bool,
    ) -> bool {
        let vouched = !verifies || self.coordinator.vouches(epoch, partition);
        self.leaders[partition as usize].store(epoch, record, vouched)
    }

    /// The coordinator's marker arrives.
    pub fn mark(&mut self, partition: Partition) -> Result<(), Violation> {
        let Coordinator { epoch, phase, .. } = self.coordinator;
        let end = if phase == Phase::PreparedCommit { End::Commit } else { End::Abort };
        self.coordinator.marked(partition);
        self.leaders[partition as usize].mark(epoch, partition, end)
    }

    /// Sends EndTxn if the network has room for it.
    pub fn send_end(&mut self, request: EndTxn) -> bool {
        let free = self.end_txns.iter_mut().find(|slot| slot.is_none());
        let room = free.map(|slot| *slot = Some(request)).is_some();
        self.end_txns.sort_unstable();
        room
    }

    /// Takes a request to end a transaction out of the network.
    pub fn take_end(&mut self, at: usize) {
        self.end_txns[at] = None;
        self.end_txns.sort_unstable();
    }

    /// A relay's connection is gone: what it sent is still under way, the answers are not.
    pub fn hang_up(&mut self, relay: u8) {
        for request in self.end_txns.iter_mut().flatten() {
            if request.hears == Some(relay) {
                request.hears = None;
            }
        }
        self.end_txns.sort_unstable();
    }

    /// Forgets what is under way but can change nothing any more: two states that differ in it
    /// alone are one.
    pub fn forget(&mut self, verifies: bool) {
        let current = self.coordinator.epoch;
        for at in [0, 1] {
            if self.end_txns[at].is_some_and(|request| request.epoch != current) {
                self.take_end(at);
            }
        }
        for at in [0, 1, 2] {
            let Some((epoch, _)) = self.late[at] else { continue };
            let leader = self.leaders[at];
            let unknown = verifies && epoch < current && leader.is_clean();
            if epoch < leader.epoch || unknown {
                self.late[at] = None;
            }
        }
    }

    /// The rows that are committed, or will be though every process dies now.
    pub fn decided_rows(&self) -> u8 {
        let mut rows = 0;
        for partition in [Partition::A, Partition::B] {
            let leader = self.leader(partition);
            rows |= leader.committed;
            if self.is_decided(partition) {
                let pending = leader.pending.iter().filter(|&&place| place != 0);
                rows |= pending.fold(0, |rows, place| rows | 1 << (place - 1));
            }
        }
        rows & stream::ROWS
    }

    /// How far progress goes, in the same sense.
    pub fn decided_progress(&self) -> Place {
        let leader = self.leader(Partition::Progress);
        let newest = leader.pending.iter().rev().find(|&&record| record != 0);
        match newest {
            Some(&newest) if self.is_decided(Partition::Progress) => newest,
            _ => leader.committed,
        }
    }

    fn is_decided(&self, partition: Partition) -> bool {
        let Coordinator { phase, partitions, .. } = self.coordinator;
        phase == Phase::PreparedCommit && partitions & partition.bit() != 0
    }
}
