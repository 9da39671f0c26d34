//! Reads the configuration again while the relay runs, and applies changes of columns, routes,
//! formats and the log level.
//!
//! Invariant: a configuration that is wrong, unreadable or not checked against the database changes
//! nothing and ends nothing. The next run of a failed stream makes all checks of a start. Databases
//! are asked concurrently, so that none holds up another stream.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::codes::ErrorCode;
use super::super::context::Context;
use super::super::exit::ExitCode;
use super::super::failure::CommandFailure;
use super::super::import::load_imported;
use super::super::logs;
use super::file_watch::refuse_unfit;
use super::reload_report::{add, errors, in_file, refused};
use super::setting;
use super::systemd::ReloadNotice;
use postrider_config::{
    Config, Effective, LEVEL, Loaded, is_of_the_process, is_taken_over, taken_over,
};
use postrider_postgres::control::ControlError;
use postrider_relay::admin::ReloadReport;
use postrider_relay::telemetry::{ReloadOutcome, Telemetry};
use postrider_relay::{RelayError, StopSignal, check_columns};
use tokio::task::JoinSet;
use tracing::Instrument as _;

const CHECK_LIMIT: Duration = Duration::from_secs(15);

const READ_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct ConfigSource {
    pub(super) context: Context,
    /// A Debezium file that replaces the configuration file.
    pub(super) debezium: Option<PathBuf>,
}

impl ConfigSource {
    pub(super) fn load(&self) -> Result<Vec<Loaded>, CommandFailure> {
        match &self.debezium {
            Some(path) => Ok(vec![load_imported(path, &self.context, Vec::new())?]),
            None => self.context.load_streams(),
        }
    }

    fn read(&self) -> Result<Vec<Loaded>, CommandFailure> {
        match &self.debezium {
            Some(path) => Ok(vec![load_imported(path, &self.context, Vec::new())?]),
            None => Ok(self.context.read_streams()?),
        }
    }

    /// File to watch, if it can be read again.
    pub(super) fn file(&self, loaded: &Loaded) -> Option<PathBuf> {
        let file = self.debezium.clone().or_else(|| loaded.file.clone())?;
        std::fs::metadata(&file).is_ok_and(|found| found.is_file()).then_some(file)
    }
}

pub(super) struct Reloader {
    pub(super) source: ConfigSource,
    pub(super) streams: Vec<InEffect>,
    /// Receiver for the end of a reload.
    pub(super) notice: Option<ReloadNotice>,
    /// Added or removed streams that were reported to need a restart.
    pub(super) told: Vec<String>,
}

pub(super) struct InEffect {
    pub(super) loaded: Loaded,
    pub(super) stop: StopSignal,
    pub(super) telemetry: Telemetry,
    /// Options that were reported to need a restart.
    told: Vec<String>,
    /// Last reported reason why the database could not be asked.
    told_failure: Option<String>,
}

struct News {
    config: Config,
    effective: Vec<Effective>,
    changed: Vec<String>,
    takes_restart: Vec<String>,
    /// The next run of this failed stream makes all checks of a start.
    is_whole: bool,
}

impl News {
    fn changes_rows(&self) -> bool {
        self.changed.iter().any(|key| key != LEVEL)
    }
}

struct Refusal {
    failure: CommandFailure,
    /// False if the database could not be reached, so the configuration may be right.
    was_asked: bool,
}

/// Options that identify a stream and its telemetry.
const OF_ITS_IDENTITY: [&str; 3] = ["source.slot", "source.mode", "progress.topic"];

impl Reloader {
    /// Returns true if a database could not be asked, so that the reload must be retried.
    pub(super) async fn reload(&mut self, trigger: &str) -> (ReloadReport, bool) {
        let next = match self.read().await {
            Ok(next) => next,
            Err(failure) => {
                let again = failure.exit == ExitCode::Unavailable;
                let report = refused(&failure, trigger);
                self.streams.iter().for_each(|one| one.telemetry.count_reload(report.outcome));
                return (report, again);
            }
        };
        let is_there =
            |loaded: &&Loaded| self.streams.iter().any(|one| one.loaded.stream == loaded.stream);
        let fresh = next.iter().filter(|loaded| !is_there(loaded));
        let fresh: Vec<_> = fresh.filter_map(|one| one.stream.as_deref().map(in_file)).collect();
        let is_gone = |one: &&InEffect| next.iter().all(|next| next.stream != one.loaded.stream);
        let gone = self.streams.iter().filter(is_gone);
        let gone = gone.filter_map(|one| one.loaded.stream.as_deref().map(in_file));
        self.tell_of(fresh.iter().cloned().chain(gone).collect());
        let mut whole = ReloadReport { takes_restart: fresh, ..ReloadReport::unchanged() };
        let mut all: Vec<_> = self.streams.iter().map(|one| one.compare(&next, self)).collect();
        ask_databases(&self.streams, &mut all).await;
        let (mut again, of_several) = (false, self.streams.len() > 1);
        for (one, news) in self.streams.iter_mut().zip(all) {
            let name = one.loaded.stream.clone();
            let _of_stream = logs::span_of(name.as_deref()).entered();
            let (report, later) = one.take_over(news, of_several, trigger);
            again |= later;
            add(&mut whole, report, name.as_deref());
        }
        if of_several && whole.outcome == ReloadOutcome::Unchanged && !again {
            tracing::info!(trigger, "configuration reloaded; nothing to apply");
        }
        (whole, again)
    }

