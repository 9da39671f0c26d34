//! `postrider ctl`: pauses, resumes, drains and reloads a running relay, and sets its log filter.
//!
//! With `--socket`, a relay whose file is now wrong can be controlled. Time and size of an answer
//! are bounded; no output contains the token.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::Value;

use super::codes::ErrorCode;
use super::context::Context;
use super::counted::counted;
use super::exit::ExitCode;
use super::failure::{CommandFailure, Diagnostic, printable};
use super::status::relay::reachable;
use postrider_config::Config;
use postrider_relay::admin::read_token;

/// Maximum time of an answer: a reload asks the database.
const LIMIT: Duration = Duration::from_secs(35);
const BYTES_MAX: u64 = 1 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time that the end of a process takes besides `shutdown.grace`.
const END: Duration = Duration::from_secs(30);

/// `ctl [--socket PATH] pause|resume|drain|reload|log-level|status`
#[derive(Debug, Args)]
#[command(after_help = "Finds the relay by its configuration: http.control.socket, or http.bind \
with
http.control.token_file. --socket reads no configuration, so that it also works while the \
file
is wrong.

Exit code: 1 if the relay refuses, 69 if no relay answers, 77 if this user may \
not control the
relay, 78 if the configuration is wrong or has neither socket nor \
token.

Examples:
  postrider ctl pause
  postrider ctl pause --stream orders    pause this \
stream of several
  postrider ctl resume --stream orders   restart a failed stream
  postrider \
ctl --socket /run/postrider/control status
  postrider ctl log-level \
info,postrider::kafka=debug
  postrider ctl status --output json | jq .paused
  sudo -u \
postrider postrider ctl reload")]
pub struct CtlArgs {
    /// Control socket of the relay, instead of the configured one
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Stop reading until `resume` or until the process ends; a slot retains WAL
    Pause,
    /// Resume after `pause`; restart a failed stream immediately
    Resume,
    /// Deliver the rows already read, acknowledge them, exit with code 0
    Drain {
        /// Wait until the process has ended. Only the parent of the process learns its exit
        /// code.
        #[arg(long)]
        wait: bool,
    },
    /// Reload the configuration: routes, columns, formats and log level
    Reload,
    /// Print the log filter, or set it until the process ends
    LogLevel {
        /// Level, or levels per module, as in RUST_LOG
        filter: Option<String>,
    },
    /// Print the state of the relay, and whether it is paused
    Status,
}

enum Way {
    Socket(PathBuf),
    Http { address: std::net::SocketAddr, token: String },
}

struct Answer {
    status: u16,
    body: Value,
}

pub(crate) fn run(args: &CtlArgs, context: &Context) -> Result<ExitCode, CommandFailure> {
    let CtlArgs { socket, command } = args;
    let way = match socket {
        Some(socket) => Way::Socket(socket.clone()),
        // All streams share one control socket.
        None => match context.load_streams().map_err(by_socket)?.first() {
            Some(loaded) => Way::of(&loaded.config)?,
            None => unreachable!("a configuration has a stream at least"),
        },
    };
    let of_stream = context.only().map(|name| format!("?stream={name}")).unwrap_or_default();
    let (method, path, body) = match command {
        CtlCommand::Pause => ("POST", "pause", ""),
        CtlCommand::Resume => ("POST", "resume", ""),
        CtlCommand::Drain { .. } => ("POST", "drain", ""),
        CtlCommand::Reload => ("POST", "reload", ""),
        CtlCommand::LogLevel { filter: None } => ("GET", "log-level", ""),
        CtlCommand::LogLevel { filter: Some(filter) } => ("PUT", "log-level", filter.as_str()),
        CtlCommand::Status => ("GET", "status", ""),
    };
    let answer = way.ask(method, &format!("{path}{of_stream}"), body)?;
    if context.json() && !matches!(answer.status, 401 | 403) {
        context.print_json(&answer.body)?;
    }
    answer.check()?;
    if !context.json() {
        context.print(&printable(&told(command, &answer.body)))?;
    }
    if let CtlCommand::Drain { wait: true } = command {
        way.wait_end(Duration::from_secs(answer.number("grace_seconds")) + END)?;
        if !context.json() {
            context.print(
                "the relay has ended; its parent process has the exit code, 0 if \
                           everything was confirmed\n",
            )?;
        }
    }
    Ok(ExitCode::Ok)
}

/// A running relay uses an earlier, valid configuration.
fn by_socket(failure: CommandFailure) -> CommandFailure {
    let help = failure.findings.last().and_then(|finding| finding.help.clone());
    let help = help.map(|help| format!("{help}; ")).unwrap_or_default();
    failure.help(format!(
        "{help}to control a relay that runs by an earlier configuration: postrider ctl --socket PATH .."
    ))
}

