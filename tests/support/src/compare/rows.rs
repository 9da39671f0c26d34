//! The rows that all contestants deliver: written once behind a slot, and known byte for byte.
//!
//! Input: a [`Shape`]. Output: rows in the table `outbox`, from a procedure on the server, so that writing costs no
//! round trips; and what the record of each row must be. Invariant: row `n` has the same key, topic and payload in
//! Postgres, in the table that is polled, and here.

use std::fmt::Write as _;

use crate::chance::Chance;
use crate::sql::Sql;

/// The slot that is copied for each drain; it is never read itself.
pub(super) const BASE_SLOT: &str = "compare_base";
/// The table of the contestant that polls; its rows have their order in a column.
pub(super) const POLLED: &str = "polled";
/// Rows that share a key, on average.
const ROWS_PER_KEY: usize = 100;
/// Text that notes are cut from: each begins elsewhere, so that rows are alike but not the same, as events are.
const PAD: usize = 16_384;
/// How far the beginning moves from row to row: prime, so that it takes all places.
const STEP: usize = 37;
/// The server notes every 15 s, and at checkpoints, which transactions are open; what decodes the log by pieces can begin at
/// such notes. So many rows, or so many bytes of payload, are what 1,300 rows or 1.3 MB a second make of 15 s.
const ROWS_PER_NOTE: usize = 20_000;
const BYTES_PER_NOTE: usize = 20_000_000;
/// What a payload has beside its note.
const FRAME: usize = r#"{"note": "", "order_id": 123456}"#.len();

/// What rows are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) rows: usize,
    pub(super) per_transaction: usize,
    /// Of the payload, within a few.
    pub(super) bytes: usize,
    pub(super) topics: usize,
}

/// The rows of a shape.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) shape: Shape,
    pad: String,
}

impl Rows {
    pub(super) fn new(shape: Shape) -> Self {
        let mut chance = Chance::new(1);
        let mut pad = String::new();
        // Hexadecimal digits: they compress to half at best where nothing repeats.
        while pad.len() < PAD + shape.bytes {
            write!(pad, "{:04x}", chance.below(1 << 16)).unwrap();
        }
        Self { shape, pad }
    }

    fn keys(&self) -> usize {
        let Shape { rows, topics, .. } = self.shape;
        // A multiple of the topics, so that a key has one topic.
        (rows / ROWS_PER_KEY / topics).max(1) * topics
    }

    fn note(&self) -> usize {
        self.shape.bytes.saturating_sub(FRAME)
    }

    fn rows_per_note(&self) -> usize {
        let rows = ROWS_PER_NOTE.min(BYTES_PER_NOTE / self.shape.bytes);
        rows.next_multiple_of(self.shape.per_transaction)
    }

    pub(super) fn key(&self, row: usize) -> String {
        format!("order-{}", row % self.keys())
    }

    /// As Postgres writes jsonb.
    pub(super) fn payload(&self, row: usize) -> String {
        let begin = row * STEP % PAD;
        let note = &self.pad[begin..begin + self.note()];
        format!(r#"{{"note": "{note}", "order_id": {row}}}"#)
    }

    /// The topics behind a prefix.
    pub(super) fn topics(&self, prefix: &str) -> Vec<String> {
        topics(prefix, self.shape.topics)
    }

    /// Empties the table, makes the slot that all others are copied from, and writes the rows; the position behind
    /// the last of them.
    pub(super) fn write(&self, sql: &Sql) -> String {
        let Shape { rows, per_transaction, topics, .. } = self.shape;
        sql.run("TRUNCATE outbox; CHECKPOINT");
        sql.run(&format!("SELECT pg_create_logical_replication_slot('{BASE_SLOT}', 'pgoutput')"));
        sql.run(LOADER);
        sql.run("SET synchronous_commit = off");
        let (pad, note, keys) = (&self.pad, self.note(), self.keys());
        for begun in (0..rows).step_by(self.rows_per_note()) {
            let end = rows.min(begun + self.rows_per_note());
            sql.run(&format!(
                "CALL compare_load({begun}, {end}, {per_transaction}, {topics}, {keys}, '{pad}', {note})"
            ));
            sql.run("CHECKPOINT");
        }
        // A synchronous commit flushes everything before it.
        sql.run("SET synchronous_commit = on");
        sql.run("CREATE TABLE IF NOT EXISTS compare_mark (n int)");
        sql.run("INSERT INTO compare_mark VALUES (1)");
        sql.run("ANALYZE outbox; CHECKPOINT");
        sql.value("SELECT pg_current_wal_flush_lsn()")
    }

    /// Lets the log of these rows go.
    pub(super) fn forget(sql: &Sql) {
        sql.run(&format!("SELECT pg_drop_replication_slot('{BASE_SLOT}'); TRUNCATE outbox"));
    }

    /// The same rows in the table that is polled, all of them waiting.
    pub(super) fn fill_polled(sql: &Sql) {
        sql.run(&format!(
            "TRUNCATE {POLLED}; INSERT INTO {POLLED} SELECT outbox.*, (payload->>'order_id')::bigint, NULL \
             FROM outbox; ANALYZE {POLLED}; CHECKPOINT"
        ));
    }
}

/// The topics behind a prefix.
pub(super) fn topics(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}Event{number}")).collect()
}

/// A procedure, because only there can a loop on the server commit.
const LOADER: &str = "
CREATE OR REPLACE PROCEDURE compare_load(begun int, rows int, per_tx int, topics int, keys int, pad text, note int)
LANGUAGE plpgsql AS $$
DECLARE
    done int := begun;
BEGIN
    WHILE done < rows LOOP
        INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'order', 'order-' || n % keys, 'Event' || n % keys % topics,
               jsonb_build_object('order_id', n, 'note', substr(pad, 1 + n * 37 % 16384, note))
        FROM generate_series(done, least(done + per_tx, rows) - 1) AS n;
        COMMIT;
        done := done + per_tx;
    END LOOP;
END $$";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_of_their_size_and_one_key_has_one_topic() {
        for bytes in [100, 300, 1_600, 16_000] {
            let rows = Rows::new(Shape { rows: 20_000, per_transaction: 1, bytes, topics: 5 });
            for row in [0, 7, 19_999] {
                assert!(rows.payload(row).len().abs_diff(bytes) <= 6, "{bytes} {row}");
            }
            assert_eq!(rows.keys() % 5, 0);
        }
    }
}
