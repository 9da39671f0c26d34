//! Output of `postrider prune` for a table; a plan and a result have equal shape.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::CommandFailure;
use postrider_core::outbox::TableName;
use postrider_postgres::control::prune::{Held, Page, PartitionState, Passed};

#[derive(Debug, Default)]
pub(super) struct PrunedTable {
    /// Rows before this time are old.
    pub(super) cutoff: String,
    /// Old rows that were examined one by one.
    pub(super) old: u64,
    /// Old rows that every slot has passed.
    pub(super) passed: u64,
    pub(super) deleted: u64,
    pub(super) held: Vec<Held>,
    pub(super) partitions: Vec<PrunedPartition>,
}

#[derive(Debug)]
pub(super) struct PrunedPartition {
    pub(super) name: TableName,
    pub(super) until: String,
    pub(super) state: PartitionState,
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Droppable,
    Dropped,
    Kept,
    /// Other sessions use it.
    Locked,
    /// Other objects depend on it.
    Needed,
}

impl Fate {
    const fn word(self) -> &'static str {
        match self {
            Self::Droppable => "would be dropped",
            Self::Dropped => "dropped",
            Self::Kept => "kept",
            Self::Locked => "kept, locked by others",
            Self::Needed => "kept, other objects depend on it",
        }
    }

    const fn key(self) -> &'static str {
        match self {
            Self::Droppable => "drop",
            Self::Dropped => "dropped",
            Self::Kept => "kept",
            Self::Locked => "locked",
            Self::Needed => "needed",
        }
    }
}

impl PrunedTable {
    pub(super) fn add(&mut self, page: &Page) {
        self.old += page.old;
        self.passed += page.passed;
        self.deleted += page.deleted;
        add_held(&mut self.held, &page.held);
    }

    /// Rows that each slot holds back, including those in partitions.
    fn held_in_all(&self) -> Vec<Held> {
        let mut held = self.held.clone();
        for partition in &self.partitions {
            add_held(&mut held, &partition.state.held);
        }
        held
    }
}

fn add_held(sum: &mut Vec<Held>, more: &[Held]) {
    sum.resize(sum.len().max(more.len()), Held::default());
    for (sum, more) in sum.iter_mut().zip(more) {
        sum.not_passed += more.not_passed;
        sum.before_slot += more.before_slot;
    }
}

pub(super) fn print(
    table: &TableName,
    pruned: &PrunedTable,
    passed: &Passed,
    executed: bool,
    context: &Context,
) -> Result<(), CommandFailure> {
    if context.json() {
        return context.print_json(&to_json(table, pruned, passed, executed));
    }
    context.print(&to_text(table, pruned, passed, executed))
}

fn to_json(table: &TableName, pruned: &PrunedTable, passed: &Passed, executed: bool) -> Value {
    let partitions: Vec<_> = pruned
        .partitions
        .iter()
        .map(|PrunedPartition { name, until, state, fate }| {
            json!({
                "partition": name.to_string(), "until": until, "rows": state.rows,
                "held_back": state.kept, "is": fate.key(),
            })
        })
        .collect();
    let held: Vec<_> = passed
        .0
        .iter()
        .zip(pruned.held_in_all())
        .map(|(slot, Held { not_passed, before_slot })| {
            json!({ "slot": slot.slot, "not_passed": not_passed, "before_slot": before_slot })
        })
        .collect();
    let PrunedTable { cutoff, old, passed: may_go, deleted, .. } = pruned;
    let locked = if executed { may_go.saturating_sub(*deleted) } else { 0 };
    json!({
        "table": table.to_string(), "before": cutoff, "executed": executed, "old": old,
        "delete": may_go, "deleted": deleted, "locked": locked,
        "partitions": partitions, "slots": held,
    })
}

fn to_text(table: &TableName, pruned: &PrunedTable, passed: &Passed, executed: bool) -> String {
    let PrunedTable { cutoff, passed: may_go, deleted, .. } = pruned;
    let mut text = format!("table {table}, rows from before {cutoff}\n");
    let _ = if executed {
        writeln!(text, "  rows deleted: {deleted}")
    } else {
        writeln!(text, "  rows that would be deleted: {may_go}")
    };
    let locked = may_go.saturating_sub(*deleted);
    if executed && locked > 0 {
        let _ = writeln!(text, "  rows left because others have locked them: {locked}");
    }
    for PrunedPartition { name, until, state, fate } in &pruned.partitions {
        let _ = writeln!(
            text,
            "  partition {name}, until {until}, rows {}: {}",
            state.rows,
            fate.word()
        );
    }
    for (slot, held) in passed.0.iter().zip(pruned.held_in_all()) {
        let slot = &slot.slot;
        if held.not_passed > 0 {
            let rows = held.not_passed;
            let _ = writeln!(
                text,
                "  held back: {rows} rows that slot `{slot}` has not passed, or passed less than 15 s ago"
            );
        }
        if held.before_slot > 0 {
            let _ = writeln!(
                text,
                "  held back: {} rows from before the stream of slot `{slot}` began; if they were \
                 delivered: --from-before-slot",
                held.before_slot
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_postgres::control::prune::PassedSlot;

    #[test]
    fn plan_and_deed_say_what_is_held_back_and_by_which_slot() {
        let table = TableName::new("public", "outbox");
        let slot = |slot: &str| PassedSlot { slot: slot.to_owned(), since: 0, before: 9 };
        let passed = Passed(vec![slot("a"), slot("b")]);
        let held = |not_passed, before_slot| Held { not_passed, before_slot };
        let mut pruned = PrunedTable { cutoff: "2026-11-19".to_owned(), ..PrunedTable::default() };
        let page = Page { old: 10, passed: 7, deleted: 6, held: vec![held(0, 0), held(2, 1)] };
        pruned.add(&page);
        pruned.add(&page);
        pruned.partitions.push(PrunedPartition {
            name: TableName::new("public", "old"),
            until: "2026-11-02".to_owned(),
            state: PartitionState { rows: 5, kept: 5, held: vec![held(5, 0), held(0, 0)] },
            fate: Fate::Kept,
        });
        let text = to_text(&table, &pruned, &passed, false);
        for words in [
            "would be deleted: 14\n",
            "partition public.old, until 2026-11-02, rows 5: kept\n",
            "5 rows that slot `a` has not passed, or passed less than 15 s ago\n",
            "4 rows that slot `b` has not passed, or passed less than 15 s ago\n",
            "2 rows from before the stream of slot `b` began",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let text = to_text(&table, &pruned, &passed, true);
        assert!(text.contains("rows deleted: 12\n") && text.contains("locked them: 2\n"), "{text}");
        let json = to_json(&table, &pruned, &passed, true);
        assert_eq!((&json["delete"], &json["locked"]), (&json!(14), &json!(2)));
        assert_eq!(json["slots"][1]["before_slot"], 2);
    }
}
