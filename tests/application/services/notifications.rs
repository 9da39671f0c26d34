//! `shop notifications` mails the end of each order through a real SMTP session, at least once.

use uuid::Uuid;

use crate::services::dead_letters::produce_as;
use crate::services::stage::{Service, Stage};
use support::smtp::{Fault, SmtpServer};
use support::wait::wait_until;

fn start(stage: &Stage, server: &SmtpServer) -> Service {
    let mail = ["--smtp-url", &server.url(), "--mail-from", "shop@example.com"];
    stage.start(&[&["notifications"], &mail[..]].concat())
}

/// An order's id, and the id of its end.
struct Ended {
    order: String,
    event: Uuid,
}

/// Produces the events of an order that has ended, the end first or last.
fn end(stage: &Stage, customer: &str, event_type: &str, is_last: bool) -> Ended {
    let (order, event) = (Uuid::now_v7().to_string(), Uuid::now_v7());
    let created = format!(r#"{{"customer":"{customer}","sku":"tea"}}"#);
    let mut events =
        [("OrderCreated", created.as_str(), Uuid::now_v7()), (event_type, "{}", event)];
    if !is_last {
        events.reverse();
    }
    for (event_type, payload, id) in events {
        produce_as(&stage.bootstrap(), event_type, &order, (payload, id));
    }
    Ended { order, event }
}

fn is(stage: &Stage, ended: &Ended, what: &str) -> bool {
    let order = &ended.order;
    let sql = format!("SELECT count(*) FROM notifications WHERE order_id = '{order}' AND {what}");
    stage.count(&sql) == 1
}

#[test]
fn the_end_of_an_order_is_mailed_once_and_a_refused_recipient_is_a_result() {
    let (stage, server) = (Stage::set(), SmtpServer::start());
    let service = start(&stage, &server);
    let ada = end(&stage, "ada@example.org", "OrderConfirmed", true);
    let bob = end(&stage, "bob@example.org", "OrderCancelled", false);
    let gone = end(&stage, "gone@example.org", "OrderConfirmed", true);
    let name = end(&stage, "ada", "OrderConfirmed", true);
    wait_until("mails", || {
        is(&stage, &ada, "status = 'SENT'") && is(&stage, &bob, "status = 'SENT'")
    });
    wait_until("a refusal", || is(&stage, &gone, "status = 'REFUSED' AND reply_code = 550"));
    wait_until("a name", || is(&stage, &name, "status = 'UNADDRESSED'"));
    // Delivered again: the marker is there.
    for ended in [&ada, &bob] {
        let again = ("{}", ended.event);
        produce_as(&stage.bootstrap(), "OrderConfirmed", &ended.order, again);
    }
    service.wait_for(&[
        "\nshop_messages_repeated_total 2\n",
        "\nshop_mails_sent_total 2\n",
        "\nshop_mails_refused_total 2\n",
        "\nshop_mails_open 0\n",
    ]);
    let mut mails = server.mails();
    mails.sort_by(|one, other| one.to.cmp(&other.to));
    let expected = [
        ("ada@example.org", &ada, "Your order is confirmed"),
        ("bob@example.org", &bob, "Your order was cancelled"),
    ];
    assert_eq!(mails.len(), 2, "{mails:?}");
    for (mail, (to, ended, subject)) in mails.iter().zip(expected) {
        let id = format!("<{}@example.com>", ended.event);
        assert_eq!((mail.to.as_str(), mail.header("Subject")), (to, Some(subject)));
        assert_eq!(mail.header("Message-ID"), Some(id.as_str()));
        assert!(mail.text.contains(&ended.order), "{}", mail.text);
    }
    let log = service.stop().join("\n");
    assert!(!log.contains("example.org"), "no address in the log: {log}");
}

#[test]
fn a_mail_whose_reply_was_lost_is_sent_again_with_the_same_id() {
    let (stage, server) = (Stage::set(), SmtpServer::start());
    server.fail(Fault::LostReply);
    let service = start(&stage, &server);
    let ada = end(&stage, "ada@example.org", "OrderConfirmed", true);
    wait_until("the first", || !server.mails().is_empty());
    server.fail(Fault::None);
    wait_until("the result", || is(&stage, &ada, "status = 'SENT'"));
    let mails = server.mails();
    assert!(mails.len() > 1, "{mails:?}");
    assert!(mails.iter().all(|mail| *mail == mails[0]), "the same bytes: {mails:?}");
    service.stop();
}

#[test]
fn an_smtp_server_that_is_away_or_takes_nothing_is_asked_again() {
    let (stage, server) = (Stage::set(), SmtpServer::start());
    let service = start(&stage, &server);
    // Refused for good, and yet not for the recipient's sake.
    for fault in [Fault::NoService, Fault::Full] {
        server.fail(fault);
        let before = server.sessions();
        let ada = end(&stage, "ada@example.org", "OrderConfirmed", true);
        wait_until("two attempts", || server.sessions() >= before + 2);
        assert!(is(&stage, &ada, "status = 'PENDING'"), "{fault:?}");
        server.fail(Fault::None);
        stage.run("UPDATE notifications SET next_attempt_at = now() WHERE status = 'PENDING'");
        wait_until("the mail", || is(&stage, &ada, "status = 'SENT' AND attempts > 1"));
    }
    assert_eq!(server.mails().len(), 2);
    assert!(service.metric("shop_mail_failures_total") >= 2);
    service.stop();
}

#[test]
fn settings_for_mails_are_checked_before_anything_is_done() {
    let stage = Stage::set();
    for (url, from, help) in [
        ("ftp://user:hush@host", "shop@example.com", "help: set --smtp-url"),
        ("smtp://host", "shop", "help: set --mail-from"),
    ] {
        let args = ["notifications", "--bind", "127.0.0.1:0", "--brokers", "127.0.0.1:1"];
        let mail = ["--smtp-url", url, "--mail-from", from];
        let (code, _, stderr) = stage.command(&[&args[..], &mail].concat());
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(help) && !stderr.contains("hush"), "{stderr}");
    }
}
