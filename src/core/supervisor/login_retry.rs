//! Decides whether a refused login is retried, because a password, a certificate or pg_hba.conf may
//! change.
//!
//! Retries end once connections were refused for `retry.login_give_up_after` without a break. See
//! docs/decisions/0018.

use std::time::Duration;

use crate::time::Instant;

/// If refusals are further apart (without back-off), a login succeeded between them.
const TOGETHER: Duration = Duration::from_mins(2);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoginRetry {
    refused: Option<(Instant, Instant)>,
}

impl LoginRetry {
    /// `give_up_after`: zero never retries. `pause_max`: the longest back-off.
    pub(super) fn refused(
        &mut self,
        now: Instant,
        give_up_after: Duration,
        pause_max: Duration,
    ) -> bool {
        if give_up_after.is_zero() {
            return false;
        }
        let since = match self.refused {
            Some((since, last)) if now - last < TOGETHER + pause_max => since,
            _ => now,
        };
        self.refused = Some((since, now));
        now - since < give_up_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    #[test]
    fn refusals_without_a_break_are_tried_again_for_a_while() {
        let (mut login_retry, start) = (LoginRetry::default(), Instant::START);
        let mut refused = |at| login_retry.refused(at, 5 * MINUTE, MINUTE);
        assert!((0..5).all(|minute| refused(start + minute * MINUTE)));
        assert!(!refused(start + 5 * MINUTE));
        let later = start + 8 * MINUTE;
        assert!(refused(later), "it was let in meanwhile");
        assert!(!LoginRetry::default().refused(start, Duration::ZERO, MINUTE));
    }
}
