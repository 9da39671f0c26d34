//! The [`Plan`]: the input for all sessions. Derives their parameters, pipelines, [`Requirements`],
//! identity ([`Lineage`]) and [`Facts`].

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

pub(super) type PreparedSession = (SessionParams, Client, Requirements, Inspection);

#[derive(Debug, Clone)]
pub struct Plan {
    pub kafka: KafkaSpec,
    pub config: Config,
    /// Columns declared NOT NULL; empty before the inspection of the database.
    pub not_null: Vec<(TableName, String)>,
    /// Empty before the inspection of the database.
    pub oids: Vec<(TableName, u32)>,
    pub origin: RowOrigin,
    /// Topic for every record, which overrides the route.
    pub topic: Option<String>,
    pub stream: Option<String>,
}

impl Plan {
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

    pub fn of(config: Config) -> Self {
        let own = vec![config.dead_letters.topic.clone(), config.progress.topic.clone()];
        let topics = TopicBook::new(config.route.missing_topic.clone(), own);
        Self::new(KafkaSpec { topics, ..kafka_spec(&config) }, config)
    }

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

    pub(super) fn found(&self, inspection: &Inspection, wanted: &Requirements) -> Self {
        let (not_null, oids) = (inspection.not_null(wanted), inspection.oids(wanted));
        Self { not_null, oids, ..self.clone() }
    }

    /// Takes the table columns, routes and formats of another configuration.
    #[must_use]
    pub(super) fn routed_by(&self, config: &Config) -> Self {
        let Config { outbox, route, format, .. } = config.clone();
        Self { config: Config { outbox, route, format, ..self.config.clone() }, ..self.clone() }
    }

    pub fn letter_source(&self, server: &ServerFacts) -> LetterSource {
        let source = &self.config.source;
        LetterSource {
            system: server.system.as_ref().map(|(system, _)| system.clone()),
            database: Some(server.database.clone()),
            slot: (source.mode == SourceMode::Stream).then(|| source.slot.clone()),
            stream: self.stream.clone(),
        }
    }

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

    pub fn pipeline_of(&self, stream: &Lineage) -> Result<Pipeline, RouteSpecError> {
        let Lineage { system, database, slot, .. } = stream;
        let [system, database, slot] = [system, database, slot].map(|name| Some(name.clone()));
        let stream = self.stream.clone();
        let mut pipeline = self.pipeline()?;
        pipeline.name_source(&LetterSource { system, database, slot, stream });
        Ok(pipeline)
    }

    /// Lacks the system and timeline of the replication connection. The source must have passed all
    /// checks: a lineage without a publication or a table would never detect a replacement.
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

    /// A dry run (`acknowledged` is false) may repeat rows.
    pub(super) fn facts(&self, inspection: &Inspection, acknowledged: bool) -> Facts {
        Facts {
            lineage: self.lineage(inspection),
            exactly_once: self.config.kafka.delivery == Delivery::ExactlyOnce && acknowledged,
            publication: self.config.source.publication.clone(),
            ..Facts::default()
        }
    }

    pub fn requirements(&self) -> Result<Requirements, RouteSpecError> {
        let mut spec = self.config.outbox_spec();
        Router::compile(&self.config.route_spec(), &mut spec)?;
        let source = &self.config.source;
        Ok(Requirements {
            slot: source.slot.clone(),
            publication: source.publication.clone(),
            tables: source.tables.clone(),
            // `compile` has requested the columns that the routing reads.
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

    pub const fn keeps_progress(&self) -> bool {
        matches!(self.config.kafka.delivery, Delivery::ExactlyOnce)
            || self.config.progress.at_least_once
    }

    /// Maximum delay of a status update: a third of `wal_sender_timeout` (zero: none), at most 10
    /// s.
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
