//! [`KafkaSink`], which extends the core's contract, and [`SinkError`].

use super::listener::{NO_LOGIN_HELP, offers_no_login};
use super::revoked_login::is_certificate_refused;
use super::settings::SettingsError;
use super::topic_book::{to_allow, to_create};
use postrider_core::pipeline::{Blame, Mark};
use postrider_core::progress::{BackfillProgress, Progress, ProgressSyntax, RowCursor};
use postrider_core::route::{Rejection, RejectionCode};
use postrider_core::sink::Sink;

pub type SendError = postrider_core::sink::SendError<SinkError>;

const TLS_HELP: &str = "check security.protocol and ssl.ca.location in [kafka.properties], and that kafka.brokers names \
     the brokers' TLS listener";
const CODEC_HELP: &str = "set kafka.compression to a codec that the brokers take: gzip, or none";
const IDEMPOTENCE_HELP: &str = "use brokers of version 0.11 or later, or a service whose Kafka endpoint offers \
     InitProducerId: without it a batch that is sent again is stored again, out of order";

/// A new session fixes most errors; [`SinkError::is_definite`] marks those that need a human.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// For example after an out-of-order sequence.
    #[error("the producer is no longer usable: {0}")]
    Fatal(String),
    /// The batch may have one bad record (too large, an impossible timestamp, no key in a compacted
    /// topic).
    #[error("the broker refused a batch for topic `{topic}`: {reason}")]
    BatchRefused {
        topic: String,
        reason: String,
        /// Suspects; empty if unknown.
        records: Vec<Blame>,
        /// For the next session, because no record stood out.
        batch_bytes: Option<u32>,
    },
    #[error("the brokers refuse batches compressed with {codec} (topic `{topic}`): {reason}")]
    CodecRefused {
        topic: String,
        /// Never `none`.
        codec: String,
        reason: String,
    },
    /// Without producer ids brokers store repetitions.
    #[error("the brokers support no idempotent producer: {0}")]
    NoIdempotence(String),
    /// An outage, retried.
    #[error("topic `{topic}` does not exist")]
    UnknownTopic {
        /// Missing topic.
        topic: String,
    },
    /// An outage, retried.
    #[error("not authorised to write to topic `{topic}`")]
    Unauthorised {
        /// Topic that the relay may not write to.
        topic: String,
    },
    /// Not allowed to produce at all: an outage, retried.
    #[error("not authorised to produce: {0}")]
    Forbidden(String),
    /// An outage, retried.
    #[error("not authorised to use transactional id `{id}`: {reason}")]
    IdForbidden {
        id: String,
        /// The broker's words.
        reason: String,
    },
    /// Refused before any broker accepted the login.
    #[error("the brokers refused our credentials: {0}")]
    Authentication(String),
    /// A broker that closes the connection during a login, or lost its accounts, looks like this.
    #[error("the brokers refuse a login that they accepted before: {0}")]
    LoginRevoked(String),
    /// No broker ever accepted a login.
    #[error("the brokers' listener accepts no login (SASL): {0}")]
    NoLogin(String),
    /// No broker ever accepted the client.
    #[error("no secure connection to the brokers: {0}")]
    Tls(String),
    #[error("no secure connection to the brokers: the certificate `{subject}` of {broker} {fault}")]
    CertificateInvalid {
        broker: String,
        subject: String,
        /// Start or end of its validity.
        fault: String,
    },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The transaction may have ended, or a request to end it is in flight. Only a new producer,
    /// which fences this one, can find out.
    #[error("the end of a Kafka transaction is uncertain: {0}")]
    Ambiguous(String),
    /// Another producer started, or a transaction took too long: both look alike.
    #[error("fenced by the brokers: {0}")]
    Fenced(String),
    #[error("transactions cannot begin: {0}")]
    NotReady(String),
    #[error("transactions are refused: {reason}")]
    NoTransactions {
        /// The brokers' words.
        reason: String,
        remedy: String,
    },
    #[error("progress in topic `{topic}` cannot be read: {reason}")]
    ProgressUnread {
        /// Topic with the progress.
        topic: String,
        reason: String,
    },
    #[error(transparent)]
    Progress(#[from] ProgressSyntax),
    #[error("delivery to topic `{topic}` failed: {reason}")]
    Delivery {
        topic: String,
        /// The client library's reason.
        reason: String,
    },
}

