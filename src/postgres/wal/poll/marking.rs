//! Ends a batch: marks its settled rows and commits. Invariant: a row is marked only if it is
//! settled (G1), and only while this batch locks it.

use std::time::Instant;

use super::error::PollError;
use super::{ALIVE_EVERY, POSITIONS, PollStream, State, batch};
use crate::wal::message_channel::remaining;
use crate::wal::{REPLY_TIMEOUT, Transport, WalError};
use postrider_core::lsn::Lsn;

impl<T: Transport> PollStream<T> {
    /// Marks and commits a batch once it is settled completely. Otherwise sends a keepalive.
    pub fn settle(&mut self, settled: Lsn) -> Result<(), WalError> {
        self.settled = self.settled.max(settled);
        let is_open = matches!(self.state, State::Asked(_) | State::Open);
        if self.state == State::Open && self.settled >= self.next {
            self.commit(self.places.len())
        } else if is_open && self.spoke.elapsed() >= ALIVE_EVERY {
            // Its answer follows the unread rest.
            self.ask("SELECT")
        } else {
            Ok(())
        }
    }

    /// Marks the settled rows of an open batch, and leaves the rest unchanged.
    pub fn conclude(&mut self) -> Result<(), WalError> {
        let settled = self.settled.get().saturating_sub(self.first.get()) / POSITIONS;
        let rows = usize::try_from(settled).unwrap_or(usize::MAX).min(self.places.len());
        if rows == 0 || !matches!(self.state, State::Asked(2..) | State::Open) {
            return Ok(());
        }
        self.state = State::Open;
        self.commit(rows)
    }

    fn commit(&mut self, rows: usize) -> Result<(), WalError> {
        let Some(table) = self.tables.get(self.table) else {
            unreachable!("a batch is of a table")
        };
        let parts = batch::by_part(self.places.get(..rows).unwrap_or_default());
        let mut sql = String::new();
        for (part, _, places) in &parts {
            sql += &table.mark(*part, places);
        }
        sql += "COMMIT";
        self.ask(&sql)?;
        let (mut counts, mut tag) = (Vec::new(), Vec::new());
        self.read_answers(&mut counts, &mut tag)?;
        let wanted: Vec<u64> = parts.iter().map(|(_, count, _)| *count).collect();
        self.check_marked(&wanted, &counts)?;
        if tag != b"COMMIT\0" {
            return Err(WalError::Protocol("a batch that was not committed"));
        }
        self.next = Lsn::new(self.first.get() + POSITIONS * rows as u64);
        (self.first, self.keepalive, self.state) = (self.next, Some(self.next), State::Idle);
        self.places.clear();
        let now = Instant::now();
        self.locks.found(self.table, self.polled.held(), now);
        self.schedule.delivered(self.table, self.polled, now);
        Ok(())
    }

    /// Returns the counts of the last query, and its tag.
    fn read_answers(
        &mut self,
        counts: &mut Vec<(u64, u64)>,
        tag: &mut Vec<u8>,
    ) -> Result<(), WalError> {
        const DOING: &str = "marking rows as delivered";
        let deadline = Instant::now().checked_add(REPLY_TIMEOUT);
        while self.unanswered > 0 {
            self.large = None;
            let is_between = self.pass_large()?;
            let channel = self.connection.channel();
            let head = match channel.buffer.head() {
                // A row that is no longer delivered.
                Err(WalError::MessageTooLarge { tag: b'D', bytes, .. }) => {
                    channel.buffer.pass(bytes, 0);
                    continue;
                }
                head => head?.filter(|_| is_between),
            };
            let Some(head) = head else {
                channel.push_out()?;
                if channel.read_available()? == 0 {
                    let left = remaining(deadline, DOING)?;
                    channel.wait(left)?;
                }
                continue;
            };
            if channel.set_aside(head)? {
                continue;
            }
            let is_last = self.unanswered == 1;
            match head.tag {
                b'D' if is_last => {
                    let body = channel.buffer.body(head);
                    counts.push((batch::count(body, 0)?, batch::count(body, 1)?));
                }
                b'C' if is_last => channel.buffer.body(head).clone_into(tag),
                b'E' => return Err(self.refused(head)?),
                b'Z' => self.unanswered -= 1,
                _ => {}
            }
            self.connection.channel().buffer.consume(head);
        }
        Ok(())
    }

    /// Checks that rows were marked as requested, because a trigger may interfere.
    fn check_marked(&self, wanted: &[u64], counts: &[(u64, u64)]) -> Result<(), WalError> {
        let marked = counts.iter().map(|(marked, _)| marked);
        let what = if counts.len() != wanted.len() {
            return Err(WalError::Protocol("a mark without its count"));
        } else if marked.ne(wanted) {
            "some were left out"
        } else if counts.iter().any(|(_, still)| *still > 0) {
            "they have what rows have that wait"
        } else {
            return Ok(());
        };
        Err(PollError::NotMarked { table: self.table_name(), what }.into())
    }

    pub fn finish(mut self) -> Result<Lsn, WalError> {
        self.conclude()?;
        Ok(self.committed())
    }
}
