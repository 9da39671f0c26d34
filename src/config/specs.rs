//! What the core is told: the configuration in the core's own words.

use crate::outbox::OutboxSpec;
use crate::pipeline::{Policy, RejectPolicy, UpdatePolicy};
use crate::route::{self, EpochUnit, HeaderSpec, RouteSpec, TimestampSource};

use super::model::Config;
use super::values::{EmptyPayload, OnUpdate, Rejected, TimestampUnit};

impl Config {
    /// The outbox tables; the router adds the columns it wants.
    pub fn outbox_spec(&self) -> OutboxSpec {
        OutboxSpec::new(self.source.tables.clone())
    }

    /// How a row becomes a record; compiles.
    pub fn route_spec(&self) -> RouteSpec {
        let Self { outbox, route, kafka, .. } = self;
        let header = |header: &HeaderSpec| HeaderSpec {
            column: outbox.resolve(&header.column).to_owned(),
            ..header.clone()
        };
        RouteSpec {
            id: outbox.id.clone(),
            payload: outbox.payload.clone(),
            by: outbox.resolve(&route.by).to_owned(),
            regex: route.regex.clone(),
            topic: route.topic.clone(),
            key: outbox.resolve(&route.key).to_owned(),
            headers: route.headers.iter().map(header).collect(),
            id_header: route.id_header.clone(),
            lsn_header: route.position_header,
            traceparent: outbox.traceparent.clone(),
            timestamp: match &outbox.timestamp {
                None => TimestampSource::Commit,
                Some(name) => TimestampSource::Column {
                    name: name.clone(),
                    unit: match outbox.timestamp_unit {
                        TimestampUnit::Milliseconds => EpochUnit::Milliseconds,
                        TimestampUnit::Microseconds => EpochUnit::Microseconds,
                    },
                },
            },
            empty_payload: match route.empty_payload {
                EmptyPayload::Keep => route::EmptyPayload::Keep,
                EmptyPayload::Tombstone => route::EmptyPayload::Tombstone,
            },
            max_record_bytes: usize::try_from(kafka.message_bytes_max).unwrap_or(usize::MAX),
        }
    }

    /// What happens to rows that cannot be delivered or should not have changed.
    pub fn policy(&self) -> Policy {
        let topic = &self.dead_letters.topic;
        Policy {
            rejected: match self.route.rejected {
                Rejected::DeadLetter => RejectPolicy::DeadLetter { topic: topic.clone() },
                Rejected::Stop => RejectPolicy::Stop,
                Rejected::Skip => RejectPolicy::Skip,
            },
            on_update: match self.outbox.on_update {
                OnUpdate::Ignore => UpdatePolicy::Ignore,
                OnUpdate::Warn => UpdatePolicy::Warn,
                OnUpdate::Stop => UpdatePolicy::Stop,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FileChoice, Inputs, load};
    use crate::route::Router;

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
    fn policies_are_passed_on() {
        let policy = config(&["route.rejected=stop", "outbox.on_update=ignore"]).policy();
        assert_eq!(policy.rejected, RejectPolicy::Stop);
        assert_eq!(policy.on_update, UpdatePolicy::Ignore);
        let topic = "postrider.dead-letters".to_owned();
        assert_eq!(config(&[]).policy().rejected, RejectPolicy::DeadLetter { topic });
    }
}
