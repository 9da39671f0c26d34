//! Orders that took too long time out, whatever happens to others.

use crate::services::stage::Stage;
use support::wait::wait_until;

#[test]
fn an_order_that_cannot_time_out_does_not_block_others() {
    let stage = Stage::set();
    stage.run(
        "INSERT INTO sagas (kind, id, state, status, deadline)
             SELECT 'order', '00000000-0000-0000-0000-00000000000' || n,
                 '{\"payment\": \"awaited\", \"stock\": \"awaited\", \"given_up\": false}',
                 'PENDING', now() FROM generate_series(1, 6) AS n;
         INSERT INTO outbox_sequences SELECT kind, id, 1 FROM sagas",
    );
    // The first and the last, from whichever end it begins: the numbers of their events are taken.
    let other = stage.database.sql();
    other.run(
        "BEGIN; SELECT FROM outbox_sequences
         WHERE aggregate_id LIKE '%1' OR aggregate_id LIKE '%6' FOR UPDATE",
    );
    let service = stage.start(&["orders", "--patience", "1h"]);
    let given_up = "SELECT count(*) FROM outbox WHERE event_type = 'OrderTimedOut'";
    wait_until("the others to time out", || stage.count(given_up) == 4);
    service.stop();
    other.run("COMMIT");
}
