//! Changes that operators request from a running relay.
//!
//! Invariant: a pause persists across sessions until the process ends. A new configuration takes
//! effect completely, between two sessions.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RelayError;
use crate::plan::Plan;
use crate::poll;
use postrider_config::{Config, SourceMode};
use postrider_postgres::control::{self, ControlError};

#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_paused: AtomicBool,
    generation: AtomicU64,
    /// The initial configuration has generation 0, and is not stored here.
    config: Mutex<Option<(u64, Arc<Config>)>>,
    new_run: Mutex<Option<NewRun>>,
}

#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// Replaces the stream's previous configuration.
    pub config: Option<Arc<Config>>,
}

impl Control {
    /// Returns whether the relay was not paused before.
    pub fn pause(&self) -> bool {
        !self.0.is_paused.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the relay was paused.
    pub fn resume(&self) -> bool {
        self.0.is_paused.swap(false, Ordering::AcqRel)
    }

    pub fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Acquire)
    }

    /// Changes only table columns, routes and formats. The running session ends for it between two
    /// transactions.
    pub fn reconfigure(&self, config: Config) {
        let mut newest = self.0.config.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = newest.as_ref().map_or(0, |(generation, _)| *generation) + 1;
        *newest = Some((generation, Arc::new(config)));
        self.0.generation.store(generation, Ordering::Release);
    }

    pub fn begin_anew(&self, config: Option<Config>) {
        let mut asked = self.0.new_run.lock().unwrap_or_else(PoisonError::into_inner);
        // A request without a configuration keeps the one from an earlier request.
        let before = asked.take().and_then(|asked| asked.config);
        *asked = Some(NewRun { config: config.map(Arc::new).or(before) });
    }

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

/// A session without the columns that these routes read would end the relay.
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