const LOGIN_HELP: &str = "check sasl.mechanism, sasl.username and sasl.password in \
                          [kafka.properties], or the credentials of kafka.oauth";

const CERTIFICATE_HELP: &str = "the brokers refuse the client certificate: replace ssl.certificate.location and \
                                ssl.key.location, or ssl.keystore.location, in [kafka.properties], whose files \
                                are read again by each session, and see that ssl.truststore of the brokers' \
                                listener has its authority";

pub fn renew_certificate(broker: &str) -> String {
    format!(
        "at broker {broker}, replace ssl.keystore.location of that listener with a renewed \
         certificate and its key\nrestart the brokers one at a \
         time:\nkafka-server-stop.sh\nkafka-server-start.sh server.properties"
    )
}

impl SinkError {
    pub(super) fn of_login(reason: String) -> Self {
        if offers_no_login(&reason) { Self::NoLogin(reason) } else { Self::Authentication(reason) }
    }

    pub(super) fn of_progress(topic: &str, rejection: Rejection) -> Self {
        let Rejection { code, reason } = rejection;
        match code {
            RejectionCode::TooLarge => SettingsError::ProgressTooLarge { reason }.into(),
            _ => Self::Delivery { topic: topic.to_owned(), reason },
        }
    }

    /// True if a new session with these settings would fail too.
    pub const fn is_definite(&self) -> bool {
        matches!(
            self,
            Self::Authentication(_)
                | Self::NoLogin(_)
                | Self::Tls(_)
                | Self::CertificateInvalid { .. }
                | Self::Settings(_)
                | Self::NoTransactions { .. }
                | Self::NoIdempotence(_)
                | Self::Progress(_)
        )
    }

    /// True if the login was refused, or its files and secrets are unusable.
    pub const fn is_refused_at_connect(&self) -> bool {
        match self {
            Self::Authentication(_)
            | Self::NoLogin(_)
            | Self::Tls(_)
            | Self::CertificateInvalid { .. } => true,
            Self::Settings(error) => {
                error.is_of_login() || matches!(error, SettingsError::Client(_))
            }
            _ => false,
        }
    }

    /// The library does not give the reason why a certificate is unverified.
    pub fn unverified_broker(&self) -> Option<&str> {
        let Self::Tls(reason) = self else { return None };
        let words = ["certificate verify failed", "certificate could not be verified"];
        let (_, broker) = reason.split_once("://")?;
        let (address, _) = broker.split_once('/')?;
        words.iter().any(|words| reason.contains(words)).then_some(address)
    }

