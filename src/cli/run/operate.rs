//! Applies operator requests to a running relay: SIGHUP, a changed configuration file, and orders
//! of the control API.
//!
//! Invariant: slow databases and file systems delay no order and no signal. A process that loses
//! its terminal ends, as by the system's default.

use std::fs::File;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::super::codes::ErrorCode;
use super::super::exit::ExitCode;
use super::super::failure::CommandFailure;
use super::super::logs;
use super::file_watch::FileWatch;
use super::reload::Reloader;
use super::systemd::ReloadNotice;
use postrider_config::ControlSection;
use postrider_relay::admin::{Access, Admin, ControlSocket, Order, ReloadReport, read_token};
use postrider_relay::{StopSignal, Streams};

/// Kubernetes takes up to a minute to update a ConfigMap; a user who edits a file waits for this.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Pause if the database was away and the configuration could not be checked.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
const ORDERS: usize = 16;

/// Running services. Must be [ended](Self::end).
pub(super) struct Operation {
    admin: Admin,
    access: Access,
    end: oneshot::Sender<()>,
    socket: Option<JoinHandle<io::Result<()>>>,
}

impl Operation {
    /// Begins to listen; requires a runtime.
    pub(super) fn begin(
        reloader: Reloader,
        stop: &StopSignal,
        streams: Option<Streams>,
    ) -> Result<Self, CommandFailure> {
        let Some(first) = reloader.streams.first() else { unreachable!("a relay has a stream") };
        let http = &first.loaded.config.http;
        let (has_address, ControlSection { socket, token_file }) =
            (http.bind.is_some(), http.control.clone());
        if let Some(file) = &token_file {
            read_token(file).map_err(|why| {
                CommandFailure::new(ExitCode::Config, ErrorCode::CONTROL_TOKEN, why)
                    .help("(umask 077; openssl rand -hex 32 > FILE), as the relay's user")
            })?;
            if !has_address {
                tracing::warn!(
                    help = "set http.bind, or use http.control.socket",
                    "http.control.token_file has no effect while http.bind is empty"
                );
            }
        }
        let (orders, ordered) = mpsc::channel(ORDERS);
        let graces = reloader.streams.iter().map(|one| one.loaded.config.shutdown.grace);
        let grace = graces.max().unwrap_or_default();
        let admin = Admin::new(stop.clone(), first.telemetry.clone(), orders, grace);
        let admin = match streams {
            Some(streams) => admin.of_streams(streams),
            None => admin.of_stream(first.loaded.stream.clone()),
        };
        let (end, ended) = oneshot::channel();
        let access = Access::at_http(token_file.as_ref(), socket.as_ref());
        let socket = socket.map(|path| listen(&path, admin.clone(), ended)).transpose()?;
        let watch = reloader.file().map(FileWatch::of);
        tokio::spawn(keep(reloader, (stop.clone(), ordered), watch));
        Ok(Self { admin, access, end, socket })
    }

    pub(super) fn at_http(&self) -> (Admin, Access) {
        (self.admin.clone(), self.access.clone())
    }

    /// Answers requests that have begun, and removes the socket.
    pub(super) async fn end(self) {
        drop(self.end);
        if let Some(served) = self.socket {
            // Clients that do not read their answer are not awaited.
            let _ = tokio::time::timeout(Duration::from_secs(1), served).await;
        }
    }
}

fn listen(
    path: &Path,
    admin: Admin,
    ended: oneshot::Receiver<()>,
) -> Result<JoinHandle<io::Result<()>>, CommandFailure> {
    let socket = ControlSocket::bind(path).map_err(|error| {
        let hint = Some(error.hint());
        CommandFailure::of(ExitCode::Config, ErrorCode::H010, &error, hint)
    })?;
    tracing::info!(path = %path.display(), "listening at the control socket");
    Ok(tokio::spawn(socket.serve(admin, async {
        let _ = ended.await;
    })))
}

