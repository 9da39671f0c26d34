//! The notification service: mails a customer when an order is confirmed or cancelled. Each order's
//! end is mailed at least once, and a repeated mail has one Message-ID. A refused recipient is not
//! retried.

mod effects;
mod mail;
mod sending;

use std::future::Future;
use std::sync::Arc;

use clap::Args;
use tokio::sync::{Notify, watch};

use super::error::ShopError;
use super::probes::Probes;
use super::service;
use super::settings::{ServiceListener, ServiceSettings, pool};
use effects::{NotificationEffects, TOPICS};
use mail::Mailer;
use postrider_patterns::inbox::Consumer;
use sending::{MailCounts, send_due};

/// Consumer group, owner of the markers, and prefix of the dead-letter topic.
pub const NAME: &str = "shop-notifications";

/// Where mails go, and from whom they are.
#[derive(Clone, Args)]
pub struct MailSettings {
    /// The SMTP server: smtp://host:25, smtp://user:password@host:587?tls=required, or smtps://..
    #[arg(long, env = "SMTP_URL", hide_env_values = true, value_name = "URL")]
    smtp_url: String,
    /// The address that mails are from
    #[arg(long, env = "MAIL_FROM", value_name = "ADDRESS")]
    mail_from: String,
}

impl std::fmt::Debug for MailSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may contain a password.
        f.debug_struct("MailSettings").field("mail_from", &self.mail_from).finish_non_exhaustive()
    }
}

pub async fn run(
    settings: &ServiceSettings,
    mail: &MailSettings,
    endpoint: ServiceListener<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let mailer = Mailer::new(&mail.smtp_url, &mail.mail_from)?;
    let database = settings.database()?;
    let pool = pool(&database)?;
    let intents = Arc::new(Notify::new());
    let effects = NotificationEffects { intents: Arc::clone(&intents) };
    let consumer = Consumer::new(settings.consumer(NAME, &TOPICS, &database)?, effects)?;
    let (counting, open) = watch::channel(None);
    let counts = Arc::new(MailCounts::default());
    let counted = Arc::clone(&counts);
    let probes = Probes::new(pool.clone(), move || counted.metrics(*open.borrow()))
        .with_required_consumer(consumer.counters());
    let sending = send_due(pool.clone(), mailer, intents, counts);
    let background = Box::pin(async move {
        tokio::select! {
            error = settings.login_refused() => error,
            ((), ()) = async { tokio::join!(sending, sending::count(pool, counting)) } => {
                std::future::pending().await
            }
        }
    });
    service::run(consumer, database.tls, probes.router(), background, endpoint).await
}
