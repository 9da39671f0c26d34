//! Enforces `require_auth` on SQL sessions, because tokio-postgres does not report the server's
//! method. Invariant: tokio-postgres never sees a forbidden request, so it does not answer it.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use crate::libpq::{AuthMethod, RequireAuth};

/// Tag and length.
const HEAD: usize = 5;

/// Tag, length and kind.
const REQUEST: usize = HEAD + 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server {0}, which require_auth does not permit")]
struct Unwanted(AuthMethod);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// The server's one-byte answer to the TLS request.
    TlsAnswer,
    Messages,
    Nothing,
}

#[derive(Debug)]
struct Login {
    require: RequireAuth,
    expected: Expected,
    head: Vec<u8>,
    rest: usize,
    /// True once the server has requested a secret or a certificate.
    has_asked: bool,
}

impl Login {
    fn new(require: &RequireAuth, expected: Expected) -> Self {
        let expected = if require.is_any() { Expected::Nothing } else { expected };
        let (require, head) = (require.clone(), Vec::with_capacity(REQUEST));
        Self { require, expected, head, rest: 0, has_asked: false }
    }

    fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            match self.expected {
                Expected::Nothing => break,
                Expected::TlsAnswer if *byte == b'S' => self.expected = Expected::Nothing,
                Expected::TlsAnswer => self.expected = Expected::Messages,
                Expected::Messages if self.rest > 0 => self.rest -= 1,
                Expected::Messages => self.read_head(*byte)?,
            }
        }
        Ok(())
    }

    fn read_head(&mut self, byte: u8) -> io::Result<()> {
        self.head.push(byte);
        let &[tag, a, b, c, d, ref kind @ ..] = self.head.as_slice() else { return Ok(()) };
        let wanted = if tag == b'R' { REQUEST } else { HEAD };
        if self.head.len() < wanted {
            return Ok(());
        }
        // The length includes itself, but not the tag.
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let Some(rest) = length.checked_sub(wanted - 1) else {
            return Err(io::Error::new(ErrorKind::InvalidData, "a message with a wrong length"));
        };
        if let &[a, b, c, d] = kind
            && let Some(method) = AuthMethod::of_request(u32::from_be_bytes([a, b, c, d]))
        {
            self.judge(method)?;
        }
        self.rest = rest;
        self.head.clear();
        Ok(())
    }

    fn judge(&mut self, method: AuthMethod) -> io::Result<()> {
        let is_answered = method == AuthMethod::None && self.has_asked;
        if !is_answered && !self.require.permits(method) {
            return Err(io::Error::new(ErrorKind::PermissionDenied, Unwanted(method)));
        }
        if method == AuthMethod::None {
            self.expected = Expected::Nothing;
        }
        self.has_asked = true;
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct AuthCheckedStream<S> {
    stream: S,
    login: Login,
}

impl<S> AuthCheckedStream<S> {
    pub(super) fn plain(stream: S, require: &RequireAuth) -> Self {
        Self { stream, login: Login::new(require, Expected::Messages) }
    }

    /// Continues unencrypted without TLS. [`AuthCheckedTls`] checks the encrypted stream.
    pub(super) fn asking_for_tls(stream: S, require: &RequireAuth) -> Self {
        Self { stream, login: Login::new(require, Expected::TlsAnswer) }
    }

    pub(super) fn opaque(stream: S, require: &RequireAuth) -> Self {
        Self { stream, login: Login::new(require, Expected::Nothing) }
    }
}

#[derive(Debug)]
pub(super) struct AuthCheckedTls<C> {
    pub(super) connector: C,
    pub(super) require: RequireAuth,
}

impl<S, C> TlsConnect<S> for AuthCheckedTls<C>
where
    C: TlsConnect<S>,
    C::Future: Send + 'static,
{
    type Stream = AuthCheckedStream<C::Stream>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, Self::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let handshake = self.connector.connect(stream);
        Box::pin(async move { Ok(AuthCheckedStream::plain(handshake.await?, &self.require)) })
    }
}

