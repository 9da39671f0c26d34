//! Grants rights at Kafka's brokers, for which the client library of the tests has no call: one
//! CreateAcls request (version 1), as `kafka-acls.sh` sends it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

/// What a right is about (`ResourceType`).
#[derive(Debug, Clone, Copy)]
pub enum On {
    Topic = 2,
    Cluster = 4,
    TransactionalId = 5,
}

/// What it allows (`AclOperation`).
#[derive(Debug, Clone, Copy)]
pub enum May {
    Read = 3,
    Write = 4,
    Create = 5,
    Describe = 8,
    DescribeConfigs = 10,
}

const CREATE_ACLS: i16 = 30;
const LITERAL: u8 = 3;
const ALLOW: u8 = 3;

/// Allows `user` this on one resource, asking at a listener whose users may grant.
///
/// # Panics
/// When the brokers refuse.
pub fn grant(bootstrap: &str, user: &str, on: On, name: &str, rights: &[May]) {
    let mut body = Vec::new();
    body.extend(u32::try_from(rights.len()).unwrap().to_be_bytes());
    for right in rights {
        body.push(on as u8);
        text(&mut body, name);
        body.push(LITERAL);
        text(&mut body, &format!("User:{user}"));
        text(&mut body, "*");
        body.extend([*right as u8, ALLOW]);
    }
    let mut request = Vec::new();
    request.extend(CREATE_ACLS.to_be_bytes());
    request.extend(1_i16.to_be_bytes());
    request.extend(7_u32.to_be_bytes());
    text(&mut request, "tests");
    request.extend(body);
    let mut stream = TcpStream::connect(bootstrap).unwrap();
    stream.write_all(&u32::try_from(request.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut answer).unwrap();
    // Correlation id, throttle time, how many results; each an error code and a message or none (-1).
    let mut rest = &answer[12..];
    for right in rights {
        assert_eq!(rest[..2], [0, 0], "{right:?} on {name}: {answer:?}");
        let message = match rest[2..4] {
            [0xff, 0xff] => 0,
            [high, low] => usize::from(u16::from_be_bytes([high, low])),
            _ => unreachable!("two bytes"),
        };
        rest = &rest[4 + message..];
    }
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend(u16::try_from(text.len()).unwrap().to_be_bytes());
    to.extend(text.as_bytes());
}
