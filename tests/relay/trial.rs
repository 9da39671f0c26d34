//! One test, run in every manner of delivery: real Postgres, the best broker there is, every status
//! update read along, and the judge's word at the end.

#[cfg(feature = "faults")]
use crate::load::Load;
use crate::stage::Stage;
use postrider::sandbox::postgres::Cluster;
#[cfg(feature = "faults")]
use postrider::shop::{draw::event_types, load::LoadPlan};
use support::broker::Broker;
use support::judge::Verdict;
use support::oracle::Oracle;
use support::postgres::Database;
use support::relay::Relay;
use support::status_log::{Status, StatusLog};
use support::topic;

/// Every value of `kafka.delivery`.
pub(crate) const DELIVERIES: [&str; 2] = ["at_least_once", "exactly_once"];

/// Where every test here sends its rows.
pub(crate) const TOPIC: &str = "A";

/// See the module.
pub(crate) struct Trial {
    pub(crate) delivery: &'static str,
    pub(crate) stage: Stage,
    /// Ends with the trial.
    #[cfg_attr(
        not(feature = "faults"),
        expect(dead_code, reason = "the fault matrix asks which it is")
    )]
    broker: Option<Broker>,
    pub(crate) tap: StatusLog,
    pub(crate) oracle: Oracle,
}

#[cfg(feature = "faults")]
/// A trial for each manner of delivery, on the installed Postgres.
pub(crate) fn trials(stem: &str) -> impl Iterator<Item = Trial> {
    DELIVERIES
        .into_iter()
        .map(move |delivery| Trial::new(support::postgres::installed(), stem, delivery))
}

impl Trial {
    /// A database with a slot in `cluster`, and topics that have been there for a while.
    pub(crate) fn new(cluster: &Cluster, stem: &str, delivery: &'static str) -> Self {
        let trial = Self::without_slot(cluster, stem, delivery);
        trial.stage.create_slot();
        trial
    }

    /// The same with table and publication, but no slot.
    pub(crate) fn without_slot(cluster: &Cluster, stem: &str, delivery: &'static str) -> Self {
        Self::of(Database::migrated(cluster, stem), delivery)
    }

    /// The same in a database that was made in a special way.
    pub(crate) fn of(database: Database, delivery: &'static str) -> Self {
        let broker = Broker::best();
        let trial = Self::before(&broker.bootstrap(), database, delivery);
        if let Broker::Kafka(_) = broker {
            trial.create_topics(&[TOPIC, "dead-letters"]);
        }
        Self { broker: Some(broker), ..trial }
    }

    fn before(bootstrap: &str, database: Database, delivery: &'static str) -> Self {
        let stage = Stage::before(database, bootstrap);
        let (oracle, tap) = (stage.oracle(), stage.tap());
        Self { delivery, stage, broker: None, tap, oracle }
    }

    #[cfg(feature = "faults")]
    /// A trial before brokers that will not answer: its status_log asks them nothing.
    pub(crate) fn blind(bootstrap: &str, stem: &str, delivery: &'static str) -> Self {
        let database = Database::migrated(support::postgres::installed(), stem);
        let trial = Self::before(bootstrap, database, delivery);
        trial.stage.create_slot();
        // A relay that acknowledges nothing speaks three times within this.
        let timeout = "SET wal_sender_timeout = '6s'";
        let slot = trial.stage.slot();
        trial.stage.sql().run(&format!("ALTER DATABASE {slot} {timeout}"));
        let address = trial.stage.database.address();
        let tap = StatusLog::start(&address, bootstrap, "no topic begins like this");
        Self { tap, ..trial }
    }

    #[cfg(feature = "faults")]
    /// Asserts what this manner of delivery promises, but for what a blind status_log did not see.
    pub(crate) fn assert_kept_unseen(&self) -> Verdict {
        self.assert_kept_with(&[])
    }

    /// Makes topics beforehand.
    pub(crate) fn create_topics(&self, names: &[&str]) {
        for name in names {
            topic::create(self.stage.bootstrap(), &self.stage.topic(name), 3, &[]);
        }
    }

    #[cfg(feature = "faults")]
    /// Writers as in earnest, with their topics made beforehand.
    pub(crate) fn load(&self, writers: &[(u32, u32)]) -> Load {
        if let Some(Broker::Kafka(_)) = self.broker {
            let types = event_types(LoadPlan::default().types);
            self.create_topics(&types.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Load::start(&self.stage, writers)
    }

    /// A relay that is read along with, and says often what it acknowledges.
    pub(crate) fn relay(&self) -> Relay {
        self.relay_with(self.stage.relay_at(&self.tap.address()))
    }

    /// The same, over a way to Postgres of the test's own.
    pub(crate) fn relay_with(&self, relay: Relay) -> Relay {
        relay
            .set("kafka.delivery", self.delivery)
            .set("source.status_interval", "200ms")
            .set("retry.initial", "50ms")
            .set("retry.max", "500ms")
    }

    #[cfg(feature = "faults")]
    /// Waits until all that is committed is acknowledged.
    pub(crate) fn wait_settled(&self) {
        self.stage.wait_acknowledged(self.stage.log_end());
    }

    /// Asserts what this manner of delivery promises.
    pub(crate) fn assert_kept(&self) -> Verdict {
        self.assert_kept_with(&self.tap.statuses())
    }

    fn assert_kept_with(&self, statuses: &[Status]) -> Verdict {
        let verdict = self.stage.verdict(&self.oracle, statuses);
        match self.delivery {
            "exactly_once" => verdict.assert_exactly_once(),
            _ => verdict.assert_at_least_once(),
        }
        verdict
    }

    /// Asserts that nothing at all is repeated either.
    pub(crate) fn assert_once(&self) -> Verdict {
        let verdict = self.stage.verdict(&self.oracle, &self.tap.statuses());
        verdict.assert_exactly_once();
        verdict
    }
}
