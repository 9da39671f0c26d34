//! The log on stderr: lines for people or JSON, in which repeated warnings and errors are
//! collapsed.
//!
//! Invariant: control characters are escaped. A closed stderr is ignored. A stderr that nobody
//! reads blocks neither rows nor signals. Lines with target `AUDIT` are never collapsed or dropped.
//! `end` must be called before the process exits.

mod line;
mod queue;
mod target;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

pub(super) use line::now;

use line::LogLine;
use queue::{Outs, Queue};

use postrider_config::{LogFormat, LogLevel, LogSection};
use postrider_service::log_throttle::LogThrottle;

pub const AUDIT: &str = "postrider::audit";

pub const LIBRDKAFKA: &str = "librdkafka";

/// Target of the spans that name a stream. Their level is ERROR, so that every line is inside one.
const STREAM_SPAN: &str = "postrider::stream";

pub(super) const STREAM: &str = "stream";

/// Span for lines of this stream; none without a name.
pub(super) fn span_of(stream: Option<&str>) -> tracing::Span {
    stream.map_or_else(
        tracing::Span::none,
        |name| tracing::error_span!(target: "postrider::stream", "stream", stream = %name),
    )
}

/// Maximum wait at the end for a reader of stderr.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Crates whose TRACE lines show requests with secrets and answers with tokens.
const HTTP_CLIENT: [&str; 2] = ["ureq", "ureq_proto"];

/// Producer of the Kafka client, which warns if it is closed with records under way. Those are
/// dropped on purpose: the next session sends them again.
const PRODUCER: &str = "rdkafka::producer::base_producer";

static STARTED: OnceLock<(LogFormat, Option<Queue>)> = OnceLock::new();

pub fn format() -> Option<LogFormat> {
    STARTED.get().map(|(format, _)| *format)
}

/// Writes the rest of the log and then `last`, which may be empty. Waits at most a second for a
/// blocked stderr.
pub fn end(last: &str) {
    if let Some((_, Some(queue))) = STARTED.get() {
        queue.end(last.as_bytes(), END_LIMIT);
    } else {
        let _ = Screen.write_all(last.as_bytes());
    }
}

/// Starts the writing thread. Without one, logging threads write their lines.
fn begin_to_write(format: LogFormat, color: bool) -> Option<Queue> {
    let notice = move |lines: u64| {
        let mut line = LogLine::warning("log lines were dropped: stderr was blocked");
        line.push("lines", lines.into());
        line.in_format(format, color)
    };
    let queue = Queue::new(notice, write_at_once);
    let writer = queue.clone();
    let thread = std::thread::Builder::new().name("postrider-log".to_owned());
    let spawned = thread.spawn(move || writer.write_to(&mut Screen));
    spawned.is_ok().then_some(queue)
}

/// Writes a line unless that would block; returns false if it would. A writable pipe takes
/// `PIPE_BUF` bytes, 4096 on Linux (pipe(7)).
fn write_at_once(line: &[u8]) -> bool {
    const PIPE_BUF: usize = 4096;
    if line.len() > PIPE_BUF || !is_writable() {
        return false;
    }
    // A closed stderr never accepts a line again.
    let _ = Screen.write_all(line);
    true
}

fn is_writable() -> bool {
    let stderr = io::stderr();
    let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
    matches!(poll(&mut asked, Some(&Timespec::default())), Ok(1..))
}

/// Whether the last line of the terminal is a progress bar. Changed only under stderr's lock.
static HAS_BAR: AtomicBool = AtomicBool::new(false);

const ERASE: &[u8] = b"\r\x1b[K";

pub(super) fn draw(bar: &str) {
    if (bar.is_empty() && !HAS_BAR.load(Ordering::Relaxed)) || !is_writable() {
        return;
    }
    let mut stderr = io::stderr().lock();
    HAS_BAR.store(!bar.is_empty(), Ordering::Relaxed);
    let _ = stderr.write_all(&[ERASE, bar.as_bytes()].concat());
}

struct Screen;

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stderr = io::stderr().lock();
        if HAS_BAR.swap(false, Ordering::Relaxed) {
            stderr.write_all(ERASE)?;
        }
        stderr.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn directive(text: &str) -> Directive {
    match text.parse() {
        Ok(directive) => directive,
        Err(error) => unreachable!("a target and a level: {error}"),
    }
}

struct FilterInEffect {
    handle: Handle<EnvFilter, Registry>,
    text: Mutex<String>,
    is_asked: bool,
}

static FILTER: OnceLock<FilterInEffect> = OnceLock::new();

pub fn filter() -> String {
    let text = |it: &FilterInEffect| it.text.lock().unwrap_or_else(PoisonError::into_inner).clone();
    FILTER.get().map(text).unwrap_or_default()
}