    fn tell_of(&mut self, streams: Vec<String>) {
        if !streams.is_empty() && streams != self.told {
            tracing::warn!(
                options = streams.join(", "),
                help = "restart the relay to apply them",
                "streams were added to the file or removed from it, which needs a restart"
            );
        }
        self.told = streams;
    }

    pub(super) fn file(&self) -> Option<PathBuf> {
        self.source.file(self.streams.first().map(|one| &one.loaded)?)
    }

    async fn read(&self) -> Result<Vec<Loaded>, CommandFailure> {
        let source = self.source.clone();
        let in_effect = self.streams.first().and_then(|one| one.loaded.file.clone());
        let path = source.debezium.clone().or_else(|| in_effect.clone());
        let unreadable = |why: String| {
            let name = path.as_deref().unwrap_or(Path::new("the configuration")).display();
            let what = format!("cannot read `{name}` again");
            CommandFailure::new(ExitCode::Config, ErrorCode::FILE_UNREADABLE, what).why(why)
        };
        let file = path.clone();
        let reading = tokio::task::spawn_blocking(move || {
            file.map_or(Ok(()), |file| refuse_unfit(&file)).map(|()| source.read())
        });
        let Ok(read) = tokio::time::timeout(READ_LIMIT, reading).await else {
            return Err(unreadable(format!("no answer within {} s", READ_LIMIT.as_secs())));
        };
        let read = read.map_err(|_| CommandFailure::from(RelayError::Thread))?;
        let next = read.map_err(|error| unreadable(error.to_string()))??;
        if in_effect.is_some() && next.iter().all(|next| next.file.is_none()) {
            return Err(unreadable("it is gone".to_owned()));
        }
        Ok(next)
    }
}

impl InEffect {
    pub(super) const fn new(loaded: Loaded, stop: StopSignal, telemetry: Telemetry) -> Self {
        Self { loaded, stop, telemetry, told: Vec::new(), told_failure: None }
    }

    /// Changes for this stream; `None` if it was removed from the file.
    fn compare(&self, next: &[Loaded], all: &Reloader) -> Option<Result<News, Refusal>> {
        let next = next.iter().find(|next| next.stream == self.loaded.stream)?;
        Some(self.news(next, all).map_err(|failure| Refusal { failure, was_asked: true }))
    }

    /// Applies changes that need no restart. A removed stream keeps running. A database that could
    /// not be asked is reported separately, because other streams have applied the configuration.
    fn take_over(
        &mut self,
        news: Option<Result<News, Refusal>>,
        of_several: bool,
        trigger: &str,
    ) -> (ReloadReport, bool) {
        let Some(news) = news else {
            let takes_restart = self.loaded.stream.as_deref().map(in_file).into_iter().collect();
            return (ReloadReport { takes_restart, ..ReloadReport::unchanged() }, false);
        };
        let (report, again) = match news {
            Ok(news) => (self.apply(news, trigger), false),
            Err(Refusal { failure, was_asked }) => {
                let again = failure.exit == ExitCode::Unavailable;
                if of_several && !was_asked {
                    return (self.not_asked(&failure, trigger), again);
                }
                (refused(&failure, trigger), again)
            }
        };
        self.told_failure = None;
        self.telemetry.count_reload(report.outcome);
        (report, again)
    }

    /// Reports the failure unless the last report was equal.
    fn not_asked(&mut self, failure: &CommandFailure, trigger: &str) -> ReloadReport {
        let whats = failure.findings.iter().map(|finding| finding.what.as_str());
        let text = whats.collect::<Vec<_>>().join("; ");
        if self.told_failure.as_ref() != Some(&text) {
            let help = failure.findings.first().and_then(|finding| finding.help.as_deref());
            tracing::warn!(
                trigger,
                help,
                "this stream keeps its configuration, since its database could not be asked about the new one: {text}"
            );
        }
        self.told_failure = Some(text);
        ReloadReport { not_asked: errors(failure), ..ReloadReport::unchanged() }
    }

