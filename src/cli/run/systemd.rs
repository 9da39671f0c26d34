//! Reports the relay's state to the service manager with sd_notify(3): ready, alive, reloading,
//! stopping, and a status line.
//!
//! Invariant: ready is sent once, by a relay that streams, stands by or waits for a server, and
//! again after each announced reload. Alive is sent only while `/livez` succeeds. A failed datagram
//! stops nothing.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_relay::telemetry::{RelayState, Telemetry, View, liveness};
use postrider_relay::{ControlRequest, StopSignal, Streams};
use rustix::time::{ClockId, clock_gettime};

/// Interval of reports. `systemctl start` waits for the first one.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Time to log out and close, beyond the grace period.
const END: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Systemd {
    socket: Arc<UnixDatagram>,
    told: Told,
    service: Arc<Mutex<Service>>,
}

#[derive(Debug, Default)]
struct Service {
    /// Ready was sent, and stopping was not.
    is_serving: bool,
    /// The end of an announced reload was not reported yet.
    owes_ready: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ReloadNotice {
    socket: Arc<UnixDatagram>,
    service: Arc<Mutex<Service>>,
}

impl ReloadNotice {
    /// Returns true if the manager must be told of the [end](Self::end).
    pub(super) fn begin(&self) -> bool {
        let service = lock(&self.service);
        let now = clock_gettime(ClockId::Monotonic);
        let now_us = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
        let news = format!("RELOADING=1\nMONOTONIC_USEC={now_us}\n");
        service.is_serving && self.socket.send(news.as_bytes()).is_ok()
    }

    pub(super) fn end(&self) {
        let mut service = lock(&self.service);
        // A failed datagram is repeated with the next report.
        service.owes_ready = service.is_serving && self.socket.send(b"READY=1\n").is_err();
    }
}

fn lock(service: &Mutex<Service>) -> MutexGuard<'_, Service> {
    service.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) struct Seen {
    is_ready: bool,
    is_alive: bool,
    status: String,
}

impl Seen {
    pub(super) fn of(telemetry: &Telemetry) -> Self {
        Self::of_view(&telemetry.view())
    }

    fn of_view(view: &View) -> Self {
        let is_ready = is_ready(view.snapshot.state);
        Self { is_ready, is_alive: liveness(view).ok, status: status(view) }
    }

    /// Ready once each stream has begun or had its time to, and one serves.
    pub(super) fn of_streams(streams: &Streams) -> Self {
        let mut states = streams.each().map(|one| one.telemetry.view().snapshot.state);
        Self {
            is_ready: streams.has_begun() && states.any(is_ready),
            is_alive: streams.liveness().whole.ok,
            status: streams.line().replace(char::is_control, " "),
        }
    }
}

#[derive(Debug, Default)]
struct Told {
    watchdog: Option<Duration>,
    grace: Duration,
    ready: bool,
    stopping: bool,
    alive: Option<Instant>,
    status: String,
}

impl Systemd {
    /// The manager is asked for more time, because `grace` may exceed the unit's stop timeout.
    pub(super) fn of_environment(grace: Duration) -> Option<Self> {
        let address = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty())?;
        let told =
            Told { watchdog: watchdog(|name| std::env::var_os(name)), grace, ..Told::default() };
        match connect(&address) {
            Ok(socket) => Some(Self { socket: Arc::new(socket), told, service: Arc::default() }),
            Err(error) => {
                tracing::warn!("cannot reach the service manager at NOTIFY_SOCKET: {error}");
                None
            }
        }
    }

    pub(super) fn reload_notice(&self) -> ReloadNotice {
        ReloadNotice { socket: Arc::clone(&self.socket), service: Arc::clone(&self.service) }
    }

    pub(super) async fn during<T>(
        mut self,
        seen: impl Fn() -> Seen,
        stop: StopSignal,
        work: impl Future<Output = T>,
    ) -> T {
        let every = self.told.watchdog.map_or(TELL_EVERY, |every| TELL_EVERY.min(every));
        let mut work = Box::pin(work);
        loop {
            self.tell(&seen(), &stop);
            if let Ok(ended) = tokio::time::timeout(every, &mut work).await {
                self.tell(&seen(), &stop);
                return ended;
            }
        }
    }

    fn tell(&mut self, seen: &Seen, stop: &StopSignal) {
        let stops = stop.most_urgent() >= ControlRequest::Drain;
        // Orders this report with the begin and end of a reload.
        let mut service = lock(&self.service);
        let mut news = self.told.news(seen, stops, Instant::now());
        if service.owes_ready && !news.contains("READY=1\n") && !stops {
            news.push_str("READY=1\n");
        }
        if news.is_empty() {
            return;
        }
        // A manager that restarts, or whose queue is full, gets a full report next.
        if self.socket.send(news.as_bytes()).is_err() {
            let Told { watchdog, grace, .. } = self.told;
            self.told = Told { watchdog, grace, ..Told::default() };
            return;
        }
        let is_serving = self.told.ready && !self.told.stopping;
        *service = Service { is_serving, owes_ready: false };
    }
}

