//! Sends the mails that are due (`send_due`), and counts mails without a result (`count`).
//!
//! Invariant: no transaction is open while a mail is sent. If the process of a mail dies, the mail
//! is due again after its lease, so it is sent at least once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::warn;

use super::mail::{MailOutcome, Mailer, OrderEnd};
use crate::ShopError;
use crate::probes::Metric;
use postrider_service::log_throttle::LogThrottle;

const BATCH: i64 = 8;
/// Longer than the commands of a mail may take.
const LEASE_S: f64 = 60.0;
const SEND_LIMIT: Duration = Duration::from_secs(40);
/// Doubled up to [`BACKOFF_MAX_S`].
const BACKOFF_S: f64 = 1.0;
const BACKOFF_MAX_S: f64 = 300.0;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct MailCounts {
    sent: AtomicU64,
    refused: AtomicU64,
    failures: AtomicU64,
}

impl MailCounts {
    /// The metric of `open` mails is absent without the database.
    pub(super) fn metrics(&self, open: Option<u64>) -> Vec<Metric> {
        let now = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let mut metrics = vec![
            ("shop_mails_sent_total", "mails that the server took", now(&self.sent)),
            (
                "shop_mails_refused_total",
                "mails that the server refused for good, or without an address",
                now(&self.refused),
            ),
            ("shop_mail_failures_total", "attempts that are repeated", now(&self.failures)),
        ];
        metrics.extend(open.map(|open| ("shop_mails_open", "mails without a result", open)));
        metrics
    }
}

/// `None` while the database is unavailable.
pub(super) async fn count(pool: Pool, counting: watch::Sender<Option<u64>>) {
    loop {
        counting.send_replace(count_open(&pool).await.ok());
        tokio::time::sleep(COUNT_INTERVAL).await;
    }
}

async fn count_open(pool: &Pool) -> Result<u64, ShopError> {
    let sql = "SELECT count(*) FROM notifications WHERE status = 'PENDING'";
    let count: i64 = pool.get().await?.query_one(sql, &[]).await?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

#[derive(Debug)]
struct DueMail {
    end: OrderEnd,
    attempt: i32,
}

pub(super) async fn send_due(
    pool: Pool,
    mailer: Mailer,
    intents: Arc<Notify>,
    counts: Arc<MailCounts>,
) {
    let mut throttle = LogThrottle::default();
    loop {
        match round(&pool, &mailer, &counts, &mut throttle).await {
            Ok(0) => {
                let _ = tokio::time::timeout(POLL_INTERVAL, intents.notified()).await;
            }
            Ok(_) => {}
            Err(error) => {
                let (text, help) = (error.with_causes(), error.hint());
                if throttle.is_due(&text) {
                    warn!(error = text, help, "cannot send mails; retrying");
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
    }
}

async fn round(
    pool: &Pool,
    mailer: &Mailer,
    counts: &MailCounts,
    throttle: &mut LogThrottle,
) -> Result<usize, ShopError> {
    let due = lease(pool).await?;
    let count = due.len();
    let mut mails = JoinSet::new();
    for mail in due {
        let mailer = mailer.clone();
        mails.spawn(async move {
            let sent = tokio::time::timeout(SEND_LIMIT, mailer.send(&mail.end)).await;
            (mail, sent.ok())
        });
    }
    while let Some(finished) = mails.join_next().await {
        match finished {
            Ok((mail, outcome)) => {
                if let Some(MailOutcome::Failed(error)) = &outcome {
                    // A reply may quote the address, so only its code is used.
                    let text = failure_text(error);
                    if throttle.is_due(&text) {
                        warn!(error = text, "cannot send a mail; retrying");
                    }
                }
                record(pool, &mail, outcome.as_ref(), counts).await?;
            }
            Err(error) => warn!(%error, "a mail task failed; it is retried after its lease"),
        }
    }
    Ok(count)
}

fn failure_text(error: &lettre::transport::smtp::Error) -> String {
    match error.status() {
        Some(code) => format!("the SMTP server replied {code}"),
        None if error.is_timeout() => "the SMTP server does not answer in time".to_owned(),
        None if error.is_tls() => "the TLS handshake with the SMTP server failed".to_owned(),
        None => "the SMTP server cannot be reached, or the connection broke".to_owned(),
    }
}

async fn lease(pool: &Pool) -> Result<Vec<DueMail>, ShopError> {
    let sql = "UPDATE notifications SET attempts = attempts + 1, \
             next_attempt_at = statement_timestamp() + $2 * interval '1 second' \
         WHERE order_id = ANY (ARRAY(SELECT order_id FROM notifications \
             WHERE status = 'PENDING' AND next_attempt_at <= statement_timestamp() \
             ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)) \
         RETURNING order_id, event_id, event_type, customer, attempts, \
             to_char(updated_at AT TIME ZONE 'UTC', 'Dy, DD Mon YYYY HH24:MI:SS') || ' +0000'";
    let rows = pool.get().await?.query(sql, &[&BATCH, &LEASE_S]).await?;
    let due = rows.iter().map(|row| {
        let end = OrderEnd {
            order: row.try_get(0)?,
            event: row.try_get(1)?,
            event_type: row.try_get(2)?,
            customer: row.try_get(3)?,
            date: row.try_get(5)?,
        };
        Ok(DueMail { end, attempt: row.try_get(4)? })
    });
    due.collect()
}

/// `None`: the mail took too long.
async fn record(
    pool: &Pool,
    mail: &DueMail,
    outcome: Option<&MailOutcome>,
    counts: &MailCounts,
) -> Result<(), ShopError> {
    let (status, reply_code, counter) = match outcome {
        Some(MailOutcome::Sent) => ("SENT", None, &counts.sent),
        Some(MailOutcome::Refused(code)) => ("REFUSED", Some(*code), &counts.refused),
        Some(MailOutcome::Unaddressed) => ("UNADDRESSED", None, &counts.refused),
        Some(MailOutcome::Failed(_)) | None => {
            counts.failures.fetch_add(1, Ordering::Relaxed);
            let doublings = mail.attempt.clamp(1, 16) - 1;
            let pause = (BACKOFF_S * 2_f64.powi(doublings)).min(BACKOFF_MAX_S);
            // Another process may have leased the mail since.
            let sql = "UPDATE notifications \
                 SET next_attempt_at = clock_timestamp() + $2 * interval '1 second' \
                 WHERE order_id = $1 AND attempts = $3 AND status = 'PENDING'";
            pool.get().await?.execute(sql, &[&mail.end.order, &pause, &mail.attempt]).await?;
            return Ok(());
        }
    };
    let sql = "UPDATE notifications SET status = $2, reply_code = $3, updated_at = now() \
               WHERE order_id = $1 AND status = 'PENDING'";
    pool.get().await?.execute(sql, &[&mail.end.order, &status, &reply_code]).await?;
    counter.fetch_add(1, Ordering::Relaxed);
    Ok(())
}
