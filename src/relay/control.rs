//! What operators change while the relay runs: a pause, the configuration that routes come from, and that a stream which has
//! failed begins anew.
//!
//! Input: the admin API, reloads. Output: [`Control`], which the hot thread reads in each turn, each session when it
//! begins, and who runs several streams. Invariant: a pause holds over sessions, for the life of the process; a configuration
//! is taken over between two sessions and whole.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RelayError;
use crate::plan::Plan;
use crate::poll;
use postrider_config::{Config, SourceMode};
use postrider_postgres::control::{self, ControlError};

/// See the module. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Control(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    is_paused: AtomicBool,
    /// That of `config`, for those who look often.
    generation: AtomicU64,
    /// The newest one, by number; the one that the process began with is number 0, and not here.
    config: Mutex<Option<(u64, Arc<Config>)>>,
    /// Asked for, and not done yet.
    new_run: Mutex<Option<NewRun>>,
}

/// That a stream which has failed begins anew, at once.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// What it begins with, in the place of what it had.
    pub config: Option<Arc<Config>>,
}

impl Control {
    /// Nothing more is read until [`Self::resume`]. Whether that is news.
    pub fn pause(&self) -> bool {
        !self.0.is_paused.swap(true, Ordering::AcqRel)
    }

    /// Goes on. Whether that is news.
    pub fn resume(&self) -> bool {
        self.0.is_paused.swap(false, Ordering::AcqRel)
    }

    /// Whether there is a pause.
    pub fn is_paused(&self) -> bool {
        self.0.is_paused.load(Ordering::Acquire)
    }

    /// Sessions begin with the tables' columns, routes and formats of this one from now on; the one that runs ends for it
    /// between two transactions. What else it says is not looked at.
    pub fn reconfigure(&self, config: Config) {
        let mut newest = self.0.config.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = newest.as_ref().map_or(0, |(generation, _)| *generation) + 1;
        *newest = Some((generation, Arc::new(config)));
        self.0.generation.store(generation, Ordering::Release);
    }

    /// A stream that has failed is to begin anew at once, with this configuration, or with the one that it had.
    pub fn begin_anew(&self, config: Option<Config>) {
        let mut asked = self.0.new_run.lock().unwrap_or_else(PoisonError::into_inner);
        // One that asks for no other configuration takes none back.
        let before = asked.take().and_then(|asked| asked.config);
        *asked = Some(NewRun { config: config.map(Arc::new).or(before) });
    }

    /// What was asked for since it was last taken.
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

/// Whether the tables, and the publication, have what these routes read, as the start of a session asks, which would end
/// the relay for want of it.
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
