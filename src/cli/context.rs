//! `Context` of a command: loads the configuration, starts the log, and prints to stdout.
//!
//! Invariant: stdout carries only data; if its reader goes away, the program ends quietly without a
//! panic.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};

use clap::ColorChoice;
use serde::Serialize;

use super::arguments::{Globals, Output, log_variable};
use super::codes::ErrorCode;
use super::exit::ExitCode;
use super::failure::{CommandFailure, Form};
use super::logs;
use postrider_config::{
    ConfigError, Effective, FileChoice, FlagValue, Inputs, Loaded, LogFormat, SettingOrigin,
};
use postrider_relay::review;

/// Empty file, so that no other configuration is searched for.
const NO_FILE: &str = "/dev/null";

#[derive(Debug, Clone)]
pub struct Context {
    globals: Globals,
}

impl Context {
    pub const fn new(globals: Globals) -> Self {
        Self { globals }
    }

    pub fn json(&self) -> bool {
        self.globals.output == Output::Json
    }

    pub fn failure_form(&self) -> Form {
        if self.json() {
            Form::Object
        } else if self.logs_json() {
            Form::LogLines
        } else {
            Form::Text { color: self.color_stderr() }
        }
    }

    /// Whether the log is JSON, or would be if the configuration were valid.
    fn logs_json(&self) -> bool {
        const JSON: &str = "json";
        if let Some(format) = logs::format() {
            return format == LogFormat::Json;
        }
        if let Some(format) = &self.globals.log_format {
            return format == JSON;
        }
        let set = self.globals.set.iter().rev().find_map(|it| it.strip_prefix("log.format="));
        set.map_or_else(|| log_variable().is_some_and(|it| it == JSON), |it| it == JSON)
    }

    pub const fn is_quiet(&self) -> bool {
        self.globals.quiet > 0
    }

    pub fn color_stderr(&self) -> bool {
        colored(self.globals.color, io::stderr().is_terminal())
    }

    pub fn color_stdout(&self) -> bool {
        colored(self.globals.color, io::stdout().is_terminal())
    }

    pub fn load(&self, flags: Vec<FlagValue>) -> Result<Loaded, CommandFailure> {
        let loaded = self.read(flags)?;
        self.start_log(&loaded);
        Ok(loaded)
    }

    /// Loads every stream, or only the stream of `--stream`. A file without `[[stream]]` is one
    /// stream.
    pub fn load_streams(&self) -> Result<Vec<Loaded>, CommandFailure> {
        self.load_streams_with(Vec::new())
    }

