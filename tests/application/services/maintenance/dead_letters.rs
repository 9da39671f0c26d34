//! Dead letters that nobody has redriven are on the metrics of `shop maintain`.

use uuid::Uuid;

use crate::services::dead_letters::produce;
use crate::services::stage::Stage;
use support::http::get;
use support::wait::wait_until;

#[test]
fn dead_letters_are_counted_until_they_are_redriven() {
    let stage = Stage::set();
    let maintain = ["maintain", "--every", "200ms", "--table", "idempotency_keys"];
    let maintain = stage.start(&maintain);
    maintain.wait_for(&["\nshop_dead_letter_depth 0\n", "\nshop_dead_letter_oldest_seconds 0\n"]);
    let orders = stage.orders();
    for _ in 0..2 {
        // Poison: there is no such order.
        produce(&stage.bootstrap(), "PaymentProcessed", &Uuid::now_v7().to_string());
    }
    maintain.wait_for(&["\nshop_dead_letter_depth 2\n"]);
    support::promtool::check_metrics(&get(&maintain.address, "/metrics").body);
    wait_until("the oldest to grow older", || {
        let page = get(&maintain.address, "/metrics").body;
        let age = page.split("\nshop_dead_letter_oldest_seconds ").nth(1).unwrap();
        age.lines().next().unwrap().parse::<u64>().unwrap() > 0
    });
    // Or what is sent again would be a dead letter again.
    orders.stop();
    stage.dead_letters(&["redrive", "shop-orders", "--execute"]);
    maintain.wait_for(&["\nshop_dead_letter_depth 0\n", "\nshop_dead_letter_oldest_seconds 0\n"]);
    maintain.stop();
}