    /// Whether a failed stream restarts with all changes. Options that identify it must be
    /// unchanged.
    fn is_taken_over_whole(&self, differing: &[String], all: &Reloader) -> bool {
        // A changed route does not help a source that was refused.
        let is_of_source = differing.iter().any(|key| key.starts_with("source."));
        let next_run = self.telemetry.view().next_run;
        let has_failed = next_run.is_some_and(|next| is_of_source || !next.of_position);
        let is_same = differing.iter().all(|key| !OF_ITS_IDENTITY.contains(&key.as_str()));
        let slot = &self.loaded.config.source.slot;
        let of_slot = all.streams.iter().filter(|one| one.loaded.config.source.slot == *slot);
        has_failed && is_same && of_slot.count() == 1
    }

    fn news(&self, next: &Loaded, all: &Reloader) -> Result<News, CommandFailure> {
        let current = &self.loaded;
        let differing = differing(current, next);
        let is_whole = self.is_taken_over_whole(&differing, all);
        let config = if is_whole {
            let Config { http, traces, .. } = current.config.clone();
            Config { http, traces, ..next.config.clone() }
        } else {
            taken_over(&current.config, &next.config).map_err(|refusal| {
                let failure =
                    CommandFailure::new(ExitCode::Config, ErrorCode::C011, refusal.reason)
                        .why("the rest of the configuration changes only when the relay restarts");
                match refusal.help {
                    Some(help) => failure.help(help),
                    None => failure,
                }
            })?
        };
        let is_taken = |key: &str| is_taken_over(key) || (is_whole && !is_of_the_process(key));
        let (changed, takes_restart): (Vec<_>, Vec<_>) =
            differing.into_iter().partition(|key| is_taken(key));
        let effective = put_together(&current.effective, next.effective.clone(), is_taken);
        Ok(News { config, effective, changed, takes_restart, is_whole })
    }

    fn apply(&mut self, news: News, trigger: &str) -> ReloadReport {
        let changes_rows = news.changes_rows();
        let News { config, effective, changed, takes_restart, is_whole } = news;
        let options = changed.join(", ");
        if changes_rows && is_whole {
            tracing::info!(trigger, options, "configuration reloaded; restarting this stream");
            self.stop.control().reconfigure(config.clone());
            self.stop.control().begin_anew(Some(config.clone()));
        } else if changes_rows {
            tracing::info!(
                trigger,
                options,
                "configuration reloaded; routes change with the next transaction"
            );
            self.stop.control().reconfigure(config.clone());
            if self.telemetry.view().next_run.is_some_and(|next| !next.of_position) {
                self.stop.control().begin_anew(None);
            }
        } else if !changed.is_empty() {
            tracing::info!(trigger, options, "configuration reloaded");
        } else if self.loaded.stream.is_none() {
            tracing::info!(trigger, "configuration reloaded; nothing to apply");
        }
        if changed.iter().any(|key| key == LEVEL) && !logs::set_level(config.log.level) {
            tracing::info!("RUST_LOG overrides log.level, and stays in effect");
        }
        if !takes_restart.is_empty() && takes_restart != self.told {
            let options = takes_restart.join(", ");
            tracing::warn!(
                options,
                help = "restart the relay to apply them",
                "options were changed that need a restart"
            );
        }
        self.told.clone_from(&takes_restart);
        self.loaded.config = config;
        self.loaded.effective = effective;
        self.telemetry.show_settings(self.loaded.effective.iter().map(setting).collect());
        let outcome =
            if changed.is_empty() { ReloadOutcome::Unchanged } else { ReloadOutcome::Applied };
        ReloadReport { outcome, changed, takes_restart, ..ReloadReport::unchanged() }
    }
}

