//! Reads the configuration again while the relay runs, and takes over what can be changed: columns, routes, formats, and
//! the log level.
//!
//! Input: the place that the configuration came from, and what is in effect, of each stream. Output: a [`ReloadReport`]; new routes for
//! the relay, settings for the dashboard, lines in the log. Invariant: a configuration that is wrong, or that cannot be
//! checked against the database, changes nothing and ends nothing; nor does a file that is gone, or that nobody answers
//! for; what is taken over has passed every check of a start.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::codes::ErrorCode;
use super::super::context::Context;
use super::super::exit::ExitCode;
use super::super::failure::{CommandFailure, Diagnostic};
use super::super::import::load_imported;
use super::super::logs;
use super::file_watch::refuse_unfit;
use super::setting;
use super::systemd::ReloadNotice;
use postrider_config::{Config, Effective, LEVEL, Loaded, is_taken_over, taken_over};
use postrider_relay::admin::{ReloadError, ReloadReport};
use postrider_relay::telemetry::{ReloadOutcome, Telemetry};
use postrider_relay::{RelayError, StopSignal, check_columns};
use postrider_secrets::mask::mask_sentence;
use tracing::Instrument as _;

/// How long the database may take to tell its columns.
const CHECK_LIMIT: Duration = Duration::from_secs(15);

/// How long the files of the configuration may take.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// Where a configuration comes from.
#[derive(Debug, Clone)]
pub(super) struct ConfigSource {
    pub(super) context: Context,
    /// A file of Debezium's, in the place of one of ours.
    pub(super) debezium: Option<PathBuf>,
}

impl ConfigSource {
    /// Reads all of it, and starts the log.
    pub(super) fn load(&self) -> Result<Vec<Loaded>, CommandFailure> {
        match &self.debezium {
            Some(path) => Ok(vec![load_imported(path, &self.context, Vec::new())?]),
            None => self.context.load_streams(),
        }
    }

    /// Reads all of it again.
    fn read(&self) -> Result<Vec<Loaded>, CommandFailure> {
        match &self.debezium {
            Some(path) => Ok(vec![load_imported(path, &self.context, Vec::new())?]),
            None => Ok(self.context.read_streams()?),
        }
    }

    /// The file whose content is watched, if it has one that can be read again.
    pub(super) fn file(&self, loaded: &Loaded) -> Option<PathBuf> {
        let file = self.debezium.clone().or_else(|| loaded.file.clone())?;
        std::fs::metadata(&file).is_ok_and(|found| found.is_file()).then_some(file)
    }
}

/// See the module.
pub(super) struct Reloader {
    pub(super) source: ConfigSource,
    /// Each that the process runs; at least one.
    pub(super) streams: Vec<InEffect>,
    /// Who waits for the end of a reload, if anybody does.
    pub(super) notice: Option<ReloadNotice>,
    /// Streams that are new in the file or gone, of which it was said that this takes a restart.
    pub(super) told: Vec<String>,
}

/// One stream, or the relay, and what is in effect of its configuration.
pub(super) struct InEffect {
    pub(super) loaded: Loaded,
    pub(super) stop: StopSignal,
    pub(super) telemetry: Telemetry,
    /// What was said to take a restart.
    told: Vec<String>,
}

/// What is new in a configuration.
struct News {
    config: Config,
    effective: Vec<Effective>,
    changed: Vec<String>,
    takes_restart: Vec<String>,
}

impl Reloader {
    /// Reads the configuration again, upon this `trigger`. Whether to try again later: a database could not be asked.
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
        let mut whole = ReloadReport {
            outcome: ReloadOutcome::Unchanged,
            changed: Vec::new(),
            takes_restart: fresh,
            errors: Vec::new(),
        };
        let mut again = false;
        for one in &mut self.streams {
            let span = logs::span_of(one.loaded.stream.as_deref());
            let name = one.loaded.stream.clone();
            let found = next.iter().find(|next| next.stream == name);
            let (report, later) = one.take_over(found, trigger).instrument(span).await;
            again |= later;
            add(&mut whole, report, name.as_deref());
        }
        (whole, again)
    }

    /// Says once which streams are new in the file, or gone from it.
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

    /// The file that is in effect.
    pub(super) fn file(&self) -> Option<PathBuf> {
        self.source.file(self.streams.first().map(|one| &one.loaded)?)
    }

    /// What a start would read, from the file that is in effect.
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
            // Between the look at it and the search for it.
            return Err(unreadable("it is gone".to_owned()));
        }
        Ok(next)
    }
}

impl InEffect {
    /// Of a stream that begins.
    pub(super) const fn new(loaded: Loaded, stop: StopSignal, telemetry: Telemetry) -> Self {
        Self { loaded, stop, telemetry, told: Vec::new() }
    }

    /// Takes over what can be. A stream that is in the file no more goes on until the process is restarted.
    async fn take_over(&mut self, next: Option<&Loaded>, trigger: &str) -> (ReloadReport, bool) {
        let Some(next) = next else {
            let takes_restart = self.loaded.stream.as_deref().map(in_file).into_iter().collect();
            let (changed, errors) = (Vec::new(), Vec::new());
            let outcome = ReloadOutcome::Unchanged;
            return (ReloadReport { outcome, changed, takes_restart, errors }, false);
        };
        let (report, again) = match Box::pin(self.news(next.clone())).await {
            Ok(news) => (self.apply(news, trigger), false),
            Err(failure) => {
                let again = failure.exit == ExitCode::Unavailable;
                (refused(&failure, trigger), again)
            }
        };
        self.telemetry.count_reload(report.outcome);
        (report, again)
    }

