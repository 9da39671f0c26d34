//! `postrider top`: a running relay on the whole terminal, refreshed each second.
//!
//! Invariant: the terminal is restored however the command ends (key, SIGTERM, SIGHUP, panic); only
//! the asking thread waits for the relay.

mod ends;
mod model;
mod screen;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, stdin, stdout};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::codes::ErrorCode;
use super::context::Context;
use super::exit::ExitCode;
use super::failure::CommandFailure;
use super::status::relay::{answer, reachable};
use ends::{events, is_terminal_gone, listen_for_signals};
use model::{Columns, Model, State};
use screen::View;

const ASK_EVERY: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `top [--url URL]`
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: q or Esc ends, arrows and Page keys move through the topics, h or ? explains.
Without a terminal: postrider status --watch

Examples:
  postrider top
  postrider top --stream orders            show this stream of several
  postrider top --url http://127.0.0.1:8485
  NO_COLOR=1 postrider top")]
pub struct TopArgs {
    /// URL of the relay's HTTP server [default: http.bind of the configuration]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
}

struct Target {
    address: SocketAddr,
    stream: Option<String>,
}

/// `/api/v1/streams` is empty for a relay with a single stream.
#[derive(serde::Deserialize)]
struct StreamEntry {
    name: String,
}

impl Target {
    /// Names the stream, with a `&` at the end; empty for a single stream.
    fn query(&self, streams: &[StreamEntry]) -> Result<String, String> {
        let names = || streams.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join(", ");
        match &self.stream {
            _ if streams.is_empty() => Ok(String::new()),
            Some(name) if streams.iter().any(|it| it.name == *name) => {
                Ok(format!("stream={name}&"))
            }
            Some(name) => {
                Err(format!("{} has no stream `{name}`; its streams are {}", self.address, names()))
            }
            None => Err(format!(
                "{} has several streams: postrider top --stream NAME; the names are {}",
                self.address,
                names()
            )),
        }
    }
}

type Reply = Result<(State, Columns), String>;

pub(crate) fn run(args: &TopArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let target = match &args.url {
        Some(url) => Target { address: address_of(url)?, stream: context.only().map(Into::into) },
        None => configured(context)?,
    };
    if context.json() || !stdout().is_terminal() || !stdin().is_terminal() {
        let failure = usage("top needs a terminal, and prints nothing else");
        return Err(failure.help("postrider status --watch; postrider status --output json"));
    }
    let ended = Arc::new(AtomicBool::new(false));
    listen_for_signals(Arc::clone(&ended))?;
    let (sender, replies) = channel();
    let model = Model::of(target.address.to_string(), target.stream.clone());
    std::thread::spawn(move || ask_for_ever(&target, &sender));
    let view = View { has_colors: context.color_stdout(), ..View::default() };
    let failed = |error: &std::io::Error| {
        CommandFailure::of(ExitCode::CheckFailed, ErrorCode::X022, error, None)
    };
    // This also installs a panic hook that restores the terminal.
    let mut terminal = ratatui::try_init().map_err(|error| failed(&error))?;
    let shown = show(&mut terminal, model, view, (&replies, &ended));
    let shown = shown.and(terminal.show_cursor());
    // Its drop with a hidden cursor prints to stderr, and panics if stderr was the terminal.
    std::mem::forget(terminal);
    let restored = ratatui::try_restore();
    if is_terminal_gone() {
        return Ok(ExitCode::Ok);
    }
    shown.and(restored).map(|()| ExitCode::Ok).map_err(|error| failed(&error))
}

fn usage(what: &str) -> CommandFailure {
    CommandFailure::new(ExitCode::Usage, ErrorCode::USAGE, what)
}

fn configured(context: &Context) -> Result<Target, CommandFailure> {
    let loaded = context.read(Vec::new())?;
    let bind = loaded.config.http.bind.map(reachable).filter(|address| address.port() != 0);
    let missing = || {
        let failure = usage("http.bind is empty or has port 0: no relay can be asked there");
        failure.help("postrider top --url http://HOST:PORT, as the relay logs it when it starts")
    };
    let address = bind.ok_or_else(missing)?;
    Ok(Target { address, stream: loaded.stream })
}

fn address_of(url: &str) -> Result<SocketAddr, CommandFailure> {
    let wrong = |why: String| {
        usage(&why)
            .help("postrider top --url http://HOST:PORT, as the relay logs it when it starts")
    };
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let authority = rest.split('/').next().unwrap_or_default();
    // Text before an `@` may be a password.
    if rest.contains("://") || authority.contains('@') {
        return Err(wrong("--url is no http://HOST:PORT".to_owned()));
    }
    let found = authority.to_socket_addrs();
    let found = found.map_err(|error| wrong(format!("--url names no address: {error}")))?;
    let mut found: Vec<_> = found.collect();
    // A relay listens at 127.0.0.1 by default, but `localhost` may be ::1 first.
    found.sort_by_key(SocketAddr::is_ipv6);
    found.first().copied().ok_or_else(|| wrong("--url names no address".to_owned()))
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    mut model: Model,
    mut view: View,
    (replies, ended): (&Receiver<Reply>, &AtomicBool),
) -> std::io::Result<()> {
    let (mut drawn, mut last_answer, events) = (None::<Instant>, Instant::now(), events());
    while !ended.load(Ordering::Relaxed) && !is_terminal_gone() {
        let mut is_new = drawn.is_none_or(|at| at.elapsed() >= ASK_EVERY);
        for reply in replies.try_iter() {
            is_new = true;
            if reply.is_ok() {
                last_answer = Instant::now();
            }
            model.take(reply);
        }
        if is_new {
            model.answered_before(last_answer.elapsed());
            terminal.draw(|frame| screen::render(frame, &model, &view))?;
            drawn = Some(Instant::now());
        }
        match events.recv_timeout(LOOK_EVERY) {
            Ok(Event::Key(key)) if is_end(key) => return Ok(()),
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                view.press(key.code, model.topics());
                drawn = None;
            }
            Ok(Event::Resize(..)) => drawn = None,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// In raw mode Ctrl-C is an ordinary key.
fn is_end(key: KeyEvent) -> bool {
    let is_control_c =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    is_control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
}

fn ask_for_ever(target: &Target, replies: &Sender<Reply>) {
    let mut known_ms = 0;
    loop {
        let reply = ask(target, known_ms);
        if let Ok((_, columns)) = &reply {
            known_ms = columns.last_ms().unwrap_or(known_ms);
        }
        if replies.send(reply).is_err() {
            return;
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn ask(target: &Target, known_ms: i64) -> Reply {
    let address = target.address;
    let text = |path: &str| {
        let (status, body) = answer(address, path).map_err(|silence| silence.to_string())?;
        match status {
            200 => Ok(body),
            404 => Err(format!(
                "the server at {address} serves no {path}: its http.dashboard is false, or it is not a relay"
            )),
            _ => Err(format!("{address} answers {status} to {path}: {}", body.trim())),
        }
    };
    let foreign = |_| format!("the server at {address} is not a relay of this version");
    let streams: Vec<_> = serde_json::from_str(&text("/api/v1/streams")?).map_err(foreign)?;
    let query = target.query(&streams)?;
    let state = text(&format!("/api/v1/state?{query}"))?;
    let state = serde_json::from_str(&state).map_err(foreign)?;
    let history = text(&format!("/api/v1/history?{query}after={known_ms}"))?;
    Ok((state, serde_json::from_str(&history).map_err(foreign)?))
}