/// Sets the filter as RUST_LOG or `log.level` would. Returns the filter in effect, or a mistake.
pub fn set_filter(text: &str) -> Result<String, String> {
    let wanted = parsed(text)?;
    let Some(it) = FILTER.get() else { return Err("the log has not started".to_owned()) };
    it.handle.reload(wanted).map_err(|error| error.to_string())?;
    text.clone_into(&mut it.text.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(text.to_owned())
}

pub fn check_filter(text: &str) -> Result<(), String> {
    parsed(text).map(drop)
}

/// Applies a changed `log.level`. Returns false if RUST_LOG takes precedence.
pub fn set_level(level: LogLevel) -> bool {
    if FILTER.get().is_some_and(|it| it.is_asked) {
        return false;
    }
    let _ = set_filter(level.as_str());
    true
}

fn parsed(text: &str) -> Result<EnvFilter, String> {
    match LogLevel::from_word(text) {
        Some(level) => Ok(audited(EnvFilter::new(directives(level)))),
        None => by_part(text),
    }
}

fn by_part(text: &str) -> Result<EnvFilter, String> {
    // A misspelt level would select a part of that name, and no other lines.
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    for part in text.split(',').map(str::trim) {
        if !part.contains('=') && !is_level(part) {
            return Err(format!("`{part}` is neither a level nor a part's level"));
        }
        let name = part.split(['=', '[']).next().unwrap_or_default();
        if HTTP_CLIENT.iter().any(|crate_name| name.starts_with(crate_name)) {
            return Err(format!(
                "`{name}` would show secrets: its lines hold what is sent and answered"
            ));
        }
        if let Some(why) = target::unknown(name) {
            return Err(why);
        }
    }
    let filter = EnvFilter::try_new(target::filter(text)).map_err(|error| error.to_string())?;
    Ok(audited(filter))
}

/// Audit lines are the only report of skipped rows, so every filter keeps them. No level shows
/// secrets, or the close of a producer.
fn audited(filter: EnvFilter) -> EnvFilter {
    let filter = filter.add_directive(directive(&format!("{AUDIT}=warn")));
    let filter = filter.add_directive(directive(&format!("{PRODUCER}=error")));
    let quiet = |filter: EnvFilter, name| filter.add_directive(directive(&format!("{name}=warn")));
    HTTP_CLIENT.into_iter().fold(filter, quiet)
}

/// Starts the log; a second call changes nothing. `from_flag`: -v or -q set the level, which
/// overrides RUST_LOG.
pub fn start(log: &LogSection, from_flag: bool, color: bool) {
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty() && !from_flag);
    let (asked, refused) = match asked.map(|text| (by_part(&text), text)) {
        None => (None, None),
        Some((Ok(filter), text)) => (Some((filter, text)), None),
        Some((Err(why), _)) => (None, Some(why)),
    };
    let is_asked = asked.is_some();
    let (filter, text) = asked.unwrap_or_else(|| {
        (audited(EnvFilter::new(directives(log.level))), log.level.as_str().to_owned())
    });
    let (filter, handle) = reload::Layer::new(filter);
    FILTER.get_or_init(|| FilterInEffect { handle, text: Mutex::new(text), is_asked });
    let (_, queue) = STARTED.get_or_init(|| (log.format, begin_to_write(log.format, color)));
    let throttle = Mutex::new(LogThrottle::new(log.repeat_interval));
    let format = Lines { format: log.format, color, throttle };
    let layer = tracing_subscriber::fmt::layer()
        .event_format(format)
        // Fields of spans are read as plain text.
        .with_ansi(false)
        .with_writer(Outs(queue.clone()))
        // Otherwise a closed stderr would cause a panic.
        .log_internal_errors(false);
    let _ = tracing_subscriber::registry().with(filter).with(layer).try_init();
    if let Some(why) = refused {
        tracing::warn!("RUST_LOG is ignored, and log.level is in effect: {why}");
    }
}

/// Filter with `level` for Postrider and the Kafka client. Other libraries only log warnings,
/// because their INFO is not a state change of the relay.
fn directives(level: LogLevel) -> String {
    let (ours, others) = match level {
        LogLevel::Error => ("error", "error"),
        LogLevel::Warn => ("warn", "warn"),
        LogLevel::Info => ("info", "warn"),
        LogLevel::Debug => ("debug", "info"),
        LogLevel::Trace => ("trace", "debug"),
    };
    format!("{others},postrider={ours},{LIBRDKAFKA}={ours}")
}

struct Lines {
    format: LogFormat,
    color: bool,
    throttle: Mutex<LogThrottle>,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut line = LogLine::of(event);
        if let Some(stream) = stream_of(context) {
            line.push(STREAM, stream.into());
        }
        let target = event.metadata().target();
        let may_repeat = *event.metadata().level() <= Level::WARN || target == LIBRDKAFKA;
        if may_repeat && target != AUDIT {
            let mut throttle = self.throttle.lock().unwrap_or_else(PoisonError::into_inner);
            match throttle.admit(&line.gist(), Instant::now()) {
                None => return Ok(()),
                Some(0) => {}
                Some(held_back) => line.push("repeated", held_back.into()),
            }
        }
        writer.write_str(&line.in_format(self.format, self.color))
    }
}

