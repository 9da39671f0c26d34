//! Short-lived logins: tokens that are fetched, kept, and fetched again before they expire.
//!
//! Output: a [`Token`] for Kafka's OAUTHBEARER, or a password for Postgres on RDS. Invariant:
//! neither `Debug` nor an error shows a secret. Every request is bounded in time and size.
//!
//! ```
//! # #[cfg(feature = "providers")] {
//! use postrider_credentials::{TokenSource, oidc::ClientCredentials};
//!
//! let source = TokenSource::Oidc(ClientCredentials {
//!     endpoint: "https://login.example/oauth2/token".to_owned(),
//!     client_id: "relay".to_owned(),
//!     ..ClientCredentials::default()
//! });
//! assert_eq!(source.describe(), "the token endpoint https://login.example/oauth2/token");
//! # }
//! ```

#[cfg(feature = "providers")]
pub mod aws;
mod error;
#[cfg(feature = "providers")]
mod http;
pub mod keeper;
#[cfg(feature = "providers")]
pub mod oidc;
#[cfg(feature = "providers")]
mod sigv4;
mod time;
mod token;

pub use error::CredentialsError;
pub use keeper::TokenKeeper;
pub use token::{Token, TokenSource};
