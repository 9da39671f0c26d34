//! Startup and authentication: scram-sha-256 (bound to TLS if possible), md5, password, trust.
//!
//! Invariant: with `channel_binding=require` only a bound exchange is accepted. A request that
//! `require_auth` does not permit is not answered. A server that starts SCRAM must finish it, which
//! proves that it knows the password too.

use std::time::Instant;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding as Binding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;

use super::error::WalError;
use super::message_channel::{Incoming, MessageChannel};
use super::transport::Transport;
use crate::libpq::{AuthMethod, ChannelBinding, ConnectInfo, Endpoint, Password};

const DOING: &str = "logging in";

pub(super) struct Login<'a> {
    pub(super) info: &'a ConnectInfo,
    pub(super) endpoint: &'a Endpoint,
    pub(super) parameters: &'a [(&'a str, &'a str)],
    pub(super) binding: Option<Vec<u8>>,
    pub(super) deadline: Option<Instant>,
}

impl Login<'_> {
    /// Returns the server process's id.
    pub(super) fn run<T: Transport>(
        mut self,
        session: &mut MessageChannel<T>,
    ) -> Result<i32, WalError> {
        let mut startup = BytesMut::new();
        let identity = [("user", &*self.info.user), ("database", &*self.info.database)];
        let optional =
            [("application_name", &*self.info.application_name), ("options", &*self.info.options)];
        let parameters = identity
            .into_iter()
            .chain(optional.into_iter().filter(|(_, value)| !value.is_empty()))
            .chain(self.parameters.iter().copied());
        frontend::startup_message(parameters, &mut startup)
            .map_err(|_| self.refused("a startup parameter contains a NUL"))?;
        session.send(&startup, self.deadline, DOING)?;
        self.authenticate(session)?;
        let mut backend_pid = 0;
        loop {
            match self.next(session)? {
                Message::BackendKeyData(body) => backend_pid = body.process_id(),
                Message::ReadyForQuery(_) => return Ok(backend_pid),
                _ => return Err(WalError::Protocol("an unexpected message after logging in")),
            }
        }
    }

    fn authenticate<T: Transport>(
        &mut self,
        session: &mut MessageChannel<T>,
    ) -> Result<(), WalError> {
        let request = self.next(session)?;
        self.permit(&request)?;
        let answer = match request {
            Message::AuthenticationSasl(body) => {
                self.scram(session, &body)?;
                return self.expect_ok(session);
            }
            _ if self.info.channel_binding == ChannelBinding::Require => {
                return Err(
                    self.refused("channel_binding=require, and the server does not use SCRAM")
                );
            }
            Message::AuthenticationOk => return Ok(()),
            Message::AuthenticationCleartextPassword => self.password()?.as_bytes().to_vec(),
            Message::AuthenticationMd5Password(body) => {
                let user = self.info.user.as_bytes();
                md5_hash(user, self.password()?.as_bytes(), body.salt()).into_bytes()
            }
            _ => {
                return Err(self.refused(
                    "the server wants GSSAPI, SSPI or another method that is not supported; use \
                     scram-sha-256 in pg_hba.conf",
                ));
            }
        };
        let mut message = BytesMut::new();
        frontend::password_message(&answer, &mut message)
            .map_err(|_| self.refused("the password contains a NUL"))?;
        session.send(&message, self.deadline, DOING)?;
        self.expect_ok(session)
    }

    fn permit(&self, request: &Message) -> Result<(), WalError> {
        let asked = match request {
            Message::AuthenticationOk => AuthMethod::None,
            Message::AuthenticationCleartextPassword => AuthMethod::Password,
            Message::AuthenticationMd5Password(_) => AuthMethod::Md5,
            Message::AuthenticationScmCredential => AuthMethod::Creds,
            Message::AuthenticationGss => AuthMethod::Gss,
            Message::AuthenticationSspi => AuthMethod::Sspi,
            Message::AuthenticationSasl(_) => AuthMethod::Scram,
            _ => return Ok(()),
        };
        let required = &self.info.require_auth;
        if required.permits(asked) {
            return Ok(());
        }
        Err(WalError::unwanted(self.endpoint, asked, required))
    }

    fn expect_ok<T: Transport>(&self, session: &mut MessageChannel<T>) -> Result<(), WalError> {
        match self.next(session)? {
            Message::AuthenticationOk => Ok(()),
            _ => Err(WalError::Protocol("an unexpected message while logging in")),
        }
    }

    fn scram<T: Transport>(
        &mut self,
        session: &mut MessageChannel<T>,
        offer: &AuthenticationSaslBody,
    ) -> Result<(), WalError> {
        let (mechanism, binding) = self.mechanism(offer)?;
        let mut scram = ScramSha256::new(self.password()?.as_bytes(), binding);
        let unsendable = || WalError::Protocol("an answer that cannot be sent");
        let failed = |error: std::io::Error| self.refused(&error.to_string());

        let mut message = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut message)
            .map_err(|_| unsendable())?;
        session.send(&message, self.deadline, DOING)?;
        let Message::AuthenticationSaslContinue(challenge) = self.next(session)? else {
            return Err(WalError::Protocol("an unexpected message instead of the challenge"));
        };
        scram.update(challenge.data()).map_err(failed)?;
        let mut message = BytesMut::new();
        frontend::sasl_response(scram.message(), &mut message).map_err(|_| unsendable())?;
        session.send(&message, self.deadline, DOING)?;
        let Message::AuthenticationSaslFinal(proof) = self.next(session)? else {
            return Err(self.refused("the server did not prove that it knows the password"));
        };
        scram.finish(proof.data()).map_err(failed)
    }

    fn mechanism(
        &mut self,
        offer: &AuthenticationSaslBody,
    ) -> Result<(&'static str, Binding), WalError> {
        let (mut bound, mut unbound) = (false, false);
        let mut mechanisms = offer.mechanisms();
        while let Ok(Some(mechanism)) = mechanisms.next() {
            bound |= mechanism == SCRAM_SHA_256_PLUS;
            unbound |= mechanism == SCRAM_SHA_256;
        }
        let wanted = self.info.channel_binding;
        let binding = self.binding.take().filter(|_| wanted != ChannelBinding::Disable);
        match binding {
            Some(binding) if bound => {
                Ok((SCRAM_SHA_256_PLUS, Binding::tls_server_end_point(binding)))
            }
            _ if wanted == ChannelBinding::Require => Err(self.refused(
                "channel_binding=require, and the connection cannot be bound (no TLS, or a \
                 certificate signed without a hash)",
            )),
            _ if !unbound => Err(self.refused("the server offers no SCRAM variant we know")),
            // Announces support for binding, so that a supporting server detects a downgrade.
            Some(_) => Ok((SCRAM_SHA_256, Binding::unrequested())),
            None => Ok((SCRAM_SHA_256, Binding::unsupported())),
        }
    }

    /// The next message; a server error becomes a [`WalError`].
    fn next<T: Transport>(&self, session: &mut MessageChannel<T>) -> Result<Message, WalError> {
        match session.next(self.deadline, DOING)? {
            Incoming::Message(Message::ErrorResponse(body)) => {
                let message = session.server_message(body.fields()).of_login(self.info);
                Err(WalError::of_server(message))
            }
            Incoming::Message(message) => Ok(message),
            Incoming::CopyBoth => Err(WalError::Protocol("streaming before it was asked for")),
        }
    }

    fn password(&self) -> Result<&str, WalError> {
        self.endpoint.password.as_ref().map(Password::reveal).ok_or_else(|| {
            WalError::PasswordMissing {
                endpoint: self.endpoint.to_string(),
                user: self.info.user.clone(),
                hint: self.info.missing_password_hint(),
            }
        })
    }

    fn refused(&self, reason: &str) -> WalError {
        WalError::authentication(self.endpoint, reason.to_owned())
    }
}
