//! An OpenTelemetry collector that keeps what it is sent: OTLP over HTTP, in protobuf.
//!
//! It reads the wire format itself, by the numbers of fields in `opentelemetry/proto/trace/v1/trace.proto`, and shares no
//! code with the exporter.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A span as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    pub trace_id: String,
    pub span_id: String,
    pub parent_span_id: String,
    pub name: String,
    pub kind: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Numbers as their digits.
    pub attributes: BTreeMap<String, String>,
    /// 2 is an error.
    pub status: u64,
    /// Of the resource.
    pub service: String,
}

#[derive(Default)]
struct Received {
    spans: Vec<Span>,
    /// Head and body of each request.
    requests: Vec<(String, Vec<u8>)>,
    refused: usize,
}

impl Received {
    fn keep(&mut self, head: String, body: Vec<u8>) {
        self.spans.extend(spans(&body));
        self.requests.push((head, body));
    }
}

/// A running collector; it ends with the process.
pub struct Collector {
    endpoint: String,
    received: Arc<Mutex<Received>>,
}

impl Collector {
    /// On a free port.
    pub fn start() -> Self {
        Self::serve("http://127.0.0.1", request)
    }

    /// The same behind TLS, with this certificate for `localhost` and its key (PEM).
    pub fn start_encrypted(certificate: &str, key: &str) -> Self {
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let config = Arc::new(config);
        Self::serve("https://localhost", move |stream, received| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            request(StreamOwned::new(connection, stream), received)
        })
    }

    fn serve(
        base: &str,
        answer: impl Fn(TcpStream, &Mutex<Received>) -> Option<()> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("{base}:{}", listener.local_addr().unwrap().port());
        let received = Arc::<Mutex<Received>>::default();
        let keep = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if answer(stream, &keep).is_none() {
                    keep.lock().unwrap().refused += 1;
                }
            }
        });
        Self { endpoint, received }
    }

    /// Its base, as settings name it.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Connections that brought no request.
    pub fn refused(&self) -> usize {
        self.received.lock().unwrap().refused
    }

    pub fn spans(&self) -> Vec<Span> {
        self.received.lock().unwrap().spans.clone()
    }

    pub fn requests(&self) -> Vec<(String, Vec<u8>)> {
        self.received.lock().unwrap().requests.clone()
    }
}

/// Keeps a request, and then says that all is well: who has the answer finds the spans.
fn request(mut stream: impl Read + Write, received: &Mutex<Received>) -> Option<()> {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
            let length: usize = length.parse().unwrap();
            if bytes.len() >= end + 4 + length {
                received.lock().unwrap().keep(head, bytes[end + 4..].to_vec());
                // A client that has gone needs no answer.
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.write_all(answer).and_then(|()| stream.flush());
                return Some(());
            }
        }
        match stream.read(&mut piece).ok()? {
            0 => return None,
            read => bytes.extend(&piece[..read]),
        }
    }
}

/// A field of a message: its number, and a number or bytes.
type Field<'a> = (u64, u64, &'a [u8]);

fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (number, content) = match tag & 7 {
            0 => (varint(&mut bytes), &[][..]),
            1 => {
                let (value, rest) = bytes.split_first_chunk::<8>().unwrap();
                bytes = rest;
                (u64::from_le_bytes(*value), &[][..])
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                (0, content)
            }
            5 => {
                let (value, rest) = bytes.split_first_chunk::<4>().unwrap();
                bytes = rest;
                (u32::from_le_bytes(*value).into(), &[][..])
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, number, content));
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a number without an end")
}

fn within<'a>(fields: &[Field<'a>], tag: u64) -> Vec<&'a [u8]> {
    fields.iter().filter(|field| field.0 == tag).map(|field| field.2).collect()
}

fn number(fields: &[Field<'_>], tag: u64) -> u64 {
    fields.iter().find(|field| field.0 == tag).map_or(0, |field| field.1)
}

fn text(fields: &[Field<'_>], tag: u64) -> String {
    let found = within(fields, tag).first().copied().unwrap_or_default();
    String::from_utf8(found.to_vec()).unwrap()
}

fn hex(fields: &[Field<'_>], tag: u64) -> String {
    let found = within(fields, tag).first().copied().unwrap_or_default();
    found.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn attributes(fields_of: &[Field<'_>], tag: u64) -> BTreeMap<String, String> {
    let pair = |bytes: &[u8]| {
        let pair = fields(bytes);
        let value = fields(within(&pair, 2)[0]);
        let text = if value[0].0 == 1 { text(&value, 1) } else { value[0].1.to_string() };
        (self::text(&pair, 1), text)
    };
    within(fields_of, tag).into_iter().map(pair).collect()
}

fn spans(body: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource_spans in within(&fields(body), 1) {
        let resource_spans = fields(resource_spans);
        let resource = fields(within(&resource_spans, 1)[0]);
        let service = attributes(&resource, 1)["service.name"].clone();
        for scope_spans in within(&resource_spans, 2) {
            for span in within(&fields(scope_spans), 2) {
                let span = fields(span);
                let status =
                    within(&span, 15).first().map_or(0, |status| number(&fields(status), 3));
                spans.push(Span {
                    trace_id: hex(&span, 1),
                    span_id: hex(&span, 2),
                    parent_span_id: hex(&span, 4),
                    name: text(&span, 5),
                    kind: number(&span, 6),
                    start_ns: number(&span, 7),
                    end_ns: number(&span, 8),
                    attributes: attributes(&span, 9),
                    status,
                    service: service.clone(),
                });
            }
        }
    }
    spans
}
