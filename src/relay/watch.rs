//! Monitors the source over SQL while a session streams, and samples the slot.
//!
//! Invariant: only an explicit message of the server counts as a shutdown. No stream is unmonitored
//! for longer than `UNWATCHED_MAX`, unless the relay is stopping.

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

const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Each sample is a login. If one hangs, another fits in before the previous sample is too old.
const SAMPLE_FAILED_EVERY: Duration = Duration::from_secs(20);
const UNWATCHED_MAX: Duration = SAMPLE_EVERY;
/// Each attempt is a login, and a server that shuts down need not wait longer for this relay.
const RECONNECT_EVERY: Duration = Duration::from_millis(200);

/// Used while a session starts, which may wait for brokers.
pub(super) async fn sample(client: &Client, slot: &str, telemetry: &Telemetry) -> Infallible {
    let mut sample = tokio::time::interval(SAMPLE_EVERY);
    loop {
        sample.tick().await;
        if let Ok(sample) = control::sample(client, slot).await {
            publish(telemetry, sample.as_ref(), None);
        }
    }
}

/// Samples the slot of a failed stream, which still retains WAL. Ends if the server refuses the
/// login, because repeated failed logins may lock a role. A failed sample is not published; the
/// stream's error explains it.
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

/// Reason why a healthy stream had to end: it could not be monitored.
#[derive(Debug, Default)]
pub(super) struct Unwatched(Mutex<Option<ControlError>>);

impl Unwatched {
    fn because(&self, error: ControlError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(super) fn or(self, result: Result<End, RelayError>) -> Result<End, RelayError> {
        let reason = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (result, reason) {
            (Ok(End::ServerShutdown), Some(error)) => Err(error.into()),
            (result, _) => result,
        }
    }
}

#[derive(Debug, Default)]
struct Before {
    in_recovery: bool,
    /// The last check failed with an error that a new session would meet too.
    unseen: bool,
    awaited: AwaitedStandbys,
    replay: StandbyReplay,
}

pub(super) struct Watch<'a> {
    /// `None` for a session that has not started.
    pub(super) stream: Option<ServerProcess>,
    pub(super) in_recovery: bool,
    pub(super) stop: &'a StopSignal,
    pub(super) telemetry: &'a Telemetry,
    pub(super) known: Option<&'a Known>,
    pub(super) publication_changes: &'a PublicationChanges,
    pub(super) wanted: &'a Requirements,
    pub(super) unwatched: &'a Unwatched,
}

impl Watch<'_> {
    /// Returns only with the reason why the session must end. Upholds G1.
    pub(super) async fn keep(&self, mut client: Client) -> ControlError {
        // A promotion or a failure may last across two connections.
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

    /// Finds changes that the stream does not report, such as a table that is no longer published.
    /// A server that does not answer is left to the stream at first. Ignores a slot with another
    /// holder, which may have handled the change.
    async fn departure(
        &self,
        client: &Client,
        sample: Option<&control::SlotSample>,
        before: &mut Before,
    ) -> Result<Option<ControlError>, ControlError> {
        let now = control::inspect(client, self.wanted).await?;
        if std::mem::replace(&mut before.in_recovery, now.server.in_recovery) && !before.in_recovery
        {
            // The stream survives a promotion, but progress would be stored under the old timeline.
            self.unwatched.because(ControlError::Promoted);
            self.stop.request(ControlRequest::ServerShutdown);
        }
        let departure = self.known.and_then(|known| known.departure(&now, self.wanted));
        // The stream announces its columns before the next row.
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

    /// Logs once that the publication was altered since the check before `sample`, even if it was
    /// fixed in between.
    fn tell_alteration(&self, now: &Inspection, sample: &control::SlotSample) {
        let since = self.publication_changes.look(sample.current).unwrap_or(sample.confirmed_flush);
        let altered = self.known.and_then(|known| known.altered(now));
        if altered.is_some() {
            let publication = self.wanted.publication.clone();
            self.publication_changes
                .warn(&Warning::AlteredMeanwhile { publication, since }, altered);
        }
    }

    /// Returns the second consecutive error that a new session would meet too. Other errors must
    /// not delay rows: VACUUM FULL of one table prevents PostgreSQL 18 from listing the
    /// publication.
    fn unseen(error: ControlError, before: &mut Before) -> Option<ControlError> {
        let is_transient = error.class().is_transient();
        let was_there = std::mem::replace(&mut before.unseen, !is_transient);
        Some(error).filter(|_| was_there && !is_transient)
    }

    /// Replaces a broken connection. `None`: the session must close the stream, because the server
    /// announces a shutdown or the stream cannot be monitored.
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
            // A drain continues over a healthy stream.
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

    /// Behind a proxy, the connection may reach another server, whose slot is not in use.
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
