//! Rows that cannot be routed or produced stop none of the others (G4): when one becomes a dead letter,
//! what it keeps of the row, and the commands that read and send them again.

#[cfg(feature = "faults")]
mod codes;
mod commands;
mod dead_end;
mod kept;
mod refused;
mod rejected;
mod slow_clock;
