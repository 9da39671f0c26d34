//! PostgreSQL as Postrider uses it: connection strings, replication, SQL.
//!
//! All connections use the servers, certificates and password of one
//! [`ConnectInfo`](libpq::ConnectInfo).
//!
//! ```
//! use postrider_postgres::libpq::{ConnectInfo, SslMode};
//!
//! let no_environment = |_: &str| None;
//! let (info, _) = ConnectInfo::resolve("postgres://app@db:6432/shop?sslmode=require", &no_environment)?;
//! assert_eq!((info.user.as_str(), info.database.as_str()), ("app", "shop"));
//! assert_eq!(info.endpoints[0].to_string(), "db:6432");
//! assert_eq!(info.tls.mode, SslMode::Require);
//! # Ok::<(), postrider_postgres::libpq::ConnectInfoError>(())
//! ```

pub mod certificate;
pub mod control;
pub mod libpq;
pub mod wal;
