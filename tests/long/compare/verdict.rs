//! Whether two records are the same, and where they may differ.
//!
//! Input: what lies in the topics of both sides. Output: a [`Verdict`]. Invariant: records
//! are compared one by one within (topic, key), in the order of their partitions and offsets; a record
//! that one side lacks is a difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::compare::rows::PADDED_MEMBER;
use support::topic::Stored;

/// Debezium's own headers, of which the relay sends none: where a record came from in Debezium.
const CONTEXT: &str = "__debezium.context.";

/// The relay's own header, of which Debezium sends none.
const LSN: &str = "postrider-lsn";

/// A difference that is meant.
struct Deliberate {
    /// Whose records.
    plans: &'static [&'static str],
    /// What must hold of Debezium's record and the relay's.
    holds: fn(&Stored, &Stored) -> bool,
}

/// Each with its reason; docs/migration.md lists them for users.
const DELIBERATE: [Deliberate; 3] = [
    // Debezium pads objects of one array in the order of a hash that is drawn anew for each run of
    // its JVM; the relay in the order in which members appear.
    Deliberate { plans: &["expanded", "messages"], holds: same_but_for_the_order_of_members },
    // Debezium remembers an envelope's schema by its version alone, so all rows carry the name that
    // was made for the first; the relay names each after its own route.
    Deliberate { plans: &["versions", "types"], holds: same_but_for_the_name_of_the_envelope },
    // Half of a surrogate pair is no Unicode: the relay leaves such a payload unexpanded.
    Deliberate { plans: &["expanded"], holds: has_half_a_surrogate_pair },
];

/// What came out.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) identical: usize,
    pub(crate) deliberate: usize,
    /// Both records of each difference, as text.
    pub(crate) different: Vec<String>,
}

impl Verdict {
    /// Compares the records of one plan.
    pub(crate) fn judge(&mut self, plan: &str, debezium: &[Stored], relay: &[Stored]) {
        let (theirs, ours) = (by_key(debezium), by_key(relay));
        let keys: std::collections::BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
        for key in keys {
            let of = |side: &BTreeMap<_, Vec<Stored>>| side.get(key).cloned().unwrap_or_default();
            let (theirs, ours) = (of(&theirs), of(&ours));
            for index in 0..theirs.len().max(ours.len()) {
                self.weigh(plan, theirs.get(index), ours.get(index));
            }
        }
    }

    fn weigh(&mut self, plan: &str, debezium: Option<&Stored>, relay: Option<&Stored>) {
        if debezium == relay {
            self.identical += 1;
            return;
        }
        if let (Some(theirs), Some(ours)) = (debezium, relay)
            && DELIBERATE
                .iter()
                .any(|known| known.plans.contains(&plan) && (known.holds)(theirs, ours))
        {
            self.deliberate += 1;
            return;
        }
        let mut text = format!("{plan}:\n");
        for (side, record) in [("Debezium ", debezium), ("Postrider", relay)] {
            let words = record.map_or_else(|| "nothing".to_owned(), shown);
            writeln!(text, "  {side} {words}").unwrap();
        }
        self.different.push(text);
    }
}

/// A record as it is compared: without the headers that only one side sends and without its offset;
/// without its timestamp where that is the moment of sending, and without its partition where chance
/// chose it.
pub(crate) fn comparable(record: &Stored, has_timestamp: bool) -> Stored {
    let mut record = record.clone();
    record.headers.retain(|(name, _)| !name.starts_with(CONTEXT) && name != LSN);
    record.offset = 0;
    if !has_timestamp {
        record.timestamp_ms = None;
    }
    if record.key.is_none() {
        record.partition = 0;
    }
    record
}

/// Makes sure that the judge sees a difference of one byte in each part of a record, headers in
/// another order, a lost record, and one too many.
///
/// # Panics
/// Where it does not.
pub(crate) fn assert_sees(plan: &str, records: &[Stored]) {
    let spoil: [fn(&mut Vec<Stored>); 8] = [
        |records| records[0].topic.push('x'),
        |records| records[0].partition += 1,
        |records| records[0].key = Some(b"another".to_vec()),
        |records| records[0].value.get_or_insert_default().push(b'x'),
        |records| records[0].headers[0].0.push('x'),
        |records| records[0].headers.reverse(),
        |records| drop(records.remove(0)),
        |records| records.push(records[0].clone()),
    ];
    for (number, spoil) in spoil.iter().enumerate() {
        let mut spoiled = records.to_vec();
        spoil(&mut spoiled);
        let mut verdict = Verdict::default();
        verdict.judge(plan, records, &spoiled);
        let is_seen = !verdict.different.is_empty() || spoiled == records;
        assert!(is_seen, "{plan}: the judge overlooks change {number}");
    }
}

/// Topic and key; and where there is no key, the headers, because Kafka's clients spread such
/// records at random.
type Place = (String, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

fn by_key(records: &[Stored]) -> BTreeMap<Place, Vec<Stored>> {
    let mut places: BTreeMap<Place, Vec<Stored>> = BTreeMap::new();
    for record in records {
        let headers = if record.key.is_none() { record.headers.clone() } else { Vec::new() };
        let place = (record.topic.clone(), record.key.clone(), headers);
        places.entry(place).or_default().push(record.clone());
    }
    // Where a column gives the partition, one key lies in several; order is that of each.
    for records in places.values_mut() {
        records.sort_by_key(|record| record.partition);
    }
    places
}

fn same_but_for_the_name_of_the_envelope(debezium: &Stored, relay: &Stored) -> bool {
    let nameless = |record: &Stored| -> Option<Stored> {
        let mut value: Value = serde_json::from_slice(record.value.as_deref()?).ok()?;
        let name = value.get_mut("schema")?.get_mut("name")?;
        let (before, _) = name.as_str()?.split_once(".outbox.")?;
        *name = Value::from(before);
        Some(Stored { value: Some(value.to_string().into_bytes()), ..record.clone() })
    };
    nameless(debezium).is_some_and(|theirs| nameless(relay) == Some(theirs))
}

fn has_half_a_surrogate_pair(debezium: &Stored, relay: &Stored) -> bool {
    let text = |record: &Stored| {
        String::from_utf8_lossy(record.value.as_deref().unwrap_or_default()).into_owned()
    };
    let rest = |record: &Stored| Stored { value: None, ..record.clone() };
    text(debezium).contains(r#""\uD83D""#)
        && text(relay).contains(r"\\ud83d")
        && rest(debezium) == rest(relay)
}

fn same_but_for_the_order_of_members(debezium: &Stored, relay: &Stored) -> bool {
    // serde_json's objects are sorted, so equal values have the same members.
    let value = |record: &Stored| -> Option<Value> {
        serde_json::from_slice(record.value.as_deref()?).ok()
    };
    let rest = |record: &Stored| Stored { value: None, ..record.clone() };
    let is_padded = String::from_utf8_lossy(debezium.value.as_deref().unwrap_or_default())
        .contains(PADDED_MEMBER);
    is_padded && value(debezium) == value(relay) && rest(debezium) == rest(relay)
}

fn shown(record: &Stored) -> String {
    let bytes = |bytes: &Option<Vec<u8>>| match bytes {
        None => "null".to_owned(),
        Some(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
    };
    let headers = record.headers.iter().map(|(name, value)| format!("{name}={}", bytes(value)));
    format!(
        "{}[{}] timestamp {:?} key {} value {} headers {}",
        record.topic,
        record.partition,
        record.timestamp_ms,
        bytes(&record.key),
        bytes(&record.value),
        headers.collect::<Vec<_>>().join(", "),
    )
}
