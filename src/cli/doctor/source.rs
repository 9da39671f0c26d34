//! Checks of `postrider doctor`: the relay's requirements on server, publication, tables and slot.
//! An error without a requirement in [`id_of`] is a failure too.

use super::check::Check;
use super::source_fix;
use crate::failure::CommandFailure;
use postrider_postgres::control::{
    ControlError, Inspection, Requirements, SlotFacts, WarningAbout,
};

/// Requirements, with the text if they are met.
const DEMANDS: [(&str, &str); 17] = [
    ("postgres.wal_level", "wal_level is logical"),
    ("postgres.messages", "the server sends the logical messages that are rows"),
    ("postgres.role", "the role may replicate"),
    ("postgres.streams", "the server streams from the slot"),
    ("table.exists", "every outbox table exists"),
    ("table.kind", "every outbox is a permanent table, and so are its partitions"),
    ("table.columns", "every outbox has the columns that are read"),
    ("publication.exists", "the publication exists"),
    ("publication.inserts", "the publication sends inserts"),
    ("publication.tables", "the publication has every outbox table"),
    ("publication.rows", "the publication leaves out no row"),
    ("publication.columns", "the publication leaves out no column that is read"),
    ("slot.exists", "the slot exists"),
    ("slot.kind", "the slot belongs to this database and has the plugin pgoutput"),
    ("slot.alive", "the server keeps all WAL that the slot needs"),
    ("slot.two_phase", "the slot sends transactions when they are committed"),
    ("postgres.source", "nothing else stands in the way"),
];

/// Harmful settings that a relay accepts, with the text if there are none.
const ADVICE: [(&str, WarningAbout, &str); 4] = [
    ("publication.only_inserts", WarningAbout::OtherChanges, "only inserts are decoded"),
    (
        "publication.no_other_tables",
        WarningAbout::UnreadTables,
        "the publication has no table that is not read",
    ),
    ("slot.reserved", WarningAbout::Unreserved, "the WAL that the slot needs is within its limit"),
    ("postgres.encoding", WarningAbout::SqlAscii, "the database knows the encoding of its text"),
];

pub(super) fn checks(inspection: &Inspection, wanted: &Requirements) -> Vec<Check> {
    let refusals = inspection.refusals(wanted);
    let mut checks = Vec::new();
    for (id, met) in DEMANDS {
        let before = checks.len();
        for refusal in refusals.iter().filter(|refusal| id_of(refusal) == id) {
            let failed = Check::failed(id, CommandFailure::from(refusal.clone()));
            checks.extend(failed.map(|check| {
                check
                    .with_steps(source_fix::steps(refusal, inspection, wanted))
                    .lacking(source_fix::lack(refusal, inspection))
            }));
        }
        if checks.len() == before {
            checks.push(met_or_unknown(id, met, inspection));
        }
    }
    let warnings = inspection.warnings(wanted);
    for (id, about, met) in ADVICE {
        let found = warnings.iter().find(|warning| warning.about == about);
        checks.push(match found {
            Some(warning) => Check::warn(id, warning.what.clone(), warning.help.clone())
                .with_steps(source_fix::advised(about, inspection, wanted)),
            None => met_or_unknown(id, met, inspection),
        });
    }
    checks
}

fn met_or_unknown(id: &'static str, met: &str, inspection: &Inspection) -> Check {
    let missing = match id.split_once('.') {
        Some(("slot", name)) if name != "exists" => inspection.slot.is_none().then_some("slot"),
        // Only a slot shows that a server streams.
        Some(("postgres", "streams")) => inspection.slot.is_none().then_some("slot"),
        Some(("publication", name)) if name != "exists" => {
            inspection.publication.is_none().then_some("publication")
        }
        Some(("table", name)) if name != "exists" => {
            inspection.tables.iter().all(Option::is_none).then_some("table")
        }
        _ => None,
    };
    let is_lost = inspection.slot.as_ref().is_some_and(SlotFacts::is_lost);
    match missing {
        None if id == "slot.reserved" && is_lost => Check::unknown(id, "the slot is lost"),
        Some(what) => Check::unknown(id, format!("there is no {what} to look at")),
        None => Check::pass(id, met),
    }
}

const fn id_of(refusal: &ControlError) -> &'static str {
    match refusal {
        ControlError::WalLevel { .. } => "postgres.wal_level",
        ControlError::MessagesUnknown { .. } => "postgres.messages",
        ControlError::RoleMayNotReplicate { .. } => "postgres.role",
        ControlError::StandbyReached { .. } => "postgres.streams",
        ControlError::TableMissing { .. } => "table.exists",
        ControlError::TableUnsuitable { .. } | ControlError::PartUnsuitable { .. } => "table.kind",
        ControlError::ColumnsMissing { .. } => "table.columns",
        ControlError::PublicationMissing { .. } => "publication.exists",
        ControlError::PublicationWithoutInserts { .. } => "publication.inserts",
        ControlError::PublicationLacksTable { .. } | ControlError::TablesLeftOut { .. } => {
            "publication.tables"
        }
        ControlError::PublicationFiltersRows { .. } => "publication.rows",
        ControlError::PublicationHidesColumns { .. } => "publication.columns",
        ControlError::SlotMissing { .. } | ControlError::SlotUnfinished { .. } => "slot.exists",
        ControlError::SlotForeign { .. } => "slot.kind",
        ControlError::SlotLost { .. } => "slot.alive",
        ControlError::SlotTwoPhase { .. } => "slot.two_phase",
        _ => "postgres.source",
    }
}