/// Carries out orders. Slow reloads do not delay other orders.
async fn keep(
    reloader: Reloader,
    (stop, mut ordered): (StopSignal, mpsc::Receiver<Order>),
    watch: Option<FileWatch>,
) {
    // The number of waiting requests is bounded.
    let (reloads, asked) = mpsc::unbounded_channel();
    let mut reloading = pin!(keep_reloading(reloader, (stop, asked), watch));
    loop {
        tokio::select! {
            () = &mut reloading => return,
            order = ordered.recv() => match order {
                None => return,
                Some(Order::Reload(answer)) => {
                    let _ = reloads.send(answer);
                }
                Some(Order::LogLevel(filter, answer)) => {
                    let _ = answer.send(set_filter(filter));
                }
            },
        }
    }
}

async fn keep_reloading(
    mut reloader: Reloader,
    (stop, mut asked): (StopSignal, mpsc::UnboundedReceiver<oneshot::Sender<ReloadReport>>),
    mut watch: Option<FileWatch>,
) {
    let mut hangup = Hangup::begin();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = hangup.received(&stop) => {
                reload(&mut reloader, &mut watch, "SIGHUP").await;
            }
            answer = asked.recv() => {
                let Some(answer) = answer else { return };
                let mut answers = vec![answer];
                // Requests that arrived during the wait get this answer too.
                while let Ok(answer) = asked.try_recv() {
                    answers.push(answer);
                }
                let report = reload(&mut reloader, &mut watch, "the control API").await;
                for answer in answers {
                    let _ = answer.send(report.clone());
                }
            }
            _ = look.tick() => {
                let has_changed = match &mut watch {
                    Some(watch) => watch.look().await,
                    None => false,
                };
                if has_changed {
                    reload(&mut reloader, &mut watch, "a change of the file").await;
                }
            }
        }
    }
}

async fn reload(
    reloader: &mut Reloader,
    watch: &mut Option<FileWatch>,
    trigger: &str,
) -> ReloadReport {
    // The watch reads first, so that its next check finds later changes.
    if let Some(watch) = watch {
        watch.read_again().await;
    }
    let is_told = reloader.notice.as_ref().is_some_and(ReloadNotice::begin);
    let (report, again) = reloader.reload(trigger).await;
    if is_told && let Some(notice) = &reloader.notice {
        notice.end();
    }
    if let Some(watch) = watch {
        watch.again = again.then(|| Instant::now() + AGAIN_AFTER);
    }
    report
}

fn set_filter(filter: Option<String>) -> Result<String, String> {
    match filter {
        None => Ok(logs::filter()),
        Some(text) => {
            const SET: &str = "the log's filter was set by the control API";
            let before = logs::filter();
            // The change is logged by whichever filter shows it.
            let is_shown = tracing::enabled!(tracing::Level::INFO);
            if is_shown {
                logs::check_filter(&text)?;
                tracing::info!(before, after = text, "{SET}");
            }
            let after = logs::set_filter(&text)?;
            if !is_shown {
                tracing::info!(before, after, "{SET}");
            }
            Ok(after)
        }
    }
}

/// Requests a reload, or reports that the terminal has gone.
struct Hangup {
    /// `None` if SIGHUP is ignored, as by nohup(1), or cannot be received.
    signal: Option<Signal>,
    had_terminal: bool,
}

impl Hangup {
    fn begin() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let signal = if is_ignored(&status) { None } else { signal(SignalKind::hangup()).ok() };
        Self { signal, had_terminal: has_terminal() }
    }

    async fn received(&mut self, stop: &StopSignal) {
        loop {
            match &mut self.signal {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            };
            if !self.had_terminal || has_terminal() {
                return;
            }
            tracing::info!(signal = "SIGHUP", "the terminal was closed; stopping");
            stop.signal();
        }
    }
}

fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// SIGHUP is number 1 in the mask of `/proc/self/status`.
fn is_ignored(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_sighup_stays_ignored() {
        assert!(is_ignored("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!is_ignored("SigIgn:\t0000000000001000\n"));
        assert!(!is_ignored(""));
    }
}
