//! Tests of logging in, querying and starting to stream, against a scripted server.

use super::super::script::{Script, keepalive, message, report};
use super::*;

fn info(extra: &str) -> ConnectInfo {
    let text = format!("host=db user=alice dbname=shop password=hunter22 {extra}");
    ConnectInfo::resolve(&text, &|_| None).unwrap().0
}

fn log_in(wire: Vec<u8>, piece: usize, extra: &str) -> Result<Connection<Script>, WalError> {
    let info = info(extra);
    let deadline = Instant::now().checked_add(Duration::from_secs(5));
    let access = Access { info: &info, endpoint: &info.endpoints[0], binding: None, deadline };
    Connection::log_in(Script::closing(wire, piece), access, &SessionParams::default())
}

fn authentication(code: u32, body: &[u8]) -> Vec<u8> {
    message(b'R', &[&code.to_be_bytes(), body].concat())
}

fn ready() -> Vec<u8> {
    [
        authentication(0, b""),
        message(b'S', b"server_version\x0015.18\0"),
        message(b'K', &[0, 0, 0, 9, 1, 2, 3, 4]),
        message(b'Z', b"I"),
    ]
    .concat()
}

#[test]
fn a_trusted_role_gets_in_whatever_the_split() {
    for piece in [1, 3, 1000] {
        let connection = log_in(ready(), piece, "").unwrap();
        assert_eq!(connection.backend_pid(), 9);
        assert_eq!(connection.parameter("server_version"), Some("15.18"));
        let written = String::from_utf8_lossy(&connection.session.transport.written).into_owned();
        for part in ["user\0alice\0", "replication\0database\0", "client_encoding\0UTF8\0"] {
            assert!(written.contains(part), "{part}");
        }
        for (name, _) in CANONICAL {
            assert!(!written.contains(name), "a pooler refuses a login with {name}");
        }
        assert!(!written.contains("hunter22"));
    }
}

#[test]
fn passwords_are_answered_in_clear_and_as_md5() {
    let wire = [authentication(3, b""), ready()].concat();
    let written = log_in(wire, 5, "").unwrap().session.transport.written;
    assert!(String::from_utf8_lossy(&written).contains("hunter22\0"));
    let wire = [authentication(5, &[1, 2, 3, 4]), ready()].concat();
    let written = log_in(wire, 5, "").unwrap().session.transport.written;
    let expected = md5_of("alice", "hunter22", [1, 2, 3, 4]);
    assert!(String::from_utf8_lossy(&written).contains(&expected));
}

fn md5_of(user: &str, password: &str, salt: [u8; 4]) -> String {
    postgres_protocol::authentication::md5_hash(user.as_bytes(), password.as_bytes(), salt)
}

#[test]
fn a_required_binding_is_not_given_up() {
    let sasl = authentication(10, b"SCRAM-SHA-256\0\0");
    for wire in [ready(), [authentication(3, b""), ready()].concat(), sasl] {
        let error = log_in(wire, 9, "channel_binding=require").unwrap_err();
        assert!(matches!(error, WalError::Authentication { .. }), "{error:?}");
        assert!(error.to_string().contains("channel_binding"), "{error}");
    }
}

#[test]
fn a_server_that_skips_its_proof_is_refused() {
    let wire = [authentication(10, b"SCRAM-SHA-256\0\0"), ready()].concat();
    assert!(log_in(wire, 9, "").is_err());
    let error = log_in(authentication(7, b""), 9, "").unwrap_err();
    assert!(matches!(error, WalError::Authentication { .. }), "{error:?}");
}

#[test]
fn a_wrong_password_is_named_as_such_and_not_repeated() {
    let wire = report(b'E', "FATAL", "28P01", "password authentication failed for user \"alice\"");
    let error = log_in(wire, 4, "").unwrap_err();
    assert_eq!(error.class(), super::super::Class::Permission);
    assert!(error.hint().unwrap().contains("password"));
    assert!(!format!("{error} {error:?}").contains("hunter22"));
}

#[test]
fn g7_a_huge_message_before_login_is_refused() {
    let wire = vec![b'R', 0x10, 0, 0, 0, 0, 0, 0, 0];
    assert!(matches!(log_in(wire, 4, ""), Err(WalError::MessageTooLarge { .. })));
}

fn connected(after: Vec<u8>) -> Connection<Script> {
    log_in([ready(), after].concat(), 11, "").unwrap()
}

#[test]
fn queries_return_text() {
    let row = [&[0, 2][..], &3_u32.to_be_bytes(), b"abc", &u32::MAX.to_be_bytes()].concat();
    let answer = [
        message(b'T', b"\0\0"),
        message(b'D', &row),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
        report(b'E', "ERROR", "42601", "syntax error"),
        message(b'Z', b"I"),
    ]
    .concat();
    let mut connection = connected(answer);
    assert_eq!(connection.simple_query("x").unwrap(), [[Some("abc".to_owned()), None]]);
    assert!(matches!(connection.simple_query("y"), Err(WalError::Server(_))));
    assert!(matches!(connection.simple_query("z"), Err(WalError::Closed)));
}

#[test]
fn a_timeline_is_asked_for_its_ancestors() {
    let content = b"1\t0/5000158\tno recovery target specified\n";
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let row = [&[0, 2][..], &1_u32.to_be_bytes(), b"f", &length, content].concat();
    let answer = [
        message(b'T', b"\0\0"),
        message(b'D', &row),
        message(b'C', b"TIMELINE_HISTORY\0"),
        message(b'Z', b"I"),
        report(b'E', "ERROR", "58P01", "could not open file \"pg_wal/00000003.history\""),
        message(b'Z', b"I"),
    ]
    .concat();
    let mut connection = connected(answer);
    assert_eq!(connection.timeline_history(1).unwrap(), [], "the first has none");
    assert_eq!(connection.timeline_history(2).unwrap(), [(1, Lsn::new(0x0500_0158))]);
    assert_eq!(connection.timeline_history(3).unwrap(), [], "the server has lost it");
    assert!(connection.timeline_history(4).is_err());
}

#[test]
fn a_held_slot_gives_the_connection_back_for_another_attempt() {
    let answer = [
        report(b'E', "ERROR", "55006", "replication slot \"s\" is active for PID 7"),
        message(b'Z', b"I"),
        message(b'W', &[0, 0, 0]),
        keepalive(0x10, false),
    ]
    .concat();
    let refused = connected(answer).start("s", "p", Lsn::ZERO).unwrap_err();
    assert_eq!(refused.error.class(), super::super::Class::Held);
    let mut stream = refused.connection.unwrap().start("s", "p", Lsn::ZERO).unwrap();
    while stream.peek().unwrap().is_none() {
        stream.fill(Duration::ZERO).unwrap();
    }
    assert_eq!(stream.received(), Lsn::new(0x10));
    let fatal = report(b'E', "FATAL", "57P01", "terminating");
    let refused = connected(fatal).start("s", "p", Lsn::ZERO).unwrap_err();
    assert!(refused.connection.is_none() && refused.error.class().is_transient());
}
