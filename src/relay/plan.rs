//! The [`Plan`]: everything that sessions are built from, and what is derived from it.
//!
//! Input: a validated [`Config`], the Kafka client's settings, and later what was found in the database.
//! Output: the parameters of the replication stream, a session's pipeline, what must exist in the database
//! ([`Requirements`]), the stream's identity for progress ([`Lineage`]), what decides where to resume
//! ([`Facts`]), and the interval of status updates.

use std::time::Duration;

use crate::specs::kafka_spec;
use postrider_config::{Config, Create, Delivery, SourceMode};
use postrider_core::gate::Facts;
use postrider_core::outbox::{Outbox, TableName};
use postrider_core::pipeline::Pipeline;
use postrider_core::record::LetterSource;
use postrider_core::route::{RouteSpec, RouteSpecError, Router, RowOrigin};
use postrider_kafka::{KafkaSpec, Lineage, TopicBook};
use postrider_postgres::control::{
    self, Client, ControlError, Inspection, NewSlot, Requirements, ServerFacts, TableFacts,
};
use postrider_postgres::wal::SessionParams;

/// What a session begins with: a connection, and what was found over it.
pub(super) type PreparedSession = (SessionParams, Client, Requirements, Inspection);

/// Everything a session is built from.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The producer's settings.
    pub kafka: KafkaSpec,
    /// The rest, as the operator decided it.
    pub config: Config,
    /// Columns that are declared NOT NULL; known once the database was inspected.
    pub not_null: Vec<(TableName, String)>,
    /// The tables' OIDs; known once the database was inspected.
    pub oids: Vec<(TableName, u32)>,
    /// Where rows are read from.
    pub origin: RowOrigin,
    /// Every record goes to this topic, whatever the route says.
    pub topic: Option<String>,
    /// The stream's name, of several in one configuration.
    pub stream: Option<String>,
}

impl Plan {
    /// How the stream is asked for, in the database that was looked at.
    pub(super) async fn session_params(
        &self,
        client: &Client,
        inspection: &Inspection,
    ) -> Result<SessionParams, ControlError> {
        let frame_bytes_max = self.config.source.frame_bytes_max;
        Ok(SessionParams {
            encoding: control::stream_encoding(client, &inspection.server.encoding).await?,
            messages: !self.config.messages.prefixes.is_empty(),
            frame_bytes_max: usize::try_from(frame_bytes_max).unwrap_or(usize::MAX),
            ..SessionParams::default()
        })
    }

    /// What a configuration says, topics that are missing included; for a database that nobody has looked
    /// at yet.
    pub fn of(config: Config) -> Self {
        let own = vec![config.dead_letters.topic.clone(), config.progress.topic.clone()];
        let topics = TopicBook::new(config.route.missing_topic.clone(), own);
        Self::new(KafkaSpec { topics, ..kafka_spec(&config) }, config)
    }

    /// The same with other settings of the Kafka client.
    pub const fn new(kafka: KafkaSpec, config: Config) -> Self {
        Self {
            kafka,
            config,
            not_null: Vec::new(),
            oids: Vec::new(),
            origin: RowOrigin::Log,
            topic: None,
            stream: None,
        }
    }

    /// The same for the database that was found.
    pub(super) fn found(&self, inspection: &Inspection, wanted: &Requirements) -> Self {
        let (not_null, oids) = (inspection.not_null(wanted), inspection.oids(wanted));
        Self { not_null, oids, ..self.clone() }
    }

    /// The same with the tables' columns, routes and formats of another configuration. What is known of topics stays.
    #[must_use]
    pub(super) fn routed_by(&self, config: &Config) -> Self {
        let Config { outbox, route, format, .. } = config.clone();
        Self { config: Config { outbox, route, format, ..self.config.clone() }, ..self.clone() }
    }

    /// The source that dead letters name, in this database.
    pub fn letter_source(&self, server: &ServerFacts) -> LetterSource {
        let source = &self.config.source;
        LetterSource {
            system: server.system.as_ref().map(|(system, _)| system.clone()),
            database: Some(server.database.clone()),
            slot: (source.mode == SourceMode::Stream).then(|| source.slot.clone()),
            stream: self.stream.clone(),
        }
    }

    /// A fresh pipeline for a session.
    pub fn pipeline(&self) -> Result<Pipeline, RouteSpecError> {
        let mut spec = self.config.outbox_spec();
        for (table, column) in &self.not_null {
            spec.declare_not_null(table.clone(), column.clone());
        }
        for (table, oid) in &self.oids {
            spec.identify(table.clone(), *oid);
        }
        let mut route = RouteSpec { origin: self.origin, ..self.config.route_spec() };
        if let Some(topic) = &self.topic {
            route.send_all_to(topic);
        }
        let router = Router::compile(&route, &mut spec)?;
        Ok(Pipeline::new(Outbox::new(spec), router, self.config.policy(), self.kafka.unconfirmed))
    }