    pub fn load_streams_with(&self, flags: Vec<FlagValue>) -> Result<Vec<Loaded>, CommandFailure> {
        let streams = postrider_config::load_streams(&self.inputs(flags), &review)?;
        if let Some(first) = streams.first() {
            self.start_log_of(first);
        }
        for loaded in &streams {
            let _of_stream = logs::span_of(loaded.stream.as_deref()).entered();
            loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
        Ok(streams)
    }

    pub fn read_streams(&self) -> Result<Vec<Loaded>, ConfigError> {
        postrider_config::load_streams(&self.inputs(Vec::new()), &review)
    }

    /// With JSON on stdout, stderr is JSON too, unless `log.format` is set.
    fn start_log_of(&self, loaded: &Loaded) {
        let mut log = loaded.config.log.clone();
        let is_default =
            |it: &Effective| it.key == "log.format" && it.origin == SettingOrigin::Default;
        if self.json() && loaded.effective.iter().any(is_default) {
            log.format = LogFormat::Json;
        }
        logs::start(&log, self.asks_for_level(), self.color_stderr());
    }

    fn start_log(&self, loaded: &Loaded) {
        self.start_log_of(loaded);
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
    }

    pub fn only(&self) -> Option<&str> {
        self.globals.only.as_deref()
    }

    pub fn names_file(&self) -> bool {
        self.globals.config.is_some()
    }

    /// `file` replaces the configuration file; environment, `--set` and flags override it as usual.
    pub fn load_file(
        &self,
        file: FileChoice,
        flags: Vec<FlagValue>,
    ) -> Result<Loaded, CommandFailure> {
        let loaded = postrider_config::load(&Inputs { file, ..self.inputs(flags) }, &review)?;
        self.start_log(&loaded);
        Ok(loaded)
    }

    /// Starts the log for a command without a configuration file.
    pub fn start_logs(&self) -> Result<(), CommandFailure> {
        let inputs = Inputs { file: FileChoice::Absent, only: None, ..self.inputs(Vec::new()) };
        let loaded = postrider_config::load(&inputs, &|_| Vec::new())?;
        self.start_log_of(&loaded);
        Ok(())
    }

    /// Searches for no file and does not start the log. A named file, `--set` and the environment
    /// count.
    pub fn read_named(&self, flags: Vec<FlagValue>) -> Result<Loaded, ConfigError> {
        let file = self.globals.config.clone().map_or(FileChoice::Absent, FileChoice::At);
        postrider_config::load(&Inputs { file, ..self.inputs(flags) }, &review)
    }

    pub fn load_named(&self, flags: Vec<FlagValue>) -> Result<Loaded, CommandFailure> {
        let loaded = self.read_named(flags)?;
        self.start_log(&loaded);
        Ok(loaded)
    }

    /// Arguments that make another process read the same configuration.
    pub fn arguments(&self) -> Vec<OsString> {
        let file = self.globals.config.clone().unwrap_or_else(|| NO_FILE.into());
        let set = self.globals.set.iter().flat_map(|set| ["--set".into(), set.into()]);
        let only = self.globals.only.iter().flat_map(|name| ["--only".into(), name.into()]);
        [OsString::from("--config"), file.into()].into_iter().chain(set).chain(only).collect()
    }

    pub fn sets_one_of(&self, keys: &[&'static str]) -> Option<&'static str> {
        let is_set = |key: &&&'static str| {
            let named =
                |set: &String| set.split('=').next().is_some_and(|name| name.trim() == **key);
            self.globals.set.iter().any(named)
        };
        keys.iter().find(is_set).copied()
    }

    pub fn read(&self, flags: Vec<FlagValue>) -> Result<Loaded, ConfigError> {
        postrider_config::load(&self.inputs(flags), &review)
    }

    pub fn print(&self, text: &str) -> Result<(), CommandFailure> {
        self.print_bytes(text.as_bytes())
    }

    pub fn print_bytes(&self, bytes: &[u8]) -> Result<(), CommandFailure> {
        logs::draw("");
        let mut out = io::stdout().lock();
        out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| broken(&error))
    }

    pub fn print_json(&self, value: &impl Serialize) -> Result<(), CommandFailure> {
        self.print(&json_line(value)?)
    }

    fn asks_for_level(&self) -> bool {
        self.globals.verbose > 0 || self.globals.quiet > 0
    }

    fn inputs(&self, mut flags: Vec<FlagValue>) -> Inputs {
        let level = match (self.globals.verbose, self.globals.quiet) {
            (0, 0) => None,
            (1, _) => Some(("debug", "-v")),
            (0, 1) => Some(("warn", "-q")),
            (0, _) => Some(("error", "-q")),
            _ => Some(("trace", "-v")),
        };
        flags.extend(level.map(|(level, flag)| FlagValue {
            key: "log.level",
            value: level.to_owned(),
            flag,
        }));
        flags.extend(self.globals.log_format.clone().map(|value| FlagValue {
            key: "log.format",
            value,
            flag: "--log-format",
        }));
        Inputs {
            file: self.globals.config.clone().map_or(FileChoice::Search, FileChoice::At),
            set: self.globals.set.clone(),
            only: self.globals.only.clone(),
            flags,
            // Variables of Postrider and libpq are text, so others are ignored.
            variables: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        }
    }
}

pub(super) fn json_line(value: &impl Serialize) -> Result<String, CommandFailure> {
    let text = serde_json::to_string(value).map_err(|error| {
        CommandFailure::of(ExitCode::CheckFailed, ErrorCode::X002, &error, None)
    })?;
    Ok(text + "\n")
}

/// A reader that went away is not an error.
pub(super) fn broken(error: &io::Error) -> CommandFailure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return CommandFailure::silent(ExitCode::Ok);
    }
    CommandFailure::new(ExitCode::CheckFailed, ErrorCode::STDOUT, "cannot write to stdout")
        .why(error.to_string())
}

/// Follows <https://no-color.org> and <https://bixense.com/clicolors>.
fn colored(choice: ColorChoice, terminal: bool) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if is_set("NO_COLOR") => false,
        ColorChoice::Auto => {
            is_set("CLICOLOR_FORCE")
                || (terminal && std::env::var_os("TERM").is_none_or(|t| t != "dumb"))
        }
    }
}
