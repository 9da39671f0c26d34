//! The rdkafka context of consumers: passes log lines and errors to `ClientEvents`. librdkafka
//! reports events only while a consumer is polled, so `serve` polls a consumer without partitions.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaError;
use rdkafka::statistics::Statistics;

use super::SinkError;
use super::client_events::ClientEvents;
use super::settings::SettingsError;
use super::token_login::{log_in, next_token, note_refusal};
use postrider_credentials::TokenKeeper;

/// A connection attempt has tens of log lines before the reason of its failure. A call without
/// events takes less than a microsecond.
const EVENTS: u32 = 1_000;

#[derive(Debug)]
pub(super) struct ConsumerEvents {
    events: Mutex<ClientEvents>,
    tokens: Option<TokenKeeper>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum NoConsumer {
    #[error(transparent)]
    Client(#[from] KafkaError),
    #[error(transparent)]
    Login(#[from] SettingsError),
}

/// Serves a consumer without assigned partitions. Error: the brokers refuse the login and never
/// accepted it.
pub(super) fn serve(consumer: &BaseConsumer<ConsumerEvents>) -> Result<(), SinkError> {
    for _ in 0..EVENTS {
        if let Some(Err(error)) = consumer.poll(Duration::ZERO) {
            consumer.context().hear(&error);
        }
    }
    consumer.context().events().authentication_error().cloned().map_or(Ok(()), Err)
}

impl ConsumerEvents {
    pub(super) fn reading(tokens: Option<TokenKeeper>) -> Self {
        Self { events: Mutex::new(ClientEvents::reading()), tokens }
    }

    /// For a client whose caller reports failures.
    pub(super) fn quiet(tokens: Option<TokenKeeper>) -> Self {
        let mut events = ClientEvents::auxiliary();
        events.close();
        Self { events: Mutex::new(events), tokens }
    }

    /// `may_create`: brokers may create a topic that the consumer looks up.
    pub(super) fn consumer(
        self,
        config: &ClientConfig,
        may_create: bool,
    ) -> Result<BaseConsumer<Self>, NoConsumer> {
        let tokens = self.tokens.clone();
        let mut config = config.clone();
        config.set("allow.auto.create.topics", may_create.to_string());
        let consumer: BaseConsumer<Self> = config.create_with_context(self)?;
        log_in(consumer.client(), tokens.as_ref())?;
        Ok(consumer)
    }

    /// The reason was in an earlier log line.
    pub(super) fn hear(&self, error: &KafkaError) {
        if let Some(code) = error.rdkafka_error_code() {
            self.events().hear(code);
        }
    }

    pub(super) fn tell_outage(&self) {
        self.events().tell_outage();
    }

    pub(super) fn has_connection(&self) -> bool {
        self.events().has_connection()
    }

    pub(super) fn lost(&self) {
        self.events().lost();
    }

    pub(super) fn outage_reason(&self) -> Option<String> {
        self.events().outage_reason().map(str::to_owned)
    }

    fn events(&self) -> MutexGuard<'_, ClientEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientContext for ConsumerEvents {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn generate_oauth_token(&self, _: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        next_token(self.tokens.as_ref())
    }

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.events().log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        note_refusal(self.tokens.as_ref(), &error, reason);
        self.events().error(&error, reason);
    }

    fn stats(&self, _statistics: Statistics) {}
}

impl ConsumerContext for ConsumerEvents {}