impl Told {
    fn news(&mut self, seen: &Seen, stops: bool, now: Instant) -> String {
        let mut news = String::new();
        if !self.ready && seen.is_ready {
            self.ready = true;
            news.push_str("READY=1\n");
        }
        if stops && !self.stopping {
            self.stopping = true;
            let _ = writeln!(
                news,
                "STOPPING=1\nEXTEND_TIMEOUT_USEC={}",
                (self.grace + END).as_micros()
            );
        }
        if seen.status != self.status {
            let _ = writeln!(news, "STATUS={}", seen.status);
            self.status.clone_from(&seen.status);
        }
        if let Some(every) = self.watchdog
            && self.alive.is_none_or(|at| now.saturating_duration_since(at) >= every)
            && seen.is_alive
        {
            self.alive = Some(now);
            news.push_str("WATCHDOG=1\n");
        }
        news
    }
}

/// Whether `systemctl start` is complete. The relay itself waits for an unreachable server: a
/// restart would not help, and a booting machine would report a failed unit.
fn is_ready(state: RelayState) -> bool {
    match state {
        RelayState::Starting | RelayState::Failed => false,
        RelayState::Standby
        | RelayState::Streaming
        | RelayState::Stalled
        | RelayState::Retrying
        | RelayState::Draining
        | RelayState::Stopped => true,
    }
}

fn status(view: &View) -> String {
    let snapshot = &view.snapshot;
    let state = snapshot.state.as_str();
    let line = match &snapshot.last_failure {
        Some(failure) if snapshot.state != RelayState::Streaming => format!("{state}: {failure}"),
        _ => state.to_owned(),
    };
    line.replace(char::is_control, " ")
}

/// Half the watchdog's time, as sd_watchdog_enabled(3) advises. The time may be meant for another
/// process.
fn watchdog(variable: impl Fn(&str) -> Option<OsString>) -> Option<Duration> {
    let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let limit = number("WATCHDOG_USEC").filter(|&limit| limit > 0 && is_ours)?;
    Some(Duration::from_micros(limit / 2))
}

