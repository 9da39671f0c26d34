//! Converts the validated configuration to the settings of the core, which does not know the
//! configuration.

use postrider_core::outbox::{MessageSpec, OutboxSpec};
use postrider_core::pipeline::{Policy, RejectPolicy};
use postrider_core::route::{Members, RouteSpec, RowOrigin, TimestampSource, TopicsSpec};

use super::model::Config;
use super::values::Rejected;

impl Config {
    /// The outbox tables; the router adds the columns it needs.
    pub fn outbox_spec(&self) -> OutboxSpec {
        let messages = MessageSpec {
            prefixes: self.messages.prefixes.clone(),
            null_is_missing: self.messages.null_members == Members::Drop,
        };
        OutboxSpec::new(self.source.tables.clone())
            .with_messages(messages)
            .with_aliases(self.outbox.aliases.clone())
    }

    /// Rules for turning a row into a record; they compile.
    pub fn route_spec(&self) -> RouteSpec {
        let Self { outbox, route, format, kafka, .. } = self;
        RouteSpec {
            id: outbox.id.clone(),
            payload: outbox.payload.clone(),
            by: outbox.resolve(&route.by).to_owned(),
            regex: route.regex.clone(),
            topic: route.topic.clone(),
            topics: self.topics_spec(),
            key: outbox.resolve(&route.key).to_owned(),
            headers: outbox.resolve_all(&route.headers),
            partition: route.partition.as_ref().map(|name| outbox.resolve(name).to_owned()),
            envelope: outbox.resolve_all(&route.envelope),
            schema_version: outbox.schema_version.clone(),
            missing_column: route.missing_column,
            rules: route.rules.clone(),
            format: format.clone(),
            event_type: outbox.event_type.clone(),
            subject: outbox.aggregate_id.clone(),
            id_header: route.id_header.clone(),
            lsn_header: route.position_header,
            origin: RowOrigin::Log,
            traceparent: outbox.traceparent.clone(),
            timestamp: match &outbox.timestamp {
                None => TimestampSource::Commit,
                Some(name) => {
                    TimestampSource::Column { name: name.clone(), unit: outbox.timestamp_unit }
                }
            },
            empty_payload: route.empty_payload,
            max_record_bytes: usize::try_from(kafka.message_bytes_max).unwrap_or(usize::MAX),
        }
    }

    pub fn topics_spec(&self) -> TopicsSpec {
        TopicsSpec {
            own: vec![self.dead_letters.topic.clone(), self.progress.topic.clone()],
            allowed: self.route.topics_allowed.clone(),
        }
    }

    pub fn policy(&self) -> Policy {
        let topic = &self.dead_letters.topic;
        Policy {
            rejected: match self.route.rejected {
                Rejected::DeadLetter => RejectPolicy::DeadLetter { topic: topic.clone() },
                Rejected::Stop => RejectPolicy::Stop,
                Rejected::Skip => RejectPolicy::Skip,
            },
            on_update: self.outbox.on_update,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FileChoice, Inputs, load};
    use postrider_core::ledger::Budget;
    use postrider_core::pipeline::UpdatePolicy;
    use postrider_core::route::{EpochUnit, Router};

    fn config(set: &[&str]) -> Config {
        let set = set.iter().map(|text| (*text).to_owned()).collect();
        let inputs = Inputs {
            file: FileChoice::Absent,
            set,
            variables: vec![("PGUSER".into(), "app".into())],
            ..Inputs::default()
        };
        load(&inputs, &|_| Vec::new()).unwrap().config
    }

    #[test]
    fn the_defaults_are_the_cores_own() {
        let config = config(&[]);
        assert_eq!(config.route_spec(), RouteSpec::default());
        assert_eq!(config.kafka.in_flight_bytes_max, Budget::default().bytes);
        assert!(Router::compile(&config.route_spec(), &mut config.outbox_spec()).is_ok());
    }

    #[test]
    fn names_in_route_follow_the_columns_of_outbox() {
        let spec = config(&[
            "outbox.event_type=kind",
            "outbox.aggregate_id=who",
            "route.headers=event_type:type,tenant",
            "outbox.timestamp=at",
            "outbox.timestamp_unit=us",
            "outbox.traceparent=",
        ])
        .route_spec();
        assert_eq!((spec.by.as_str(), spec.key.as_str()), ("kind", "who"));
        let headers: Vec<_> =
            spec.headers.iter().map(|h| (h.column.as_str(), h.name.as_str())).collect();
        assert_eq!(headers, [("kind", "type"), ("tenant", "tenant")]);
        let unit = EpochUnit::Microseconds;
        assert_eq!(spec.timestamp, TimestampSource::Column { name: "at".into(), unit });
        assert_eq!(spec.traceparent, None);
    }

    #[test]
    fn a_column_has_the_first_of_its_names_and_the_others_as_aliases() {
        let config = config(&["outbox.aggregate_id=agg, aggregate_id,agg", "outbox.timestamp=at"]);
        assert_eq!(config.route_spec().key, "agg");
        let mut spec = config.outbox_spec();
        Router::compile(&config.route_spec(), &mut spec).unwrap();
        let aliases = |name: &str| {
            let wanted = spec.wanted().iter().find(|wanted| wanted.name == name).unwrap();
            wanted.aliases.clone()
        };
        assert_eq!(aliases("agg"), ["aggregate_id"]);
        assert_eq!(aliases("event_type"), ["type"]);
        assert!(aliases("at").is_empty());
    }

    #[test]
    fn a_name_in_quotes_is_the_tables_own() {
        let set = ["outbox.id=event_id", "route.by=\"payload\"", "route.headers=\"id\",id:other"];
        let spec = config(&set).route_spec();
        let headers: Vec<_> =
            spec.headers.iter().map(|h| (h.column.as_str(), h.name.as_str())).collect();
        assert_eq!(headers, [("id", "id"), ("event_id", "other")]);
        assert_eq!((spec.id.as_str(), spec.by.as_str()), ("event_id", "payload"));
    }

    #[test]
    fn policies_are_passed_on() {
        let policy = config(&["route.rejected=stop", "outbox.on_update=ignore"]).policy();
        assert_eq!(policy.rejected, RejectPolicy::Stop);
        assert_eq!(policy.on_update, UpdatePolicy::Ignore);
        let topic = "postrider.dead-letters".to_owned();
        assert_eq!(config(&[]).policy().rejected, RejectPolicy::DeadLetter { topic });
    }
}
