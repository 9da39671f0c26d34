//! Finds free loopback ports.
//!
//! Callers retry, because another process can take a free port first. The ports are below the
//! kernel's ephemeral range (32768 up, `ip_local_port_range`): an outgoing connection could take
//! one while a server restarts.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use super::SandboxError;

const FIRST: u16 = 15_000;
const LAST: u16 = 31_999;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Port of 127.0.0.1 that was free a moment ago, never the previous one of this process.
pub fn free() -> Result<u16, SandboxError> {
    let span = LAST - FIRST + 1;
    // Two test runs start far apart, so that they seldom collide.
    let start = u16::try_from(std::process::id().wrapping_mul(7_919) % u32::from(span));
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let offset = (u32::from(start.unwrap_or(0)) + u32::from(step)) % u32::from(span);
        let port = FIRST + u16::try_from(offset).unwrap_or(0);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(SandboxError::NoPort { first: FIRST, last: LAST })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_below_the_ephemeral_range_and_differ() {
        let (one, two) = (free().unwrap(), free().unwrap());
        assert_ne!(one, two);
        assert!((FIRST..=LAST).contains(&one) && (FIRST..=LAST).contains(&two));
    }
}