fn stream_of<S, N>(context: &FmtContext<'_, S, N>) -> Option<String>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    let mut spans = context.event_scope()?;
    let span = spans.find(|span| span.metadata().target() == STREAM_SPAN)?;
    let extensions = span.extensions();
    let fields = extensions.get::<FormattedFields<N>>()?;
    fields.fields.strip_prefix("stream=").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Sheet(Arc<Mutex<Vec<u8>>>);

    impl Write for Sheet {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, act: impl FnOnce()) -> Vec<String> {
        let sheet = Sheet::default();
        let throttle = Mutex::new(LogThrottle::new(Duration::from_secs(10)));
        let target = sheet.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Lines { format, color: false, throttle })
            .with_ansi(false)
            .with_writer(move || target.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, act);
        let bytes = sheet.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn repeated_errors_are_one_line() {
        let lines = logged(LogFormat::Text, || {
            for attempt in 0..50 {
                tracing::warn!(attempt, retry_in = "1.6s", "kafka unreachable");
            }
            tracing::warn!("postgres unreachable");
        });
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].ends_with("WARN kafka unreachable attempt=0 retry_in=1.6s"), "{lines:?}");
    }

    #[test]
    fn lines_of_a_stream_have_its_name_and_do_not_repeat_those_of_another() {
        let lines = logged(LogFormat::Text, || {
            for name in ["db1", "db2", "db1"] {
                span_of(Some(name)).in_scope(|| tracing::warn!("postgres unreachable"));
            }
            span_of(None).in_scope(|| tracing::info!("starting"));
        });
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].ends_with("unreachable stream=db1"), "{lines:?}");
        assert!(lines[1].ends_with("unreachable stream=db2"), "{lines:?}");
        assert!(lines[2].ends_with("INFO starting"), "{lines:?}");
    }

    #[test]
    fn state_changes_and_audit_lines_are_never_collapsed() {
        let lines = logged(LogFormat::Text, || {
            for _ in 0..3 {
                tracing::info!("streaming");
                tracing::warn!(target: AUDIT, "row skipped");
            }
        });
        assert_eq!(lines.len(), 6);
    }

    #[test]
    fn librdkafkas_lines_go_through_the_same_filter() {
        let lines = logged(LogFormat::Text, || {
            for port in 9000..9010 {
                tracing::info!(target: LIBRDKAFKA, "connect to 127.0.0.1:{port} failed");
            }
        });
        assert_eq!(lines.len(), 1);
    }

    #[test]
    fn json_lines_have_the_same_fields() {
        let lines = logged(LogFormat::Json, || {
            tracing::info!(host = "db:5432", rows = 5, ok = true, "postgres \"connected\"\n");
        });
        let value: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(value["level"], "INFO");
        assert_eq!(value["message"], "postgres \"connected\"\n");
        assert_eq!(
            (&value["host"], &value["rows"], &value["ok"]),
            (&"db:5432".into(), &5.into(), &true.into())
        );
        assert!(value["time"].as_str().unwrap().ends_with('Z'));
    }

    fn filtered(wanted: EnvFilter, act: impl FnOnce()) -> String {
        let (sheet, layer) = (Sheet::default(), tracing_subscriber::fmt::layer());
        let target = sheet.clone();
        let layer = layer.with_writer(move || target.clone());
        let subscriber = tracing_subscriber::registry().with(wanted).with(layer);
        tracing::subscriber::with_default(subscriber, act);
        let bytes = sheet.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Text that rdkafka 0.39 logs if a producer is dropped while a broker hangs.
    #[test]
    fn the_close_of_a_producer_is_not_a_warning() {
        for text in ["info", "debug", "warn,postrider::kafka=debug"] {
            let written = filtered(parsed(text).unwrap(), || {
                tracing::warn!(target: "rdkafka::producer::base_producer", "Failed to flush outstanding messages");
                tracing::warn!(target: "rdkafka::consumer", "something else");
            });
            assert!(!written.contains("Failed to flush"), "{text}: {written}");
            assert!(written.contains("something else"), "{text}: {written}");
        }
    }

    #[test]
    fn no_filter_shows_what_the_http_client_sends() {
        for text in ["trace", "info,log=trace", "ureq_proto=error,trace"] {
            let wanted = parsed(text).unwrap_or_else(|_| parsed("trace").unwrap());
            let written = filtered(wanted, || {
                tracing::trace!(target: "ureq_proto::util", "authorization: hunter2");
                tracing::debug!(target: "ureq::run", "hunter2");
            });
            assert!(!written.contains("hunter2"), "{text}: {written}");
        }
        for text in ["ureq_proto=trace", "info,ureq::run=trace", "ureq"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_a_server_says_cannot_steer_the_terminal() {
        let lines = logged(LogFormat::Text, || {
            tracing::error!(error = "bad\x1b[2J\nERROR forged", "postgres refused us");
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(!lines[0].contains('\x1b'));
    }
}
