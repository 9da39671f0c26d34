//! The brokers: the producer and the reader, logins, outages, and every answer a broker may give.

#[cfg(feature = "faults")]
mod answers;
mod embedded;
mod limits;
mod listeners;
mod outage;
mod producer;
mod readmission;
