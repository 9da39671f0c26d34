//! Builds the Kafka client's settings from the configuration, and maps the client's errors back to
//! options. Does not open connections.

use std::time::Duration;

use postrider_config::{Config, Delivery, KafkaSection, OAuthMethod, Objection, SourceMode};
use postrider_core::ledger::Budget;
use postrider_credentials::aws::{AwsEnvironment, MskIam, region as aws_region};
use postrider_credentials::oidc::ClientCredentials;
use postrider_credentials::{TokenKeeper, TokenSource};
use postrider_kafka::{
    DeliveredTap, KafkaSecrets, KafkaSpec, Producer, SettingsError, TapHeaders, TapSpec,
    refuse_reserved,
};

use postrider_secrets::Password;

pub fn kafka_spec(config: &Config) -> KafkaSpec {
    let kafka = &config.kafka;
    let properties =
        kafka.properties.iter().map(|property| (property.name.clone(), property.value.clone()));
    let budget = Budget { bytes: kafka.in_flight_bytes_max, ..Budget::default() };
    KafkaSpec {
        brokers: kafka.brokers.clone(),
        client_id: kafka.client_id.clone(),
        compression: kafka.compression.as_str().to_owned(),
        partitioner: kafka.partitioner,
        linger_ms: milliseconds(kafka.linger),
        budget,
        unconfirmed: match kafka.delivery {
            Delivery::AtLeastOnce => budget,
            Delivery::ExactlyOnce => budget.in_transactions(),
        },
        message_max_bytes: kafka.message_bytes_max,
        progress_topic: config.progress.topic.clone(),
        transaction_age: kafka.transaction_age,
        properties: properties.collect(),
        secrets: KafkaSecrets {
            files: kafka.secret_files.clone(),
            password_command: kafka.password_command.clone(),
            tokens: token_source(kafka).map(TokenKeeper::shared),
        },
        ..KafkaSpec::default()
    }
}

pub fn delivered_tap(config: &Config) -> DeliveredTap {
    let spec = TapSpec {
        shows_payloads: config.http.dashboard_payloads,
        has_positions: config.source.mode == SourceMode::Stream,
    };
    DeliveredTap::new(spec, tap_headers(config))
}

pub(super) fn tap_headers(config: &Config) -> TapHeaders {
    let outbox = &config.outbox;
    let is_type = |column: &str| outbox.resolve(column) == outbox.event_type;
    let sent = config.route.headers.iter().find(|header| is_type(&header.column));
    TapHeaders {
        id: config.route.id_header.clone(),
        event_type: sent.map_or_else(|| "ce_type".to_owned(), |header| header.name.clone()),
    }
}

/// `None`: the brokers do not use tokens.
fn token_source(kafka: &KafkaSection) -> Option<TokenSource> {
    let oauth = &kafka.oauth;
    match oauth.method {
        OAuthMethod::Off => None,
        OAuthMethod::Command => oauth.command.clone().map(TokenSource::Command),
        OAuthMethod::AwsMskIam => {
            let environment = AwsEnvironment::of_process();
            let found = |broker: &String| aws_region(&environment, broker);
            let region = oauth.aws_region.clone().or_else(|| kafka.brokers.iter().find_map(found));
            // `review` has rejected a configuration without a region.
            Some(TokenSource::MskIam(MskIam { region: region.unwrap_or_default(), environment }))
        }
        OAuthMethod::Oidc => Some(TokenSource::Oidc(ClientCredentials {
            endpoint: oauth.endpoint.clone(),
            client_id: oauth.client_id.clone(),
            client_secret: Some(Password::new(oauth.client_secret.clone())),
            client_secret_file: oauth.client_secret_file.clone(),
            scope: oauth.scope.clone(),
            parameters: oauth.parameters.clone(),
            ca_file: oauth.ca_file.clone(),
        })),
    }
}

fn objection_to_login(spec: &KafkaSpec) -> Option<Objection> {
    let tokens = spec.secrets.tokens.as_ref()?;
    let TokenSource::MskIam(msk) = tokens.source() else { return None };
    msk.region.is_empty().then(|| Objection {
        key: "kafka.oauth.aws_region".to_owned(),
        reason: "no region is named, and the brokers' names have none".to_owned(),
        help: Some("set it, or AWS_REGION".to_owned()),
    })
}

/// Objections of the Kafka client that do not need a connection.
pub fn review(config: &Config) -> Vec<Objection> {
    let names = config.kafka.properties.iter().map(|property| property.name.as_str());
    let reserved: Vec<Objection> =
        names.filter_map(|name| refuse_reserved(name).err()).map(objection).collect();
    if reserved.is_empty() {
        let spec = kafka_spec(config);
        let refused = spec.validate().and_then(|()| Producer::rehearse(&spec)).err();
        return refused.map(objection).or_else(|| objection_to_login(&spec)).into_iter().collect();
    }
    reserved
}

fn objection(error: SettingsError) -> Objection {
    let help = error.hint();
    let property = |key: &str| match key.strip_prefix("kafka.") {
        Some(_) => key.to_owned(),
        None => format!("kafka.properties.{key}"),
    };
    let (key, reason) = match error {
        SettingsError::NoBrokers => ("kafka.brokers".to_owned(), "no broker is named".to_owned()),
        SettingsError::Reserved { key, why, .. } => (property(&key), why.to_owned()),
        SettingsError::Unknown { key, .. } => {
            (property(&key), "the Kafka client has no such property".to_owned())
        }
        SettingsError::Invalid { key, reason } => (property(&key), reason),
        SettingsError::Secret(error) => ("kafka.password_command".to_owned(), error.to_string()),
        SettingsError::Token(error) => ("kafka.oauth.method".to_owned(), error.to_string()),
        SettingsError::ProgressTooLarge { reason } => {
            ("kafka.message_max_bytes".to_owned(), reason)
        }
        SettingsError::Client(reason) => ("kafka.properties".to_owned(), reason),
    };
    Objection { key, reason, help }
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
