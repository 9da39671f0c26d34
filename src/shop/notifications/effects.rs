//! Message processing of the notification service: writes the intent to mail; never sends a mail.
//! An order gets one intent, when its customer and its end are both known.

use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::Notify;
use tokio_postgres::Transaction;

use crate::messages::{interest, order_id};
use postrider_patterns::inbox::{Effects, Failure, Interest, Message};

pub(super) const TOPICS: [&str; 3] = ["OrderCreated", "OrderConfirmed", "OrderCancelled"];

pub(super) struct NotificationEffects {
    /// Notified after each commit.
    pub(super) intents: Arc<Notify>,
}

#[derive(Deserialize)]
struct OrderCreated {
    customer: String,
}

impl Effects for NotificationEffects {
    fn interest(&self, event_type: &str) -> Interest {
        interest(&TOPICS, event_type)
    }

    async fn apply(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let order = order_id(message)?;
        if message.event_type == "OrderCreated" {
            let created = OrderCreated::deserialize(&message.payload)
                .map_err(|_| Failure::poison("the payload is not an order"))?;
            let sql = "INSERT INTO notifications AS known (order_id, customer, status) \
                 VALUES ($1, $2, 'WAITING') \
                 ON CONFLICT (order_id) DO UPDATE SET customer = excluded.customer, \
                     status = 'PENDING', next_attempt_at = now(), updated_at = now() \
                 WHERE known.status = 'WAITING' AND known.customer IS NULL";
            transaction.execute(sql, &[&order, &created.customer]).await?;
        } else {
            let sql = "INSERT INTO notifications AS known (order_id, event_id, event_type, status) \
                 VALUES ($1, $2, $3, 'WAITING') \
                 ON CONFLICT (order_id) DO UPDATE SET event_id = excluded.event_id, \
                     event_type = excluded.event_type, \
                     status = 'PENDING', next_attempt_at = now(), updated_at = now() \
                 WHERE known.status = 'WAITING' AND known.event_id IS NULL";
            transaction.execute(sql, &[&order, &message.id, &message.event_type]).await?;
        }
        Ok(())
    }

    fn committed(&self) {
        self.intents.notify_one();
    }
}
