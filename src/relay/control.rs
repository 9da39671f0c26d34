//! Changes that operators request from a running relay: a pause, a new configuration for routes,
//! and the restart of a failed stream.
//!
//! Input: the admin API, and reloads. Output: [`Control`]. The hot thread reads it in each turn,
//! and each session reads it at its start. A process with several streams also reads it. Invariant:
//! a pause persists across sessions until the process ends. A new configuration takes effect
//! completely, between two sessions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RelayError;
use crate::plan::Plan;
use crate::poll;
use postrider_config::{Config, SourceMode};
use postrider_postgres::control::{self, ControlError};

/// Requested changes of one stream. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_paused: AtomicBool,
    /// Generation of `config`, for frequent reads.
    generation: AtomicU64,
    /// Newest configuration with its generation. The initial configuration has generation 0, and is
    /// not stored here.
    config: Mutex<Option<(u64, Arc<Config>)>>,
    /// Requested restart that has not happened yet.
    new_run: Mutex<Option<NewRun>>,
}

/// Request to restart a failed stream at once.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// Configuration that replaces the stream's previous one.
    pub config: Option<Arc<Config>>,
}

impl Control {
    /// Stops reading until [`Self::resume`]. Returns whether the relay was not paused before.
    pub fn pause(&self) -> bool {
        !self.0.is_paused.swap(true, Ordering::AcqRel)
    }

    /// Ends a pause. Returns whether the relay was paused.
    pub fn resume(&self) -> bool {
        self.0.is_paused.swap(false, Ordering::AcqRel)
    }

    /// Whether the relay is paused.
    pub fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Acquire)
    }

    /// Sets the configuration for table columns, routes and formats of later sessions. The running
    /// session ends for it between two transactions. Other options are ignored.
    pub fn reconfigure(&self, config: Config) {
        let mut newest = self.0.config.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = newest.as_ref().map_or(0, |(generation, _)| *generation) + 1;
        *newest = Some((generation, Arc::new(config)));
        self.0.generation.store(generation, Ordering::Release);
    }

    /// Requests the restart of a failed stream, with this configuration or its previous one.
    pub fn begin_anew(&self, config: Option<Config>) {
        let mut asked = self.0.new_run.lock().unwrap_or_else(PoisonError::into_inner);
        // A request without a configuration keeps the one from an earlier request.
        let before = asked.take().and_then(|asked| asked.config);
        *asked = Some(NewRun { config: config.map(Arc::new).or(before) });
    }

    /// Takes the restart that was requested since the last call.
    pub fn take_new_run(&self) -> Option<NewRun> {
        self.0.new_run.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn generation(&self) -> u64 {
        self.0.generation.load(Ordering::Acquire)
    }

    pub(super) fn config(&self) -> Option<(u64, Arc<Config>)> {
        self.0.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Checks that the tables and the publication have the columns that these routes read. The start of
/// a session makes this check too, and would end the relay if a column is missing.
pub async fn check_columns(config: &Config) -> Result<(), RelayError> {
    let plan = Plan::of(config.clone());
    if config.source.mode == SourceMode::Poll {
        return poll::rehearse(&plan).await;
    }
    let wanted = plan.requirements()?;
    let client = control::connect(&config.source.connect).await?;
    let inspection = control::inspect(&client, &wanted).await?;
    let refusal = inspection.refusals(&wanted).into_iter().find(|refusal| {
        matches!(
            refusal,
            ControlError::ColumnsMissing { .. } | ControlError::PublicationHidesColumns { .. }
        )
    });
    refusal.map_or(Ok(()), |refusal| Err(refusal.into()))
}
