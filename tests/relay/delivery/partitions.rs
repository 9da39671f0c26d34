//! Rows of a partitioned outbox.

use crate::stage::Stage;
use support::broker::Broker;
use support::postgres;

const PARTITIONED: &str = "
    ALTER TABLE outbox RENAME TO plain;
    CREATE TABLE outbox (LIKE plain INCLUDING DEFAULTS) PARTITION BY HASH (aggregate_id);
    CREATE TABLE part PARTITION OF outbox FOR VALUES WITH (MODULUS 1, REMAINDER 0);
    ALTER PUBLICATION postrider SET TABLE outbox;
    ALTER PUBLICATION postrider SET (publish_via_partition_root = true)";

/// Postgres then sends them under the partition's name, and the relay is not there to refuse it.
#[test]
fn g4_rows_of_partitions_arrive_though_they_were_not_published_under_the_root_for_a_while() {
    let broker = Broker::embedded();
    for cluster in postgres::versions() {
        for delivery in ["at_least_once", "exactly_once"] {
            let stage = Stage::new(cluster, &broker.bootstrap(), "via_root");
            stage.sql().run(PARTITIONED);
            let relay = stage.relay().set("kafka.delivery", delivery).allow_log("publication");
            stage.insert("A", 3);
            relay.run_once();
            let set = |via: bool| {
                let sql =
                    format!("ALTER PUBLICATION postrider SET (publish_via_partition_root = {via})");
                stage.sql().run(&sql);
            };
            set(false);
            stage.insert("A", 40);
            set(true);
            stage.insert("A", 3);
            relay.run_once();
            assert_eq!(stage.records().len(), 46, "{delivery}");
        }
    }
}
