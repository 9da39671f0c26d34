//! Monitors the source over SQL while a session streams: shutdown of the server, promotion of a standby,
//! changed publication or tables, a standby that Postgres waits for or that replays nothing, slot samples.
//!
//! Input: the session's SQL connection, and what the source was when the process began. Output: the reason
//! why the session must end, samples of the slot for the metrics, and a request to close the stream.
//! Invariant: only an explicit report of the server counts as a shutdown; a connection that merely breaks
//! is reopened, and a stream is not left unmonitored for longer than `UNWATCHED_MAX`, unless the relay is
//! stopping.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::awaited_standbys::AwaitedStandbys;
use crate::error::RelayError;
use crate::publication_changes::PublicationChanges;
use crate::standby_replay::StandbyReplay;
use crate::stop::StopSignal;
use crate::telemetry::{SlotMetrics, SlotWait, Telemetry, unix_us};
use postrider_config::Config;
use postrider_core::gate::Warning;
use postrider_core::session::ControlRequest;
use postrider_core::session::End;
use postrider_postgres::control::{self, Client, ControlError, Inspection, Known, Requirements};
use postrider_postgres::libpq::ConnectInfo;
use postrider_postgres::wal::{ServerProcess, WalError};

/// How often the slot's lag is sampled.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// The same of a stream that has failed: a login each time. One that hangs leaves time for another before the sample is too old.
const SAMPLE_FAILED_EVERY: Duration = Duration::from_secs(20);
/// How long a stream goes on without anybody watching: as long as it takes to notice anything.
const UNWATCHED_MAX: Duration = SAMPLE_EVERY;
/// Pause between two attempts to watch again: one login a time, and a server that shuts down meanwhile
/// waits no longer for us.
const RECONNECT_EVERY: Duration = Duration::from_millis(200);

/// Samples the slot every five seconds, for the metrics, while a session begins: taking over from an
/// earlier producer can wait for brokers for long.
pub(super) async fn sample(client: &Client, slot: &str, telemetry: &Telemetry) -> Infallible {
    let mut sample = tokio::time::interval(SAMPLE_EVERY);
    loop {
        sample.tick().await;
        if let Ok(sample) = control::sample(client, slot).await {
            publish(telemetry, sample.as_ref(), None);
        }
    }
}