    async fn news(&self, next: Loaded) -> Result<News, CommandFailure> {
        let current = &self.loaded;
        let config = taken_over(&current.config, &next.config).map_err(|refusal| {
            let failure = CommandFailure::new(ExitCode::Config, ErrorCode::C011, refusal.reason)
                .why("the rest of the configuration stays as it is until the relay is restarted");
            match refusal.help {
                Some(help) => failure.help(help),
                None => failure,
            }
        })?;
        let (changed, takes_restart): (Vec<_>, Vec<_>) =
            differing(current, &next).into_iter().partition(|key| is_taken_over(key));
        if changed.iter().any(|key| key != LEVEL) {
            let Ok(checked) = tokio::time::timeout(CHECK_LIMIT, check_columns(&config)).await
            else {
                let what = "the database does not say whether it has the columns of the new routes";
                let seconds = CHECK_LIMIT.as_secs();
                let failure = CommandFailure::new(ExitCode::Unavailable, ErrorCode::P120, what);
                return Err(failure.why(format!("no answer within {seconds} s")));
            };
            checked?;
        }
        let effective = put_together(&current.effective, next.effective);
        Ok(News { config, effective, changed, takes_restart })
    }

    fn apply(&mut self, news: News, trigger: &str) -> ReloadReport {
        let News { config, effective, changed, takes_restart } = news;
        let options = changed.join(", ");
        if changed.iter().any(|key| key != LEVEL) {
            tracing::info!(
                trigger,
                options,
                "configuration reloaded; routes change with the next transaction"
            );
            self.stop.control().reconfigure(config.clone());
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
        ReloadReport { outcome, changed, takes_restart, errors: Vec::new() }
    }
}

/// What names a stream in a report.
fn in_file(name: &str) -> String {
    format!("stream.{name}")
}

/// Adds what became of one stream; options and mistakes are told by its name.
fn add(whole: &mut ReloadReport, report: ReloadReport, stream: Option<&str>) {
    let named = |key: String| match stream {
        Some(name) if !key.starts_with("stream.") => format!("{}.{key}", in_file(name)),
        _ => key,
    };
    let ReloadReport { outcome, changed, takes_restart, errors } = report;
    whole.outcome = match (whole.outcome, outcome) {
        (ReloadOutcome::Refused, _) | (_, ReloadOutcome::Refused) => ReloadOutcome::Refused,
        (ReloadOutcome::Applied, _) | (_, ReloadOutcome::Applied) => ReloadOutcome::Applied,
        (ReloadOutcome::Unchanged, ReloadOutcome::Unchanged) => ReloadOutcome::Unchanged,
    };
    whole.changed.extend(changed.into_iter().map(named));
    whole.takes_restart.extend(takes_restart.into_iter().map(named));
    whole.errors.extend(errors.into_iter().map(|error| match stream {
        Some(name) => ReloadError { what: format!("stream `{name}`: {}", error.what), ..error },
        None => error,
    }));
}

/// The report that a start would end with, in the log.
fn refused(failure: &CommandFailure, trigger: &str) -> ReloadReport {
    let mut errors = Vec::new();
    for finding in &failure.findings {
        let Diagnostic { code, what, why, help, .. } = finding;
        let place = finding
            .excerpt
            .as_ref()
            .map(|place| format!("{}:{}:{}", place.path.display(), place.line, place.column));
        let (why, help) = (why.as_deref(), help.as_deref());
        tracing::error!(
            trigger,
            code = code.as_str(),
            place = place.as_deref(),
            why,
            help,
            "the configuration is refused, and the one before stays: {what}"
        );
        // As the log does by itself.
        let masked = |text: &str| mask_sentence(text).into_owned();
        let what = why.map_or_else(|| masked(what), |why| masked(&format!("{what}: {why}")));
        errors.push(ReloadError { code: code.as_str(), what, place, help: help.map(masked) });
    }
    ReloadReport {
        outcome: ReloadOutcome::Refused,
        changed: Vec::new(),
        takes_restart: Vec::new(),
        errors,
    }
}

/// Options with another value, in the order of the documentation. Values that are shown alike may differ in a secret.
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
            // One that is read from a file of its own is read again whenever it is needed.
            let is_fixed = !config.kafka.secret_files.contains_key(name);
            config.kafka.properties.iter().find(is_named).filter(|_| is_fixed).cloned()
        };
        (key == "source.url" && one.source.url != other.source.url)
            || property(one) != property(other)
    };
    let differs = |key: &&str| value(current, key) != value(next, key) || secret(key);
    // What connection strings come to is no option.
    let is_option =
        |key: &&str| *key != "source.connect" || value(current, key) != value(next, key);
    keys.into_iter().filter(differs).filter(is_option).map(str::to_owned).collect()
}

/// What is in effect once the new values are that can be taken over.
fn put_together(current: &[Effective], next: Vec<Effective>) -> Vec<Effective> {
    let known: BTreeSet<String> = next.iter().map(|one| one.key.clone()).collect();
    let mut all: Vec<Effective> = next
        .into_iter()
        .filter_map(|one| {
            let before = || current.iter().find(|before| before.key == one.key).cloned();
            if is_taken_over(&one.key) { Some(one) } else { before() }
        })
        .collect();
    let kept = current.iter().filter(|one| !known.contains(&one.key) && !is_taken_over(&one.key));
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
        let effective = put_together(&current.effective, next.effective);
        let value = |key: &str| {
            effective.iter().find(|one| one.key == key).map(|one| one.value.to_string())
        };
        assert_eq!(value("route.topic").as_deref(), Some("\"y\""));
        assert_eq!(value("route.rules.0.glob").as_deref(), Some("\"z\""));
        assert!(value("kafka.properties.sasl.username").is_some(), "it is still in effect");
        assert!(differing(&current, &current).is_empty());
    }
}
