//! One trace from the writer of an event, through a real relay and Kafka, to the consumer's effects and the
//! event that they append.

use postrider::inbox::{Effects, Failure, Interest, Message};
use postrider::outbox_writer::{Event, append};
use postrider::traceparent::Traceparent;
use serde_json::json;
use tokio_postgres::Transaction;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::inbox::scene::{PARTITIONS, Running, Scene};
use support::relay::Relay;
use support::{topic, unique, wait_for};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_trace_goes_from_the_event_that_is_appended_to_the_effects_and_to_what_they_append() {
    let Some(scene) = Scene::new("traced") else { return };
    // Of the whole process; it prints nothing.
    let _ = tracing_subscriber::registry().try_init();
    let (sql, slot) = (scene.database.sql(), scene.database.name());
    sql.run(&format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    let prefix = unique("traced-");
    for event_type in ["Placed", "Paid"] {
        topic::create(&scene.bootstrap, &format!("{prefix}{event_type}"), PARTITIONS, &[]);
    }
    let trace: Traceparent = TRACE.parse().unwrap();
    let placed = Event::new("order", "42", "Placed", json!({ "cents": 150 }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = scene.database.address().unix_url();
        let mut client = postrider::shop::connect(&url).await.unwrap();
        let transaction = client.transaction().await.unwrap();
        append(&transaction, &placed.with_traceparent(trace.clone())).await.unwrap();
        transaction.commit().await.unwrap();
    });
    let relay = Relay::new(
        env!("CARGO_BIN_EXE_postrider"),
        &scene.database.address(),
        slot,
        &scene.bootstrap,
        &prefix,
    );
    relay.run_once();

    let mut spec = scene.spec();
    spec.topics = vec![format!("{prefix}Placed")];
    let running = Running::start(spec, Pay);
    running.await_counters("the payment", |now| now.processed == 1);
    running.stop();
    relay.run_once();
    let paid = wait_for("the event of the effects", || {
        topic::read(&scene.bootstrap, &[format!("{prefix}Paid")]).pop()
    });
    assert_eq!(paid.header("traceparent"), Some(TRACE));
}

/// Appends an event to the trace of the message, in the span of the message.
struct Pay;

impl Effects for Pay {
    fn interest(&self, _: &str) -> Interest {
        Interest::Handle
    }

    async fn apply(&self, tx: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let span = tracing::Span::current().metadata().map(tracing::Metadata::name);
        if span != Some("message") {
            return Err(Failure::poison(format!("the span is {span:?}")));
        }
        let trace = message.traceparent().ok_or_else(|| Failure::poison("there is no trace"))?;
        let key = message.aggregate_id.as_str();
        let paid = Event::new("payment", key, "Paid", json!({})).with_traceparent(trace);
        append(tx, &paid).await.map_err(Failure::technical)?;
        Ok(())
    }
}
