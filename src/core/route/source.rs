//! Reads the columns that the router needs.

use super::rejection::{Rejection, RejectionCode};
use super::render::{Part, Unreadable, render};
use crate::outbox::{ColumnSlot, Declared, OutboxRow, Value};

#[derive(Debug, Clone)]
pub(super) struct SourceColumn {
    pub(super) slot: ColumnSlot,
    pub(super) column: String,
    /// Whether a row needs the column.
    pub(super) is_required: bool,
}

#[derive(Debug, Clone)]
pub(super) struct NamedColumn {
    pub(super) source: SourceColumn,
    pub(super) name: String,
}

impl SourceColumn {
    #[inline]
    pub(super) fn render(
        &self,
        row: &OutboxRow<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Part, Rejection> {
        let part = render(row.column(self.slot), scratch);
        match part {
            Ok(Part::Absent) if self.is_required => Err(self.missing()),
            Ok(part) => Ok(part),
            Err(unreadable) => Err(self.unreadable(unreadable)),
        }
    }

    pub(super) fn part<'a>(
        &self,
        row: &OutboxRow<'a>,
        make: impl FnOnce(Value<'a>, Declared) -> Result<Part, Unreadable>,
    ) -> Result<Part, Rejection> {
        match (row.column(self.slot), row.declared(self.slot)) {
            (Value::Absent, _) | (_, None) if self.is_required => Err(self.missing()),
            (Value::Absent, _) | (_, None) => Ok(Part::Absent),
            (Value::Null, _) => Ok(Part::Null),
            (value, Some(declared)) => {
                make(value, declared).map_err(|unreadable| self.unreadable(unreadable))
            }
        }
    }

    pub(super) fn integer(&self, row: &OutboxRow<'_>) -> Option<i64> {
        let mut scratch = Vec::new();
        let value = row.column(self.slot);
        let part = render(value, &mut scratch).ok()?;
        str::from_utf8(part.bytes(value, &scratch)?).ok()?.parse().ok()
    }

    pub(super) fn reject(&self, code: RejectionCode, fault: &str) -> Rejection {
        Rejection { code, reason: format!("column `{}` {fault}", self.column) }
    }

    pub(super) fn unreadable(&self, unreadable: Unreadable) -> Rejection {
        let code = match unreadable {
            Unreadable::Untranslatable => RejectionCode::UntranslatableCharacter,
            _ => RejectionCode::InvalidValue,
        };
        self.reject(code, &unreadable.to_string())
    }

    pub(super) fn demand(&self, row: &OutboxRow<'_>) -> Result<(), Rejection> {
        if self.is_required && row.column(self.slot) == Value::Absent {
            return Err(self.missing());
        }
        Ok(())
    }

    fn missing(&self) -> Rejection {
        self.reject(RejectionCode::MissingColumn, "is missing")
    }
}
