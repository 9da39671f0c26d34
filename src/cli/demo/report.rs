//! What the demo tells a person: what runs, what happens to it, and what the figures mean.
//!
//! Input: the stage, the arguments, [`Figures`]. Output: text. Invariant: each number stands beside what it should be, and
//! the first word of the verdict is PASS or FAIL.

use std::fmt::Write as _;

use super::judge::DeliveryVerdict;
use super::shop::ShopFigures;
use super::stage::Stage;
use super::{DemoArgs, Figures};
use postrider_config::Delivery;

/// What runs, and what is about to be seen.
#[expect(clippy::print_stderr, reason = "for eyes, and not data")]
pub(super) fn introduce(stage: &Stage, args: &DemoArgs) {
    eprintln!("{}", stage.describe());
    eprintln!("dashboard     http://{}/", stage.http);
    eprintln!();
    eprintln!(
        "1. A shop: orders over HTTP, paid and reserved by services that communicate through"
    );
    eprintln!(
        "   the outbox. Some are refused by the card, some sold out and refunded, some requests"
    );
    eprintln!("   sent twice. A line for each order that has ended, with its events as they came.");
    let every = args.kill_every.map(|every| {
        format!("; every {} s the relay is killed (SIGKILL) and started again", every.as_secs_f64())
    });
    eprintln!(
        "2. A load: {} orders, {} a second{}. Some transactions and",
        args.count,
        args.rate,
        every.unwrap_or_default()
    );
    eprintln!(
        "   savepoints roll back on purpose: their rows must not arrive. One record of several is"
    );
    eprintln!("   shown: topic[partition]@offset, key, payload, and how many came since.");
    eprintln!("3. A verdict: what was committed, held against what a consumer read.\n");
}

/// Tells that the relay was killed, where arrivals are shown.
#[expect(clippy::print_stderr, reason = "for eyes, and not data")]
pub(super) fn tell_kill(kills: u32) {
    eprintln!(
        "-- kill {kills}: SIGKILL to the relay; it is started again, and goes on where Postgres was told to --"
    );
}

/// Tells that it goes on.
#[expect(clippy::print_stderr, reason = "for eyes, and not data")]
pub(super) fn tell_stay(stage: &Stage) {
    eprintln!("The relay and some orders go on: http://{}/ until Ctrl-C.", stage.http);
}

/// The figures, and what to type next.
pub(super) fn to_text(figures: &Figures, delivery: Delivery) -> String {
    let DeliveryVerdict { committed, delivered, lost, duplicated, phantom, out_of_order, .. } =
        figures.verdict;
    let (p50, p99) = (figures.verdict.p50_ms, figures.verdict.p99_ms);
    let ShopFigures { orders, repeated_requests, confirmed, cancelled, refunded, stuck } =
        &figures.shop;
    let repeats = match delivery {
        Delivery::ExactlyOnce => "read again by a consumer of committed records: none may be",
        Delivery::AtLeastOnce => {
            "read again: at least once, what was in flight at a kill comes twice"
        }
    };
    let verdict = if figures.is_sound(delivery) {
        "PASS  what was committed arrived, in order, and nothing else"
    } else {
        "FAIL  see the figures that should be 0"
    };
    let mut text = format!("\n{verdict}\n\n");
    let lines: [(&str, String, &str); 8] = [
        ("committed", committed.to_string(), "rows of the load that were committed to the outbox"),
        ("delivered", delivered.to_string(), "of these, read from Kafka"),
        ("lost", lost.to_string(), "of these, not read: must be 0"),
        ("duplicated", duplicated.to_string(), repeats),
        ("phantom", phantom.to_string(), "read, though rolled back or never written: must be 0"),
        (
            "out of order",
            out_of_order.to_string(),
            "read after a later row of the same key: must be 0",
        ),
        ("kills", figures.kills.to_string(), "of the relay"),
        ("p50, p99", format!("{p50:.1}, {p99:.1} ms"), "from the commit to the consumer"),
    ];
    // Writing to a string cannot fail.
    for (name, value, meaning) in lines {
        let _ = writeln!(text, "  {name:<13} {value:<14} {meaning}");
    }
    let _ = writeln!(
        text,
        "  shop          {orders} orders ({repeated_requests} requests sent twice): {confirmed} confirmed, {cancelled} cancelled \
         ({refunded} refunded), {stuck} stuck: must be 0"
    );
    text.push_str(
        "\nNext (in the repository: make demo ARGS=\"..\"):\n  \
         postrider demo --count 20000 --rate 2000 --kill-every 2s   the same while the relay is killed\n  \
         postrider demo --stay                                      goes on, with the dashboard\n  \
         README.md, \"Your own database, in five minutes\"\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(lost: u64) -> Figures {
        let verdict = DeliveryVerdict {
            committed: 10,
            delivered: 10 - lost,
            lost,
            duplicated: 2,
            phantom: 0,
            out_of_order: 0,
            p50_ms: 1.25,
            p99_ms: 9.0,
        };
        let shop = ShopFigures {
            orders: 2,
            repeated_requests: 1,
            confirmed: 2,
            cancelled: 0,
            refunded: 0,
            stuck: 0,
        };
        Figures { verdict, kills: 3, shop }
    }

    #[test]
    fn the_verdict_is_a_word_and_each_number_has_its_meaning() {
        let text = to_text(&figures(0), Delivery::AtLeastOnce);
        assert!(text.starts_with("\nPASS  "), "{text}");
        assert!(text.contains("  lost          0              of these, not read: must be 0\n"));
        assert!(to_text(&figures(1), Delivery::AtLeastOnce).starts_with("\nFAIL  "));
        let once = to_text(&figures(0), Delivery::ExactlyOnce);
        assert!(once.starts_with("\nFAIL  ") && once.contains("none may be"), "{once}");
    }
}