impl Way {
    fn of(config: &Config) -> Result<Self, CommandFailure> {
        let control = &config.http.control;
        if let Some(socket) = &control.socket {
            return Ok(Self::Socket(socket.clone()));
        }
        let (Some(file), Some(bind)) = (&control.token_file, config.http.bind) else {
            let what = "the configuration names no way to control a relay";
            return Err(CommandFailure::new(ExitCode::Config, ErrorCode::H012, what).help(
                "set http.control.socket, such as \"/run/postrider/control\", or http.control.token_file beside http.bind, \
                 and restart the relay",
            ));
        };
        let token = read_token(file).map_err(|why| {
            CommandFailure::new(ExitCode::Permission, ErrorCode::CONTROL_TOKEN, why).help(
                "run it on the relay's machine, as a user with read access to that file; or set \
                 http.control.socket",
            )
        })?;
        Ok(Self::Http { address: reachable(bind), token })
    }

    fn name(&self) -> String {
        match self {
            Self::Socket(path) => format!("`{}`", path.display()),
            Self::Http { address, .. } => address.to_string(),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Answer, CommandFailure> {
        let text = match self {
            Self::Socket(socket) => UnixStream::connect(socket).and_then(|mut stream| {
                stream.set_read_timeout(Some(LIMIT))?;
                stream.set_write_timeout(Some(LIMIT))?;
                exchange(&mut stream, &request(method, path, "", body))
            }),
            Self::Http { address, token } => {
                TcpStream::connect_timeout(address, LIMIT).and_then(|mut stream| {
                    stream.set_read_timeout(Some(LIMIT))?;
                    stream.set_write_timeout(Some(LIMIT))?;
                    let token = format!("authorization: Bearer {token}\r\n");
                    exchange(&mut stream, &request(method, path, &token, body))
                })
            }
        };
        let text = text.map_err(|error| self.silent(&error))?;
        Answer::of(&text).ok_or_else(|| {
            let what =
                format!("the server at {} is not a relay that can be controlled", self.name());
            CommandFailure::new(ExitCode::Unavailable, ErrorCode::RELAY_SILENT, what)
                .help("is that the address of the relay's HTTP server, http.bind, and is the relay of this version?")
        })
    }

    fn silent(&self, error: &io::Error) -> CommandFailure {
        if error.kind() == ErrorKind::PermissionDenied {
            let what = format!("this user may not connect to the control socket {}", self.name());
            return CommandFailure::new(ExitCode::Permission, ErrorCode::CONTROL_FORBIDDEN, what)
                .help("run it as the relay's own user: sudo -u postrider postrider ctl ..");
        }
        let what = format!("no relay answers at {}", self.name());
        CommandFailure::new(ExitCode::Unavailable, ErrorCode::RELAY_SILENT, what)
            .why(error.to_string())
            .help(
                "is it running, and was it started with this configuration? `postrider status` \
                   shows the session that uses the slot",
            )
    }

    fn wait_end(&self, limit: Duration) -> Result<(), CommandFailure> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            let is_there = match self {
                Self::Socket(path) => UnixStream::connect(path).is_ok(),
                Self::Http { address, .. } => TcpStream::connect(address).is_ok(),
            };
            if !is_there {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let what = format!("the relay at {} is still there", self.name());
        Err(CommandFailure::new(ExitCode::CheckFailed, ErrorCode::CONTROL_REFUSED, what)
            .why(format!("it was asked to end {} s ago", limit.as_secs())))
    }
}

fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} /api/v1/{path} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// HTTP/1.0: the answer ends with the connection.
fn exchange(stream: &mut (impl Read + Write), request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

impl Answer {
    fn of(text: &str) -> Option<Self> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
        Some(Self { status, body: serde_json::from_str(body).ok()? })
    }

    fn text(&self, name: &str) -> Option<String> {
        Some(self.body.get(name)?.as_str()?.to_owned())
    }

    fn number(&self, name: &str) -> u64 {
        self.body.get(name).and_then(Value::as_u64).unwrap_or_default()
    }

    fn check(&self) -> Result<(), CommandFailure> {
        let (exit, code) = match self.status {
            200..=299 => return Ok(()),
            401 | 403 => (ExitCode::Permission, ErrorCode::CONTROL_FORBIDDEN),
            503 | 504 => (ExitCode::Unavailable, ErrorCode::RELAY_SILENT),
            _ => (ExitCode::CheckFailed, ErrorCode::CONTROL_REFUSED),
        };
        let mistakes = self.body.get("errors").and_then(Value::as_array);
        if let Some(mistakes) = mistakes.filter(|mistakes| !mistakes.is_empty()) {
            let findings = mistakes.iter().map(|mistake| {
                let text = |name: &str| Some(mistake.get(name)?.as_str()?.to_owned());
                let told =
                    [text("code"), text("what"), text("place").map(|place| format!("at {place}"))];
                let told: Vec<String> = told.into_iter().flatten().collect();
                let what = format!("the relay refuses the configuration: {}", told.join(" "));
                Diagnostic { code, what, why: None, excerpt: None, help: text("help") }
            });
            return Err(CommandFailure { exit, findings: findings.collect() });
        }
        let what = self.text("error").unwrap_or_else(|| "the relay refuses".to_owned());
        let failure = CommandFailure::new(exit, code, format!("the relay refuses: {what}"));
        Err(match self.text("help") {
            // The relay's own text addresses authors of HTTP requests.
            _ if self.status == 401 => failure.help(
                "the relay was given another http.control.token_file, or another token is in it",
            ),
            Some(help) => failure.help(help),
            None => failure,
        })
    }
}

fn told(command: &CtlCommand, body: &Value) -> String {
    let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| body.get(name).and_then(Value::as_u64).unwrap_or_default();
    let list = |name: &str| {
        let items = body.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
    };
    match command {
        CtlCommand::Pause => {
            let notes = body.get("notes").and_then(Value::as_array).into_iter().flatten();
            let mut notes = notes.filter_map(Value::as_str);
            notes.find(|note| note.starts_with("paused ")).unwrap_or("paused").to_owned() + "\n"
        }
        CtlCommand::Resume if body.get("begins_anew_at").is_some_and(Value::is_string) => {
            "resumed: the failed stream restarts\n".to_owned()
        }
        CtlCommand::Resume => "resumed\n".to_owned(),
        CtlCommand::Drain { .. } => format!(
            "stopping, within {1} s: {0} records are unconfirmed. The relay waits for {2}\n",
            number("in_flight_records"),
            number("grace_seconds"),
            text("waits_for")
        ),
        CtlCommand::LogLevel { .. } => format!("{}\n", text("filter")),
        CtlCommand::Reload => {
            let mut told = match text("outcome") {
                "applied" => format!("applied: {}\n", list("changed")),
                _ => "nothing to apply\n".to_owned(),
            };
            for error in body.get("not_asked").and_then(Value::as_array).into_iter().flatten() {
                let what = error.get("what").and_then(Value::as_str).unwrap_or_default();
                let _ = writeln!(told, "not applied, as the database could not be asked: {what}");
            }
            let takes_restart = list("takes_restart");
            if !takes_restart.is_empty() {
                let _ = writeln!(told, "needs a restart: {takes_restart}");
            }
            told
        }
        CtlCommand::Status => {
            let is = |name: &str| body.get(name).and_then(Value::as_bool) == Some(true);
            let ready = if is("ready") { "ready" } else { "not ready" };
            let mut told = format!(
                "{}, {ready}, {}; slot `{}`; {} in flight; version {}\n",
                text("state"),
                text("role"),
                text("slot"),
                counted(number("in_flight_records"), "record"),
                text("version")
            );
            if is("draining") {
                told += "stopping\n";
            }
            for note in body.get("notes").and_then(Value::as_array).into_iter().flatten() {
                told += note.as_str().unwrap_or_default();
                told.push('\n');
            }
            told
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_read_and_a_refusal_keeps_its_words() {
        let answer = Answer::of("HTTP/1.0 200 OK\r\na: b\r\n\r\n{\"paused\":true}").unwrap();
        assert!(answer.check().is_ok());
        assert!(Answer::of("SSH-2.0-OpenSSH\r\n\r\n{}").is_none());
        assert!(Answer::of("HTTP/1.1 200 OK\r\n\r\nhello").is_none());
        let body = json!({ "error": "nobody may", "help": "set it" });
        let refused = Answer { status: 403, body }.check().unwrap_err();
        assert_eq!(refused.exit, ExitCode::Permission);
        let text = refused.to_text(false);
        assert!(text.contains("nobody may") && text.contains("help: set it"), "{text}");
        let mistake = json!({ "code": "PR-C003", "what": "no `x`", "place": "p:1:2", "help": "y" });
        let refused =
            Answer { status: 422, body: json!({ "errors": [mistake] }) }.check().unwrap_err();
        let text = refused.to_text(false);
        assert!(text.contains("PR-C003 no `x` at p:1:2") && text.contains("help: y"), "{text}");
    }

    #[test]
    fn people_read_what_a_pause_means_for_their_source() {
        let notes = ["no broker answers", "paused since 1: nothing is read, and rows wait"];
        let text = told(&CtlCommand::Pause, &json!({ "notes": notes }));
        assert_eq!(text, "paused since 1: nothing is read, and rows wait\n");
    }

    #[test]
    fn people_read_what_a_reload_did() {
        let body = json!({ "outcome": "applied", "changed": ["route.topic"], "takes_restart": ["source.slot"] });
        let text = told(&CtlCommand::Reload, &body);
        assert_eq!(text, "applied: route.topic\nneeds a restart: source.slot\n");
    }
}
