//! The model's stream as Postgres sends it, and what the machine calls its places.
//!
//! Input: where the slot stands. Output: frames for a session; the place of a [`Mark`] and the positions
//! of transactions. Invariant: a mark that no place of the stream has is `None`, never the nearest
//! one.

use std::collections::VecDeque;

use postrider::frame::Frame;
use postrider::lsn::Lsn;
use postrider::pgoutput::encode::{self, Table};
use postrider::pgoutput::{Begin, Column, Commit, PgTime};
use postrider::pipeline::Mark;
use postrider::time::{Instant, Now};

use crate::exactly_once::rules::Rules;
use crate::exactly_once::stream::{self, PLACES, Place, TRANSACTIONS};
use support::chance::Chance;

/// Transactions lie so far apart in the log, and are so long.
const DISTANCE: u64 = 100;
const LENGTH: u64 = 10;
/// Where the log ends: it grows by what is nobody's row.
pub fn log_end(now: Now) -> Lsn {
    Lsn::new(u64::from(TRANSACTIONS + 1) * DISTANCE + now.at.since(Instant::START).as_secs())
}

const OUTBOX: u32 = 16_384;
const FOREIGN: u32 = 16_400;
const TEXT: u32 = 25;

/// A frame that owns its bytes.
pub enum Sent {
    Wal(Vec<u8>),
    Keepalive(Lsn),
    /// One that is to be answered.
    Question(Lsn),
}

impl Sent {
    pub fn as_frame(&self) -> Frame<'_> {
        match self {
            Self::Wal(data) => Frame::Wal { start: Lsn::ZERO, sent_us: 0, data },
            Self::Keepalive(end) => Frame::Keepalive { end: *end, reply_now: false },
            Self::Question(end) => Frame::Keepalive { end: *end, reply_now: true },
        }
    }
}

/// Where the n-th transaction begins to commit.
fn commit_lsn(transaction: u8) -> Lsn {
    Lsn::new(u64::from(transaction) * DISTANCE)
}

/// The position that Postgres is told when so many transactions are safe.
pub fn end_lsn(transactions: u8) -> Lsn {
    if transactions == 0 { Lsn::ZERO } else { Lsn::new(commit_lsn(transactions).get() + LENGTH) }
}

/// How many transactions end at or below a position.
pub fn transactions_within(position: Lsn) -> u8 {
    (0..=TRANSACTIONS).rev().find(|&count| end_lsn(count) <= position).unwrap_or(0)
}

/// How many places lie before a mark.
pub fn place_of(mark: Mark) -> Option<Place> {
    let whole = transactions_within(mark.end);
    let Some(part) = mark.part else { return Some(stream::end(whole)) };
    let rows = Place::try_from(part.rows).ok()?;
    let follows = whole < TRANSACTIONS && part.commit_lsn == commit_lsn(whole + 1);
    let place = stream::end(whole) + rows;
    (follows && place <= stream::end(whole + 1)).then_some(place)
}

/// What a session is sent whose slot stands behind so many transactions. A stream of fewer places ends
/// within a transaction.
pub fn frames(confirmed: u8, rules: Rules, now: Now, chance: &mut Chance) -> VecDeque<Sent> {
    let mut frames = VecDeque::new();
    let mut say = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut data = Vec::new();
        write(&mut data);
        frames.push_back(Sent::Wal(data));
    };
    describe(&mut say);
    let has_foreign_row = chance.percent(50);
    for transaction in confirmed + 1..=TRANSACTIONS {
        let places = stream::end(transaction - 1) + 1..=stream::end(transaction);
        if *places.start() > rules.places {
            break;
        }
        let (last, is_whole) = (*places.end(), *places.end() <= rules.places);
        if stream::partition(last).is_none() && chance.percent(30) {
            // It is in another database, or was rolled back: nothing but a keepalive tells of it.
            break;
        }
        let (commit_time, xid) = (PgTime(0), u32::from(transaction));
        let final_lsn = commit_lsn(transaction);
        say(&|out| encode::begin(out, &Begin { final_lsn, commit_time, xid }));
        for place in places.filter(|place| *place <= rules.places) {
            if stream::partition(place).is_some() {
                say(&|out| row(out, place));
            } else if has_foreign_row {
                say(&|out| encode::insert(out, FOREIGN, &[Column::Text(b"foreign")]));
            }
        }
        if is_whole {
            let commit =
                Commit { commit_lsn: final_lsn, end_lsn: end_lsn(transaction), commit_time };
            say(&|out| encode::commit(out, &commit));
        }
    }
    if rules.places == PLACES {
        frames.push_back(Sent::Keepalive(log_end(now)));
    }
    frames
}

fn describe(say: &mut impl FnMut(&dyn Fn(&mut Vec<u8>))) {
    let outbox = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"].as_slice();
    for (id, name, columns) in [(OUTBOX, "outbox", outbox), (FOREIGN, "orders", &["id"])] {
        let columns: Vec<_> = columns.iter().map(|column| (column.as_bytes(), TEXT)).collect();
        let name = name.as_bytes();
        say(&|out| {
            encode::relation(out, &Table { id, schema: b"public", name, columns: &columns });
        });
    }
}

/// The payload is the place.
fn row(out: &mut Vec<u8>, place: Place) {
    let text = place.to_string();
    let place = Column::Text(text.as_bytes());
    let [by, key, event] = [b"order".as_slice(), b"key", b"happened"].map(Column::Text);
    encode::insert(out, OUTBOX, &[place, by, key, event, place]);
}