    /// gzip is the oldest codec, and the only one of Azure Event Hubs (its documentation of 2026).
    pub fn next_codec(&self) -> Option<&'static str> {
        match self {
            Self::CodecRefused { codec, .. } if codec == "gzip" => Some("none"),
            Self::CodecRefused { .. } => Some("gzip"),
            _ => None,
        }
    }

    /// True if the next session may need `KafkaSpec::cautious`.
    pub const fn wants_caution(&self) -> bool {
        matches!(self, Self::BatchRefused { .. })
    }

    /// True if the failure may repeat with these records, without any outage.
    pub const fn may_repeat(&self) -> bool {
        matches!(self, Self::Fatal(_) | Self::Delivery { .. }) || self.wants_caution()
    }

    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::UnknownTopic { topic } => to_create(topic),
            Self::Unauthorised { topic } => to_allow(topic),
            Self::Forbidden(_) => "allow it: kafka-acls.sh --bootstrap-server BROKER --add \
                 --allow-principal User:NAME --producer --idempotent --topic TOPIC"
                .into(),
            Self::IdForbidden { id, .. } => format!(
                "allow it: kafka-acls.sh --bootstrap-server BROKER --add --allow-principal User:NAME \
                 --producer --transactional-id '{id}'"
            ),
            Self::BatchRefused { topic, .. } => format!(
                "the dead letter will have the reason and the intended topic: if it is too large, \
                 raise the topic's limit above its size (kafka-configs.sh --bootstrap-server \
                 BROKER --alter --topic '{topic}' --add-config max.message.bytes=BYTES) and \
                 insert the row again; if the topic is compacted, insert it with a key; if its \
                 time is refused, see message.timestamp.before.max.ms and \
                 message.timestamp.after.max.ms of the topic, and outbox.timestamp, then \
                 `postrider dead-letters retry`"
            ),
            Self::LoginRevoked(why) | Self::Tls(why) if is_certificate_refused(why) => {
                CERTIFICATE_HELP.into()
            }
            Self::Authentication(_) | Self::LoginRevoked(_) => LOGIN_HELP.into(),
            Self::NoLogin(_) => NO_LOGIN_HELP.into(),
            Self::Tls(_) => TLS_HELP.into(),
            Self::CertificateInvalid { broker, .. } => renew_certificate(broker),
            Self::Settings(error) => return error.hint(),
            Self::CodecRefused { .. } => CODEC_HELP.into(),
            Self::NoIdempotence(_) => IDEMPOTENCE_HELP.into(),
            Self::NoTransactions { remedy, .. } => remedy.clone(),
            Self::Progress(ProgressSyntax { topic, .. }) => format!(
                "topic `{topic}` belongs to the relay alone: set progress.topic to another one, and \
                 run `postrider adopt`"
            ),
            Self::ProgressUnread { topic, .. } => format!(
                "the relay waits for brokers that do not answer, and for a minute at most for a \
                 transaction that a killed relay left open; one that stays open longer is \
                 hanging, as brokers can leave it when a partition had no leader: \
                 kafka-transactions.sh --bootstrap-server BROKER find-hanging --topic '{topic}' \
                 --partition 0, then abort it; if reading is forbidden: kafka-acls.sh \
                 --bootstrap-server BROKER --add --allow-principal User:NAME --operation Read \
                 --operation Describe --topic '{topic}'"
            ),
            Self::Fatal(_) | Self::Delivery { .. } => {
                "nothing to do: unconfirmed records are sent again; if it repeats, look at the \
                 partitions (kafka-topics.sh --bootstrap-server BROKER --describe) and in the \
                 brokers' logs"
                    .into()
            }
            Self::Ambiguous(_) => {
                "nothing to do: the next session reads the committed position from Kafka; if it \
                 repeats, look at the network and in the brokers' logs"
                    .into()
            }
            Self::Fenced(_) => {
                "nothing to do if another relay took over; if it repeats, look at the brokers' \
                 load (transactions that take longer than transaction.timeout.ms are aborted), \
                 and for another producer with the same transactional id"
                    .into()
            }
            Self::NotReady(_) => {
                "a new cluster creates __transaction_state with its first transaction: wait a \
                 minute; if the error stays, the cluster has fewer brokers than \
                 transaction.state.log.replication.factor"
                    .into()
            }
        };
        Some(hint)
    }
}

pub trait KafkaSink: Sink<Error = SinkError> {
    /// Sets the start of the next row in the received bytes, and their number. Later broker queries
    /// follow the commits of these rows.
    fn reading(&mut self, _row: u64, _received: u64) {}

    fn is_connected(&self) -> bool;

    fn outage_reason(&self) -> Option<String> {
        None
    }

    fn begin_backfill(&mut self, _backfill: BackfillProgress) {}

    /// Announces the next mark. `cursor` returns a mark's position in a table, for a sink with
    /// progress.
    fn reaches(&mut self, _reached: Mark, _cursor: &dyn Fn(Mark) -> Option<RowCursor>) {}

    fn found(&self) -> Option<&Progress> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_that_no_record_may_hold_is_a_matter_of_the_configuration() {
        let refused = |code| {
            let rejection = Rejection { code, reason: "1641 bytes".to_owned() };
            SinkError::of_progress("progress", rejection)
        };
        let error = refused(RejectionCode::TooLarge);
        assert!(error.is_definite() && error.to_string().contains("1641 bytes"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("kafka.message_max_bytes")));
        assert!(!refused(RejectionCode::Refused).is_definite());
    }

    #[test]
    fn a_refused_codec_is_followed_by_gzip_and_gzip_by_none() {
        let refused = |codec: &str| SinkError::CodecRefused {
            topic: "orders".to_owned(),
            codec: codec.to_owned(),
            reason: "why".to_owned(),
        };
        for codec in ["lz4", "snappy", "zstd"] {
            assert_eq!(refused(codec).next_codec(), Some("gzip"), "{codec}");
        }
        assert_eq!(refused("gzip").next_codec(), Some("none"));
        assert_eq!(SinkError::NotReady("later".to_owned()).next_codec(), None);
        assert!(!refused("gzip").is_definite(), "the next session uses another one");
    }
}
