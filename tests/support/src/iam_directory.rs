//! An LDAP directory on a loopback port that lets in whoever's password is signed by AWS credentials, so that a real
//! Postgres has the passwords of `rds_iam` checked as RDS has them: in the clear, over TLS, by somebody else.
//!
//! Input: simple binds (RFC 4511). Output: success, or "invalid credentials". Invariant: the signature is computed here
//! from AWS's description ("Create a signed AWS API request"), with nothing of the product.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, sign};

/// Of the only credentials that it knows.
pub const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
/// Their secret half.
pub const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
/// Whose signatures it takes.
pub const REGION: &str = "eu-west-1";

/// LDAP's code for a wrong password.
const INVALID_CREDENTIALS: u8 = 49;

/// A running directory; it ends with the process.
#[derive(Debug)]
pub struct IamDirectory {
    port: u16,
    let_in: Arc<AtomicUsize>,
}

impl IamDirectory {
    /// Listens.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let let_in = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&let_in);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                // A server that hangs up is its own affair.
                std::thread::spawn(move || answer(stream, &counted));
            }
        });
        Self { port, let_in }
    }

    /// The method and its options in a line of `pg_hba.conf`.
    pub fn rule(&self) -> String {
        format!("ldap ldapserver=127.0.0.1 ldapport={} ldapprefix=\"cn=\"", self.port)
    }

    /// Logins that succeeded.
    pub fn let_in(&self) -> usize {
        self.let_in.load(Ordering::Relaxed)
    }
}

fn answer(mut stream: TcpStream, let_in: &AtomicUsize) -> Option<()> {
    let mut message = Element::read(&mut stream)?.1;
    let (_, id) = Element::take(&mut message)?;
    let (_, mut bind) = Element::take(&mut message)?;
    let (_, _version) = Element::take(&mut bind)?;
    let (_, name) = Element::take(&mut bind)?;
    let (_, password) = Element::take(&mut bind)?;
    let user = String::from_utf8(name).ok()?;
    let password = String::from_utf8(password).ok()?;
    let is_right = is_signed(&password, user.strip_prefix("cn=")?).unwrap_or(false);
    let_in.fetch_add(usize::from(is_right), Ordering::Relaxed);
    let code = if is_right { 0 } else { INVALID_CREDENTIALS };
    let result = [0x0a, 1, code, 0x04, 0, 0x04, 0];
    let response = [&[0x61, 7][..], &result].concat();
    let id = [&[0x02, u8::try_from(id.len()).ok()?][..], &id].concat();
    let length = u8::try_from(id.len() + response.len()).ok()?;
    stream.write_all(&[&[0x30, length][..], &id, &response].concat()).ok()?;
    // The server says that it goes, and goes.
    let _ = stream.read(&mut [0; 64]);
    Some(())
}

/// A tag and its content, in the basic encoding rules of ASN.1.
struct Element;

impl Element {
    fn read(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        stream.read_exact(&mut head).ok()?;
        let [tag, first] = head;
        let mut rest = vec![0; usize::from(if first < 0x80 { 0 } else { first & 0x7f })];
        stream.read_exact(&mut rest).ok()?;
        let mut content = vec![0; length(first, &rest)];
        stream.read_exact(&mut content).ok()?;
        Some((tag, content))
    }

    /// The first of those in a content.
    fn take(content: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
        let [tag, first, ..] = *content.as_slice() else { return None };
        let long = usize::from(if first < 0x80 { 0 } else { first & 0x7f });
        let begin = 2 + long;
        let end = begin + length(first, content.get(2..begin)?);
        let found = content.get(begin..end)?.to_vec();
        content.drain(..end);
        Some((tag, found))
    }
}

fn length(first: u8, rest: &[u8]) -> usize {
    if first < 0x80 {
        return usize::from(first);
    }
    rest.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
}

/// Whether the password is `HOST:PORT/?QUERY`, signed for this user.
fn is_signed(password: &str, user: &str) -> Option<bool> {
    let (host, query) = password.split_once("/?")?;
    let (query, signature) = query.split_once("&X-Amz-Signature=")?;
    let value =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let is_for_user = value("Action")? == "connect" && value("DBUser")? == user;
    let date = value("X-Amz-Date")?;
    let day = date.get(..8)?;
    let scope = format!("{day}/{REGION}/rds-db/aws4_request");
    let credential = format!("{ACCESS_KEY}/{scope}").replace('/', "%2F");
    let mut pairs: Vec<&str> = query.split('&').collect();
    pairs.sort_unstable();
    let nothing = hexadecimal(digest(&SHA256, b"").as_ref());
    let request = format!("GET\n/\n{}\nhost:{host}\n\nhost\n{nothing}", pairs.join("&"));
    let request = hexadecimal(digest(&SHA256, request.as_bytes()).as_ref());
    let signed = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{request}");
    let mut key = format!("AWS4{SECRET_KEY}").into_bytes();
    for part in [day, REGION, "rds-db", "aws4_request", &signed] {
        key = sign(&Key::new(HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
    }
    let is_right = hexadecimal(&key) == signature && value("X-Amz-Credential")? == credential;
    Some(is_right && is_for_user && value("X-Amz-Expires")? == "900")
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}