/// A path, or with `@` a name in the abstract namespace.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_relay::telemetry::{BuildInfo, Snapshot};

    fn view(state: RelayState, failure: Option<&str>) -> View {
        let telemetry = Telemetry::new(BuildInfo::default());
        let last_failure = failure.map(Into::into);
        telemetry.publish(Snapshot { state, last_failure, ..Snapshot::default() });
        telemetry.view()
    }

    #[test]
    fn each_thing_is_told_once_and_ready_is_told_of_a_relay_that_serves() {
        let mut told = Told { grace: Duration::from_secs(30), ..Told::default() };
        let now = Instant::now();
        let mut news =
            |state, failure, stops| told.news(&Seen::of_view(&view(state, failure)), stops, now);
        assert_eq!(news(RelayState::Starting, None, false), "STATUS=starting\n");
        let down = Some("no answer\nREADY=1");
        let said = news(RelayState::Retrying, down, false);
        assert_eq!(said, "READY=1\nSTATUS=retrying: no answer READY=1\n");
        assert_eq!(news(RelayState::Retrying, down, false), "");
        assert_eq!(news(RelayState::Streaming, down, false), "STATUS=streaming\n");
        let said = news(RelayState::Streaming, None, true);
        assert_eq!(said, "STOPPING=1\nEXTEND_TIMEOUT_USEC=45000000\n");
        assert_eq!(news(RelayState::Draining, None, true), "STATUS=draining\n");
    }

    #[test]
    fn what_fails_at_the_start_is_never_ready() {
        let mut told = Told::default();
        let said = told.news(
            &Seen::of_view(&view(RelayState::Failed, Some("no such slot"))),
            false,
            Instant::now(),
        );
        assert_eq!(said, "STATUS=failed: no such slot\n");
    }

    #[test]
    fn a_hot_thread_that_hangs_is_not_said_to_be_alive() {
        let every = Duration::from_secs(5);
        let mut told = Told { watchdog: Some(every), ..Told::default() };
        let mut view = view(RelayState::Streaming, None);
        let now = Instant::now();
        assert!(told.news(&Seen::of_view(&view), false, now).contains("WATCHDOG=1"));
        assert_eq!(told.news(&Seen::of_view(&view), false, now + every / 2), "");
        assert_eq!(told.news(&Seen::of_view(&view), false, now + every), "WATCHDOG=1\n");
        view.tick_age = Duration::from_mins(2);
        assert_eq!(told.news(&Seen::of_view(&view), false, now + every * 3), "");
    }

    #[test]
    fn reloads_are_told_of_a_relay_that_serves() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let heard = || {
            let mut said = [0; 256];
            let length = manager.recv(&mut said).unwrap_or(0);
            String::from_utf8_lossy(said.get(..length).unwrap()).into_owned()
        };
        let socket = Arc::new(connect(path.as_os_str()).unwrap());
        let mut systemd = Systemd { socket, told: Told::default(), service: Arc::default() };
        let (telemetry, stop) = (Telemetry::new(BuildInfo::default()), StopSignal::default());
        let notice = systemd.reload_notice();
        systemd.tell(&Seen::of(&telemetry), &stop);
        assert_eq!((heard().as_str(), notice.begin()), ("STATUS=starting\n", false));
        telemetry.publish(Snapshot { state: RelayState::Streaming, ..Snapshot::default() });
        systemd.tell(&Seen::of(&telemetry), &stop);
        assert_eq!(heard(), "READY=1\nSTATUS=streaming\n");
        assert!(notice.begin());
        assert!(heard().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        notice.end();
        systemd.tell(&Seen::of(&telemetry), &stop);
        assert_eq!((heard().as_str(), heard().as_str()), ("READY=1\n", ""), "once");
        // The end of a reload that could not be sent before.
        lock(&systemd.service).owes_ready = true;
        systemd.tell(&Seen::of(&telemetry), &stop);
        assert_eq!(heard(), "READY=1\n");
        stop.request(ControlRequest::Drain);
        systemd.tell(&Seen::of(&telemetry), &stop);
        assert!(heard().starts_with("STOPPING=1\n") && !notice.begin());
        notice.end();
        assert_eq!(heard(), "");
    }

    #[test]
    fn the_watchdog_of_another_process_is_not_ours() {
        let own = std::process::id().to_string();
        let of = |limit: &str, pid: Option<&str>| {
            watchdog(|name| match name {
                "WATCHDOG_USEC" => Some(limit.into()),
                _ => pid.map(Into::into),
            })
        };
        assert_eq!(of("60000000", None), Some(Duration::from_secs(30)));
        assert_eq!(of("60000000", Some(&own)), Some(Duration::from_secs(30)));
        assert_eq!(of("60000000", Some("1")), None);
        assert_eq!(of("0", None), None);
        assert_eq!(of("soon", None), None);
    }

    #[test]
    fn a_manager_is_found_by_path_and_by_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("postrider-notify-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&by_name).unwrap(), format!("@{name}").into()),
        ] {
            connect(&address).unwrap().send(b"READY=1").unwrap();
            let mut said = [0; 64];
            let length = socket.recv(&mut said).unwrap();
            assert_eq!(said.get(..length), Some(&b"READY=1"[..]));
        }
        assert!(connect(OsStr::new("/nowhere/notify")).is_err());
    }
}