    /// A fresh pipeline whose dead letters say that they are of this stream.
    pub fn pipeline_of(&self, stream: &Lineage) -> Result<Pipeline, RouteSpecError> {
        let Lineage { system, database, slot, .. } = stream;
        let [system, database, slot] = [system, database, slot].map(|name| Some(name.clone()));
        let stream = self.stream.clone();
        let mut pipeline = self.pipeline()?;
        pipeline.name_source(&LetterSource { system, database, slot, stream });
        Ok(pipeline)
    }

    /// Which stream it is, but for what only the replication connection knows: system and timeline. Of
    /// a source that nothing was refused of: a lineage without its publication, or without a table,
    /// would never notice that another one takes its name.
    pub fn lineage(&self, inspection: &Inspection) -> Lineage {
        let config = &self.config;
        let tables = || config.source.tables.iter().zip(&inspection.tables);
        let Some(publication) = &inspection.publication else {
            unreachable!("a source without its publication is refused");
        };
        let found = |(name, facts): (&TableName, &Option<TableFacts>)| match facts {
            Some(facts) => (name.to_string(), facts.oid),
            None => unreachable!("a source without table {name} is refused"),
        };
        let member = |(name, facts): (&TableName, &Option<TableFacts>)| {
            Some((name.to_string(), facts.as_ref()?.published.as_ref()?.member?))
        };
        let place = |(name, facts): (&TableName, &Option<TableFacts>)| {
            Some((name.to_string(), facts.as_ref()?.published.as_ref()?.place?))
        };
        Lineage {
            database: inspection.server.database.clone(),
            slot: config.source.slot.clone(),
            publication: publication.oid,
            publication_xid: Some(publication.xid),
            tables: tables().map(found).collect(),
            members: tables().filter_map(member).collect(),
            places: tables().filter_map(place).collect(),
            messages: Some(config.messages.prefixes.iter().cloned().collect()),
            standby: inspection.server.in_recovery,
            ..Lineage::default()
        }
    }

    /// What the gate has to know, as far as the control plane knows it. Whether it is `acknowledged` what
    /// is delivered: a dry run repeats what it likes.
    pub(super) fn facts(&self, inspection: &Inspection, acknowledged: bool) -> Facts {
        Facts {
            lineage: self.lineage(inspection),
            exactly_once: self.config.kafka.delivery == Delivery::ExactlyOnce && acknowledged,
            publication: self.config.source.publication.clone(),
            ..Facts::default()
        }
    }

    /// What must be there in the database.
    pub fn requirements(&self) -> Result<Requirements, RouteSpecError> {
        let mut spec = self.config.outbox_spec();
        Router::compile(&self.config.route_spec(), &mut spec)?;
        let source = &self.config.source;
        Ok(Requirements {
            slot: source.slot.clone(),
            publication: source.publication.clone(),
            tables: source.tables.clone(),
            // `compile` asked for the columns that rows are routed by.
            columns: spec.wanted().to_vec(),
            messages: !self.config.messages.prefixes.is_empty(),
            create: source.create == Create::Auto,
            new_slot: match (source.standby, source.failover) {
                (true, _) => NewSlot::OfStandby,
                (false, true) => NewSlot::Failover,
                (false, false) => NewSlot::Plain,
            },
        })
    }

    /// Whether a later session is to find how far we came.
    pub const fn keeps_progress(&self) -> bool {
        matches!(self.config.kafka.delivery, Delivery::ExactlyOnce)
            || self.config.progress.at_least_once
    }

    /// How long a status update may be put off at most, so that a server with this
    /// `wal_sender_timeout` (zero: none) never takes us for dead: a third of it, at most 10 s.
    pub fn heartbeat(wal_sender_timeout: Duration) -> Duration {
        const LONGEST: Duration = Duration::from_secs(10);
        if wal_sender_timeout.is_zero() { LONGEST } else { LONGEST.min(wal_sender_timeout / 3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_never_takes_us_for_dead() {
        let seconds = Duration::from_secs;
        assert_eq!(Plan::heartbeat(seconds(60)), seconds(10));
        assert_eq!(Plan::heartbeat(seconds(6)), seconds(2));
        assert_eq!(Plan::heartbeat(Duration::ZERO), seconds(10));
    }
}