impl<S: TlsStream + Unpin> TlsStream for AuthCheckedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.stream.channel_binding()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthCheckedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        if let Poll::Ready(Ok(())) = read
            && let Some(new) = into.filled().get(before..)
            && let Err(unwanted) = self.login.read(new)
        {
            into.set_filled(before);
            return Poll::Ready(Err(unwanted));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthCheckedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Forbidden method that caused the error.
pub(super) fn unwanted(error: &(dyn std::error::Error + 'static)) -> Option<AuthMethod> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let found = inner.and_then(|inner| inner.downcast_ref::<Unwanted>()).map(|Unwanted(it)| *it);
    found.or_else(|| error.source().and_then(unwanted))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::libpq::ConnectInfo;

    fn request(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(8 + body.len()).unwrap().to_be_bytes();
        [&b"R"[..], &length, &kind.to_be_bytes(), body].concat()
    }

    fn require(typed: &str) -> RequireAuth {
        let text = format!("user=u require_auth={typed}");
        ConnectInfo::resolve(&text, &|_| None).unwrap().0.require_auth
    }

    async fn heard(
        watched: impl Fn(tokio::io::DuplexStream) -> AuthCheckedStream<tokio::io::DuplexStream>,
        said: &[u8],
        step: usize,
    ) -> (Vec<u8>, Option<AuthMethod>) {
        let (near, mut far) = tokio::io::duplex(step);
        let (mut watched, said) = (watched(near), said.to_vec());
        let server = tokio::spawn(async move {
            // The reader may have closed.
            let _ = far.write_all(&said).await;
        });
        let mut heard = Vec::new();
        let ended = watched.read_to_end(&mut heard).await;
        drop(watched);
        server.await.unwrap();
        (heard, ended.err().map(|error| unwanted(&error).unwrap()))
    }

    #[tokio::test]
    async fn what_is_not_permitted_is_never_seen_however_it_is_cut() {
        let notice = b"N\0\0\0\x09hello".to_vec();
        for (typed, said, asked) in [
            ("scram-sha-256", request(5, b"salt"), AuthMethod::Md5),
            ("scram-sha-256", request(3, b""), AuthMethod::Password),
            ("md5", request(10, b"SCRAM-SHA-256\0\0"), AuthMethod::Scram),
            ("!none", request(0, b""), AuthMethod::None),
            ("scram-sha-256", request(7, b""), AuthMethod::Gss),
        ] {
            let require = require(typed);
            for step in [1, 3, 9, 1000] {
                let all = [notice.clone(), said.clone()].concat();
                let stream = |near| AuthCheckedStream::plain(near, &require);
                let (heard, found) = heard(stream, &all, step).await;
                assert_eq!(found, Some(asked), "{typed} by {step}");
                assert!(heard.len() < notice.len() + REQUEST, "{typed} by {step}: {heard:?}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_permitted_passes_and_so_does_all_that_follows() {
        let rows = [request(0, b""), request(5, b"rows look like anything")].concat();
        for (typed, said) in [
            ("md5", request(5, b"salt")),
            ("scram-sha-256", [request(10, b"x"), request(11, b"y"), request(12, b"z")].concat()),
            ("none", Vec::new()),
            ("!password", Vec::new()),
        ] {
            let (require, all) = (require(typed), [said, rows.clone()].concat());
            let stream = |near| AuthCheckedStream::plain(near, &require);
            assert_eq!(heard(stream, &all, 7).await, (all.clone(), None), "{typed}");
        }
    }

    #[tokio::test]
    async fn the_answer_about_tls_decides_what_is_watched() {
        let require = require("scram-sha-256");
        for (answer, asked) in [(b"N", Some(AuthMethod::Md5)), (b"S", None)] {
            let said = [&answer[..], &request(5, b"salt")].concat();
            let stream = |near| AuthCheckedStream::asking_for_tls(near, &require);
            assert_eq!(heard(stream, &said, 2).await.1, asked);
        }
    }
}