/// Samples the slot of a stream that has failed, whose WAL is kept all the same; until nobody waits for it, or the server
/// refuses the login: a role that logs in wrongly again and again may be locked. A sample that cannot be taken leaves none: the
/// stream says why by its failure.
pub async fn sample_of_failed(config: &Config, telemetry: &Telemetry) {
    loop {
        let sample = async {
            let client = control::connect(&config.source.connect).await?;
            control::sample(&client, &config.source.slot).await
        };
        match tokio::time::timeout(SAMPLE_FAILED_EVERY, sample).await {
            Ok(Ok(sample)) => publish(telemetry, sample.as_ref(), None),
            Ok(Err(ControlError::Connection { source, .. })) if source.is_login_refused() => return,
            Ok(Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(SAMPLE_FAILED_EVERY).await;
    }
}

/// Publishes what was seen of the slot.
pub(super) fn publish(
    telemetry: &Telemetry,
    sample: Option<&control::SlotSample>,
    waits: Option<SlotWait>,
) {
    telemetry.publish_slot(sample.map(|sample| SlotMetrics {
        waits,
        acknowledged_lsn: sample.confirmed_flush.get(),
        lag_bytes: sample.lag_bytes(),
        retained_bytes: sample.retained_bytes(),
        safe_bytes: sample.safe_wal_bytes,
        clock_skew_us: sample.server_now_us - unix_us(),
    }));
}

/// Why a session was told to end though its stream was well: nobody could watch it.
#[derive(Debug, Default)]
pub(super) struct Unwatched(Mutex<Option<ControlError>>);

impl Unwatched {
    fn because(&self, error: ControlError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// The end of the session: the reason, where it closed its stream for that.
    pub(super) fn or(self, result: Result<End, RelayError>) -> Result<End, RelayError> {
        let reason = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (result, reason) {
            (Ok(End::ServerShutdown), Some(error)) => Err(error.into()),
            (result, _) => result,
        }
    }
}

/// What the looks before have seen.
#[derive(Debug, Default)]
struct Before {
    /// The server was in recovery.
    in_recovery: bool,
    /// The last look failed in a way that a new session would meet as well.
    unseen: bool,
    /// Standbys that Postgres waits for.
    awaited: AwaitedStandbys,
    /// The replay of the server itself, if it is a standby.
    replay: StandbyReplay,
}

/// What a look compares with, and whom it tells.
pub(super) struct Watch<'a> {
    /// Who streams; unknown for a session that has not begun.
    pub(super) stream: Option<ServerProcess>,
    /// The server was in recovery when the session was prepared.
    pub(super) in_recovery: bool,
    pub(super) stop: &'a StopSignal,
    pub(super) telemetry: &'a Telemetry,
    pub(super) known: Option<&'a Known>,
    pub(super) publication_changes: &'a PublicationChanges,
    pub(super) wanted: &'a Requirements,
    pub(super) unwatched: &'a Unwatched,
}

impl Watch<'_> {
    /// Watches the slot, the server and what is published beside a session; ends only with the
    /// reason why the session must end. Upholds G1.
    pub(super) async fn keep(&self, mut client: Client) -> ControlError {
        // Over all connections: a server may be promoted, or fail to answer, across two of them.
        let mut before = Before { in_recovery: self.in_recovery, ..Before::default() };
        loop {
            tokio::select! {
                () = client.ended() => {}
                departure = self.look(&client, &mut before) => return departure,
            }
            let Some(again) = self.reconnect(client.server()).await else {
                self.stop.request(ControlRequest::ServerShutdown);
                return std::future::pending().await;
            };
            tracing::info!("the SQL connection beside the stream broke and was reopened");
            client = again;
        }
    }

    /// Looks again and again; ends with what must end the session.
    async fn look(&self, client: &Client, before: &mut Before) -> ControlError {
        let mut sample = tokio::time::interval(SAMPLE_EVERY);
        loop {
            sample.tick().await;
            let sample = control::sample(client, &self.wanted.slot).await.ok().flatten();
            let awaits = before.awaited.look(client, &self.wanted.slot).await;
            let awaits = awaits.then_some(SlotWait::AwaitedStandby);
            let waits = before.replay.look(client).await.or(awaits);
            publish(self.telemetry, sample.as_ref(), waits);
            if let Ok(columns) = control::slot_columns(client, &self.wanted.slot).await {
                self.telemetry.publish_slot_columns(columns);
            }
            let departure = match self.departure(client, sample.as_ref(), before).await {
                Ok(departure) => {
                    before.unseen = false;
                    departure
                }
                Err(error) => Self::unseen(error, before),
            };
            if let Some(departure) = departure {
                return departure;
            }
        }
    }

    /// What the stream would not tell: Postgres sends nothing of a table that is not published any
    /// more. A server that does not answer is left to the stream for a while, and a slot that is not
    /// ours any more altogether: whoever has it may have seen to the rest.
    async fn departure(
        &self,
        client: &Client,
        sample: Option<&control::SlotSample>,
        before: &mut Before,
    ) -> Result<Option<ControlError>, ControlError> {
        let now = control::inspect(client, self.wanted).await?;
        if std::mem::replace(&mut before.in_recovery, now.server.in_recovery) && !before.in_recovery
        {
            // The stream lives on, and progress would be kept under the timeline that has ended.
            self.unwatched.because(ControlError::Promoted);
            self.stop.request(ControlRequest::ServerShutdown);
        }
        let departure = self.known.and_then(|known| known.departure(&now, self.wanted));
        // Columns are announced by the stream before the next row.
        let silent =
            |refusal: &ControlError| !matches!(refusal, ControlError::ColumnsMissing { .. });
        let departure = departure
            .or_else(|| now.refusals(self.wanted).into_iter().find(silent))
            .or_else(|| self.known?.readmission(&now, self.wanted));
        let Some(departure) = departure else {
            if let Some(sample) = sample {
                self.tell_alteration(&now, sample);
            }
            return Ok(None);
        };
        let (Some(slot), Some(stream)) =
            (control::sample(client, &self.wanted.slot).await?, self.stream)
        else {
            return Ok(None);
        };
        Ok(slot.is_held_by(stream).then_some(departure))
    }

    /// Says once that the publication was altered since the look before `sample`: one that was made to leave
    /// out rows, and fixed before anybody looked, is as it should be now.
    fn tell_alteration(&self, now: &Inspection, sample: &control::SlotSample) {
        let since = self.publication_changes.look(sample.current).unwrap_or(sample.confirmed_flush);
        let altered = self.known.and_then(|known| known.altered(now));
        if altered.is_some() {
            let publication = self.wanted.publication.clone();
            self.publication_changes
                .warn(&Warning::AlteredMeanwhile { publication, since }, altered);
        }
    }

    /// A look that failed. What it would have shown may pass over rows: an error that a new session would
    /// meet as well ends this one when it is still there at the next look. Any other is left to pass: a lock
    /// on one published table keeps PostgreSQL 18 from telling what is published (seen with VACUUM FULL), and
    /// must not hold up the rows of others.
    fn unseen(error: ControlError, before: &mut Before) -> Option<ControlError> {
        let is_transient = error.class().is_transient();
        let was_there = std::mem::replace(&mut before.unseen, !is_transient);
        Some(error).filter(|_| was_there && !is_transient)
    }

    /// Opens a connection in place of one that broke, or that somebody ended; a stream that broke as well
    /// tells by itself. `None` if the session must close the stream: the server says that it shuts down,
    /// or nobody can watch it.
    async fn reconnect(&self, server: &ConnectInfo) -> Option<Client> {
        let began = Instant::now();
        loop {
            let error = match tokio::time::timeout(UNWATCHED_MAX, self.connect(server)).await {
                Ok(Ok(client)) => return Some(client),
                Ok(Err(error)) => error,
                Err(_) => failed(WalError::TimedOut { doing: "connecting again" }),
            };
            if error.says_shutdown() {
                return None;
            }
            // A drain goes on over a healthy stream.
            if began.elapsed() >= UNWATCHED_MAX && self.stop.most_urgent() < ControlRequest::Drain {
                tracing::info!(
                    "the SQL connection beside the stream cannot be reopened: closing \
                                the stream"
                );
                self.unwatched.because(error);
                return None;
            }
            tokio::time::sleep(RECONNECT_EVERY).await;
        }
    }

    /// A connection to the server that streams: where a proxy stands before several, it may be another
    /// one, whose slot nobody uses.
    async fn connect(&self, server: &ConnectInfo) -> Result<Client, ControlError> {
        let client = control::connect(server).await?;
        let slot = control::sample(&client, &self.wanted.slot).await?;
        match (slot, self.stream) {
            (Some(slot), Some(stream)) if slot.is_held_by(stream) => Ok(client),
            _ => Err(failed(WalError::Closed)),
        }
    }
}

const fn failed(source: WalError) -> ControlError {
    ControlError::Connection { doing: "watching the slot beside the stream", source }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::telemetry::BuildInfo;
    use postrider_config::{FileChoice, Inputs, load};

    #[tokio::test(flavor = "current_thread")]
    async fn a_login_that_is_refused_is_tried_once() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let _ = client.read(&mut [0; 1024]).unwrap();
            let refusal = b"SFATAL\0C28P01\0Mno\0\0";
            let length = u32::try_from(refusal.len() + 4).unwrap();
            let answer = [b"E", &length.to_be_bytes()[..], refusal].concat();
            client.write_all(&answer).unwrap();
        });
        let url = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable");
        let variables = vec![("POSTRIDER_SOURCE__URL".to_owned(), url)];
        let inputs = Inputs { file: FileChoice::Absent, variables, ..Inputs::default() };
        let config = load(&inputs, &|_| Vec::new()).unwrap().config;
        let telemetry = Telemetry::new(BuildInfo::default());
        let sampling = sample_of_failed(&config, &telemetry);
        tokio::time::timeout(Duration::from_mins(1), sampling).await.unwrap();
        assert_eq!(telemetry.view().slot, None);
    }

    #[test]
    fn only_a_session_of_a_server_that_stops_ends_for_want_of_a_watch() {
        let unwatched = || {
            let unwatched = Unwatched::default();
            unwatched.because(failed(WalError::Closed));
            unwatched
        };
        assert!(unwatched().or(Ok(End::ServerShutdown)).is_err());
        assert!(matches!(unwatched().or(Ok(End::Drained)), Ok(End::Drained)));
        assert!(matches!(
            Unwatched::default().or(Ok(End::ServerShutdown)),
            Ok(End::ServerShutdown)
        ));
    }
}
