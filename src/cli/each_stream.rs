//! Commands that ask every stream of a file. The greatest exit code counts.
//!
//! Invariant: the answer for a single stream equals the answer for a file without `[[stream]]`. A
//! failure of one stream prevents no question to another.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::logs;
use postrider_config::{FlagValue, Loaded};

/// Each question takes threads and connections, and up to ten seconds if servers are away.
const AT_ONCE: usize = 16;

pub(super) struct EachStream<'a> {
    context: &'a Context,
    streams: Vec<Loaded>,
}

impl<'a> EachStream<'a> {
    pub(super) fn load(
        context: &'a Context,
        flags: Vec<FlagValue>,
    ) -> Result<Self, CommandFailure> {
        Ok(Self { context, streams: context.load_streams_with(flags)? })
    }

    pub(super) fn of(context: &'a Context, loaded: Loaded) -> Self {
        Self { context, streams: vec![loaded] }
    }

    pub(super) fn read(context: &'a Context) -> Result<Self, CommandFailure> {
        Ok(Self { context, streams: context.read_streams()? })
    }

    pub(super) fn all(&self) -> &[Loaded] {
        &self.streams
    }

    /// Whether answers must name their stream.
    pub(super) fn are_several(&self) -> bool {
        self.streams.len() > 1
    }

    pub(super) fn at_once<T: Send>(
        &self,
        ask: impl Fn(&Loaded) -> Result<T, CommandFailure> + Sync,
    ) -> Vec<Result<T, CommandFailure>> {
        if let [one] = &self.streams[..] {
            return vec![ask(one)];
        }
        let next = AtomicUsize::new(0);
        let work = || {
            let mut answers = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(stream) = self.streams.get(number) else { return answers };
                let _of_stream = logs::span_of(stream.stream.as_deref()).entered();
                answers.push((number, ask(stream)));
            }
        };
        let mut answers: Vec<_> = std::thread::scope(|scope| {
            let workers = AT_ONCE.min(self.streams.len());
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .flat_map(|answers| answers.unwrap_or_else(|it| std::panic::resume_unwind(it)))
                .collect()
        });
        answers.sort_by_key(|(number, _)| *number);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    pub(super) fn one_by_one(
        &self,
        mut act: impl FnMut(&Loaded) -> Result<ExitCode, CommandFailure>,
    ) -> Result<ExitCode, CommandFailure> {
        let act = |stream: &Loaded| {
            let name = self.are_several().then_some(stream.stream.as_deref()).flatten();
            let _of_stream = logs::span_of(name).entered();
            act(stream)
        };
        self.conclude(self.streams.iter().map(act).collect())
    }

    /// `show` returns the exit code.
    pub(super) fn print_all<T>(
        &self,
        answers: Vec<Result<T, CommandFailure>>,
        show: impl Fn(&Loaded, T) -> Result<ExitCode, CommandFailure>,
    ) -> Result<ExitCode, CommandFailure> {
        let shown = self.streams.iter().zip(answers).map(|(stream, answer)| match answer {
            Ok(answer) => show(stream, answer),
            Err(failure) => {
                if self.are_several() && self.context.json() {
                    self.context.print_json(&with_name(stream, failed(&failure)))?;
                }
                Err(failure)
            }
        });
        self.conclude(shown.collect())
    }

    pub(super) fn print(
        &self,
        stream: &Loaded,
        text: &str,
        value: impl FnOnce() -> Value,
    ) -> Result<(), CommandFailure> {
        if self.context.json() {
            return self.context.print_json(&with_name(stream, value()));
        }
        let begin = self.begin_of(stream);
        let end = if self.are_several() { "\n" } else { "" };
        self.context.print(&format!("{begin}{text}{end}"))
    }

    fn begin_of(&self, stream: &Loaded) -> String {
        match &stream.stream {
            Some(name) if self.are_several() => format!("stream `{name}`:\n"),
            _ => String::new(),
        }
    }

    fn conclude(
        &self,
        outcomes: Vec<Result<ExitCode, CommandFailure>>,
    ) -> Result<ExitCode, CommandFailure> {
        let code = |outcome: &Result<ExitCode, CommandFailure>| match outcome {
            Ok(exit) | Err(CommandFailure { exit, .. }) => *exit,
        };
        let worst = outcomes.iter().map(code).max_by_key(|exit| exit.number());
        let mut whole = CommandFailure::silent(worst.unwrap_or(ExitCode::Ok));
        let is_failure = outcomes.iter().any(Result::is_err);
        for (stream, outcome) in self.streams.iter().zip(outcomes) {
            let name = stream.stream.as_deref().filter(|_| self.are_several());
            let failure = outcome.err().map(|failure| match name {
                Some(name) => failure.of_stream(name),
                None => failure,
            });
            for mut finding in failure.into_iter().flat_map(|failure| failure.findings) {
                if let Some(name) = name {
                    finding.what = format!("stream `{name}`: {}", finding.what);
                }
                whole.findings.push(finding);
            }
        }
        if is_failure { Err(whole) } else { Ok(whole.exit) }
    }
}

fn failed(failure: &CommandFailure) -> Value {
    let mut value = failure.masked().to_value();
    if let Some(fields) = value.as_object_mut() {
        fields.insert("ok".to_owned(), json!(false));
    }
    value
}

fn with_name(stream: &Loaded, mut value: Value) -> Value {
    if let (Some(name), Some(fields)) = (&stream.stream, value.as_object_mut()) {
        fields.insert(logs::STREAM.to_owned(), json!(name));
    }
    value
}
