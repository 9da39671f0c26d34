//! A service that one message blocks: the others have their effects, and its readiness names the message.

use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use uuid::Uuid;

use crate::services::dead_letters::headers;
use crate::services::stage::{LIMIT, Stage};
use support::http::get;
use support::wait::{wait_for, wait_until};

/// So many OrderCreated of each order, in this order.
fn place(bootstrap: &str, orders: &[Uuid], copies: usize) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap).set("linger.ms", "100");
    let producer: BaseProducer = config.create().unwrap();
    for order in orders {
        for _ in 0..copies {
            let (id, key) = (Uuid::now_v7().to_string(), order.to_string());
            let record = BaseRecord::to("OrderCreated").key(&key).payload("{\"amount_cents\": 7}");
            producer
                .send(record.headers(headers(&id, "OrderCreated")))
                .map_err(|(error, _)| error)
                .unwrap();
        }
    }
    producer.flush(LIMIT).unwrap();
}

#[test]
fn readiness_names_a_refused_order_while_other_payments_succeed() {
    let stage = Stage::set();
    let blocked = Uuid::now_v7();
    let others: Vec<Uuid> = (0..40).map(|_| Uuid::now_v7()).collect();
    stage.run(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE serialization_failure; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON payments FOR EACH ROW
             WHEN (NEW.order_id = '{blocked}') EXECUTE FUNCTION refuse()"
    ));
    // All in one partition.
    place(&stage.bootstrap(), &[blocked], 1_051);
    place(&stage.bootstrap(), &others, 1);
    let service = stage.start(&["payments"]);
    let paid = || stage.count("SELECT count(*) FROM payments");
    wait_until("the other payments", || paid() == 40);
    let answer = wait_for("readiness to name it", || {
        let answer = get(&service.address, "/readyz");
        answer.body.contains("1050 messages wait behind message ").then_some(answer)
    });
    assert_eq!(answer.status, 503);
    assert!(
        answer.body.contains("(topic OrderCreated, partition 0, offset 0)")
            && answer.body.contains("SQLSTATE 40001")
            && !answer.body.contains(&blocked.to_string()),
        "{}",
        answer.body
    );
    stage.run("DROP TRIGGER refuse ON payments");
    wait_until("the blocked payment", || paid() == 41);
    service.wait_for(&["\nshop_consumer_waiting_messages 0\n", "\nshop_dead_letters_total 0\n"]);
    assert_eq!(get(&service.address, "/readyz").status, 200);
    let log = service.stop();
    let errors: Vec<&String> = log.iter().filter(|line| line.contains("ERROR")).collect();
    assert!(!errors.is_empty() && errors.iter().all(|line| line.contains("blocks")), "{errors:?}");
    assert!(!log.iter().any(|line| line.contains("others pass")), "{log:?}");
    assert!(!log.iter().any(|line| line.contains(&blocked.to_string())), "{log:?}");
}
