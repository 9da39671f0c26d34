//! An OIDC provider on a loopback port: a token endpoint for client credentials, and the keys that brokers check its
//! tokens by.
//!
//! Invariant: it issues tokens to one client with one secret, each good for the lifetime that it was started with.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;

use super::kafka::ALLOWED_USER;
use super::wait::let_pass;

/// The client that gets tokens.
pub const CLIENT: &str = "relay:1";
/// Its secret; it has what must be encoded.
pub const SECRET: &str = "canary + secret/%";
/// What the brokers check of a token.
pub const AUDIENCE: &str = "kafka";

/// What a slow endpoint takes: longer than any answer of the relay's to librdkafka may.
const SLOW: Duration = Duration::from_secs(2);

/// How the token endpoint behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    /// It issues tokens.
    Well,
    /// It issues tokens after some seconds.
    Slow,
    /// It answers with HTTP status 503.
    Away,
    /// It accepts connections and never answers.
    Silent,
    /// It issues tokens that have expired.
    Lying,
}

/// A running provider; it ends with the process.
#[derive(Debug)]
pub struct TokenProvider {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    key: Mutex<EcdsaKeyPair>,
    lifetime: Duration,
    mood: Mutex<Mood>,
    issued: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("mood", &self.mood).finish_non_exhaustive()
    }
}

impl TokenProvider {
    /// Listens.
    pub fn start(lifetime: Duration) -> Self {
        let key = Mutex::new(new_key());
        let mood = Mutex::new(Mood::Well);
        let shared = Arc::new(Shared { key, lifetime, mood, issued: AtomicUsize::new(0) });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&serving);
                // A client that hangs up is its own affair.
                std::thread::spawn(move || shared.answer(stream));
            }
        });
        Self { port, shared }
    }

    /// Where clients ask for tokens.
    pub fn token_endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/token", self.port)
    }

    /// Where brokers ask for keys.
    pub fn keys_endpoint(&self) -> String {
        format!("http://127.0.0.1:{}/keys", self.port)
    }

    /// Behaves otherwise from now on.
    pub fn set(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap() = mood;
    }

    /// Signs with another key from now on: brokers that fetch the keys again refuse every token so far.
    pub fn change_key(&self) {
        *self.shared.key.lock().unwrap() = new_key();
    }

    /// Tokens so far.
    pub fn issued(&self) -> usize {
        self.shared.issued.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let request = read_request(&mut stream)?;
        if request.starts_with("GET /keys ") {
            return respond(&mut stream, "200 OK", &self.keys());
        }
        let mood = *self.mood.lock().unwrap();
        let is_client = request.lines().any(|line| {
            let header = line
                .split_once(": ")
                .filter(|(name, _)| name.eq_ignore_ascii_case("authorization"));
            header.is_some_and(|(_, value)| value == authorization())
        });
        match mood {
            Mood::Silent => loop {
                let_pass(Duration::from_secs(1), "the client gives up first");
                stream.peek(&mut [0]).ok().filter(|read| *read > 0)?;
            },
            Mood::Away => respond(&mut stream, "503 Service Unavailable", "{}"),
            _ if !is_client => {
                respond(&mut stream, "401 Unauthorized", r#"{"error":"invalid_client"}"#)
            }
            Mood::Lying => respond(&mut stream, "200 OK", &self.issue(true)),
            Mood::Slow | Mood::Well => {
                if mood == Mood::Slow {
                    let_pass(SLOW, "an endpoint that takes its time");
                }
                self.issued.fetch_add(1, Ordering::Relaxed);
                respond(&mut stream, "200 OK", &self.issue(false))
            }
        }
    }

    fn issue(&self, is_expired: bool) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let lifetime = self.lifetime.as_secs();
        let (issued, expires) =
            if is_expired { (now - 60, now - 30) } else { (now, now + lifetime) };
        let header = json!({"alg": "ES256", "kid": "1", "typ": "JWT"}).to_string();
        let claims = json!({
            "iss": "https://provider.example", "aud": AUDIENCE, "sub": ALLOWED_USER,
            "iat": issued, "exp": expires, "scope": "write",
        });
        let signed =
            [header, claims.to_string()].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
        let signature =
            self.key.lock().unwrap().sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        json!({"access_token": token, "token_type": "Bearer", "expires_in": lifetime}).to_string()
    }

    /// RFC 7517.
    fn keys(&self) -> String {
        // An uncompressed point: 4, x, y.
        let key = self.key.lock().unwrap();
        let point = key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
        let key = json!({
            "kty": "EC", "crv": "P-256", "kid": "1", "use": "sig", "alg": "ES256", "x": x, "y": y,
        });
        json!({"keys": [key]}).to_string()
    }
}

fn new_key() -> EcdsaKeyPair {
    let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap()
}

/// RFC 6749, section 2.3.1.
fn authorization() -> String {
    let user = "relay%3A1:canary%20%2B%20secret%2F%25";
    format!("Basic {}", STANDARD.encode(user))
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&request).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse::<usize>().ok())?
        });
        if body.len() >= length.unwrap_or(0) {
            return Some(text);
        }
    }
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()
}
