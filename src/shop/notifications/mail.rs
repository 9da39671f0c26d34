//! The text of a mail, and its delivery by SMTP.
//!
//! Invariant: all mails about one event are identical, with a Message-ID from the event's id, so
//! that repeats are recognised. The text is ASCII and quotes no text of a customer.

use std::time::Duration;

use lettre::address::{Address, Envelope};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};
use uuid::Uuid;

use crate::ShopError;

const COMMAND_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct OrderEnd {
    pub(super) order: Uuid,
    pub(super) event: Uuid,
    /// OrderConfirmed or OrderCancelled.
    pub(super) event_type: String,
    /// May or may not be a mail address.
    pub(super) customer: String,
    /// Format of RFC 5322.
    pub(super) date: String,
}

#[derive(Debug)]
pub(super) enum MailOutcome {
    Sent,
    /// Refused permanently, with this reply code.
    Refused(i16),
    Unaddressed,
    /// Unreachable or failing: try again later.
    Failed(lettre::transport::smtp::Error),
}

#[derive(Clone)]
pub(super) struct Mailer {
    server: AsyncSmtpTransport<Tokio1Executor>,
    from: Address,
}

impl Mailer {
    pub(super) fn new(url: &str, from: &str) -> Result<Self, ShopError> {
        let server = AsyncSmtpTransport::<Tokio1Executor>::from_url(url);
        let server = server.map_err(ShopError::SmtpUrl)?.timeout(Some(COMMAND_LIMIT)).build();
        let from = from.parse().map_err(ShopError::MailFrom)?;
        Ok(Self { server, from })
    }

    /// A repeat is identical.
    pub(super) async fn send(&self, end: &OrderEnd) -> MailOutcome {
        // Not every server accepts non-ASCII addresses.
        let to = end.customer.parse::<Address>().ok().filter(|_| end.customer.is_ascii());
        let Some(to) = to else { return MailOutcome::Unaddressed };
        let text = text(&self.from, &to, end);
        let Ok(envelope) = Envelope::new(Some(self.from.clone()), vec![to]) else {
            return MailOutcome::Unaddressed;
        };
        let Err(error) = self.server.send_raw(&envelope, text.as_bytes()).await else {
            return MailOutcome::Sent;
        };
        let code = error.status().filter(|_| error.is_permanent());
        let Some(code) = code.and_then(|code| code.to_string().parse().ok()) else {
            return MailOutcome::Failed(error);
        };
        // The server may have refused the greeting or the login instead of the recipient.
        match self.server.test_connection().await {
            Ok(true) => MailOutcome::Refused(code),
            Ok(false) => MailOutcome::Failed(error),
            Err(unable) => MailOutcome::Failed(unable),
        }
    }
}

fn text(from: &Address, to: &Address, end: &OrderEnd) -> String {
    let OrderEnd { order, event, event_type, date, .. } = end;
    let what = if event_type == "OrderConfirmed" { "is confirmed" } else { "was cancelled" };
    format!(
        "From: {from}\r\nTo: {to}\r\nSubject: Your order {what}\r\nDate: {date}\r\n\
         Message-ID: <{event}@{domain}>\r\nMIME-Version: 1.0\r\n\
         Content-Type: text/plain; charset=us-ascii\r\n\r\nYour order {order} {what}.\r\n",
        domain = from.domain(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_mail_is_the_same_bytes() {
        let end = OrderEnd {
            order: Uuid::nil(),
            event: Uuid::max(),
            event_type: "OrderConfirmed".to_owned(),
            customer: "ada@example.org".to_owned(),
            date: "Wed, 25 Nov 2026 11:00:00 +0000".to_owned(),
        };
        let address = |text: &str| text.parse::<Address>().unwrap();
        let (from, to) = (address("shop@example.com"), address("ada@example.org"));
        let mail = text(&from, &to, &end);
        assert_eq!(mail, text(&from, &to, &end));
        let id = "\r\nMessage-ID: <ffffffff-ffff-ffff-ffff-ffffffffffff@example.com>\r\n";
        assert!(mail.contains(id) && mail.is_ascii(), "{mail}");
        assert!(mail.lines().all(|line| line.len() < 78), "{mail}");
    }
}