/// Checks the columns of new routes. A failed stream checks them at its next run.
async fn ask_databases(streams: &[InEffect], all: &mut [Option<Result<News, Refusal>>]) {
    let mut asked = JoinSet::new();
    for (number, (one, news)) in streams.iter().zip(all.iter()).enumerate() {
        let Some(Ok(news)) = news else { continue };
        if news.changes_rows() && !news.is_whole {
            let config = news.config.clone();
            let ask = async move { (number, ask_database(&config).await) };
            asked.spawn(ask.instrument(logs::span_of(one.loaded.stream.as_deref())));
        }
    }
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok((_, Ok(()))) => {}
            Ok((number, Err(refusal))) => {
                if let Some(news) = all.get_mut(number) {
                    *news = Some(Err(refusal));
                }
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

async fn ask_database(config: &Config) -> Result<(), Refusal> {
    let Ok(checked) = tokio::time::timeout(CHECK_LIMIT, check_columns(config)).await else {
        let what = "the database does not say whether it has the columns of the new routes";
        let seconds = CHECK_LIMIT.as_secs();
        let failure = CommandFailure::new(ExitCode::Unavailable, ErrorCode::P120, what);
        let failure = failure.why(format!("no answer within {seconds} s"));
        return Err(Refusal { failure, was_asked: false });
    };
    checked.map_err(|error| {
        let is_of_session = matches!(error, RelayError::Control(ControlError::Connection { .. }));
        let was_asked = !is_of_session && !error.class().is_transient();
        Refusal { failure: error.into(), was_asked }
    })
}

/// Options that differ, in the order of the documentation. Secrets may differ although they look
/// alike.
fn differing(current: &Loaded, next: &Loaded) -> Vec<String> {
    let mut keys: Vec<&str> = next.effective.iter().map(|one| one.key.as_str()).collect();
    keys.extend(current.effective.iter().map(|one| one.key.as_str()));
    let mut seen = BTreeSet::new();
    keys.retain(|key| seen.insert(*key));
    let value = |loaded: &Loaded, key: &str| {
        loaded.effective.iter().find(|one| one.key == key).map(|one| one.value.clone())
    };
    let secret = |key: &str| {
        let (one, other) = (&current.config, &next.config);
        let property = |config: &Config| {
            let name = key.strip_prefix("kafka.properties.")?;
            let is_named = |property: &&postrider_config::Property| property.name == name;
            // A secret in a file is read whenever it is needed.
            let is_fixed = !config.kafka.secret_files.contains_key(name);
            config.kafka.properties.iter().find(is_named).filter(|_| is_fixed).cloned()
        };
        (key == "source.url" && one.source.url != other.source.url)
            || property(one) != property(other)
    };
    let differs = |key: &&str| value(current, key) != value(next, key) || secret(key);
    // `source.connect` is derived and not an option.
    let is_option =
        |key: &&str| *key != "source.connect" || value(current, key) != value(next, key);
    keys.into_iter().filter(differs).filter(is_option).map(str::to_owned).collect()
}

fn put_together(
    current: &[Effective],
    next: Vec<Effective>,
    is_taken: impl Fn(&str) -> bool,
) -> Vec<Effective> {
    let known: BTreeSet<String> = next.iter().map(|one| one.key.clone()).collect();
    let mut all: Vec<Effective> = next
        .into_iter()
        .filter_map(|one| {
            let before = || current.iter().find(|before| before.key == one.key).cloned();
            if is_taken(&one.key) { Some(one) } else { before() }
        })
        .collect();
    let kept = current.iter().filter(|one| !known.contains(&one.key) && !is_taken(&one.key));
    all.extend(kept.cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_config::{FileChoice, Inputs, load};

    fn loaded(text: &str) -> Loaded {
        let file = FileChoice::Text { name: "p.toml".into(), text: text.to_owned() };
        let variables = vec![("PGUSER".to_owned(), "app".to_owned())];
        load(&Inputs { file, variables, ..Inputs::default() }, &|_| Vec::new()).unwrap()
    }

    #[test]
    fn what_differs_is_named_a_secret_too_and_only_routes_are_in_effect() {
        let current = loaded(
            "[source]\nurl = \"postgres://a:one@h/d\"\n[route]\ntopic = \"x\"\n[kafka.properties]\n\
             \"sasl.password\" = \"one\"\n\"sasl.username\" = \"u\"\n",
        );
        let next = loaded(
            "[source]\nurl = \"postgres://a:two@h/d\"\n[route]\ntopic = \"y\"\nrules = [{ glob = \"z\", drop = true }]\n\
             [kafka.properties]\n\"sasl.password\" = \"two\"\n",
        );
        let names = differing(&current, &next);
        let expected = [
            "source.url",
            "route.topic",
            "kafka.properties.sasl.password",
            "route.rules.0.drop",
            "route.rules.0.glob",
            "kafka.properties.sasl.username",
        ];
        let sorted: BTreeSet<_> = names.iter().map(String::as_str).collect();
        assert_eq!(sorted, BTreeSet::from(expected), "{names:?}");
        let effective = put_together(&current.effective, next.effective, is_taken_over);
        let value = |key: &str| {
            effective.iter().find(|one| one.key == key).map(|one| one.value.to_string())
        };
        assert_eq!(value("route.topic").as_deref(), Some("\"y\""));
        assert_eq!(value("route.rules.0.glob").as_deref(), Some("\"z\""));
        assert!(value("kafka.properties.sasl.username").is_some(), "it is still in effect");
        assert!(differing(&current, &current).is_empty());
    }
}
