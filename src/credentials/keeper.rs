//! Keeps a token, and fetches the next one before it expires.
//!
//! Invariant: [`TokenKeeper::newest`] never waits for the source, so it never blocks the thread
//! that sends records. The thread ends with the last [`TokenKeeper`].

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::time::now_ms;
use crate::{CredentialsError, Token, TokenSource};

/// Part of a token's lifetime until the next fetch. librdkafka asks at 80.
const REFRESH_PERCENT: u64 = 60;
/// The clock may be changed between two checks.
const LOOK_MS: u64 = 30_000;
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The refusal of a newer token may concern the previous one.
const REFUSED_AGE_MS: u64 = 5_000;

/// Clones share the token.
#[derive(Clone)]
pub struct TokenKeeper(Arc<Guard>);

static SHARED: Mutex<Vec<Weak<Guard>>> = Mutex::new(Vec::new());

struct Guard(Arc<Shared>);

struct Shared {
    source: TokenSource,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// Error of the last attempt.
    error: Option<CredentialsError>,
    attempts: u64,
    has_thread: bool,
    is_refused: bool,
    is_over: bool,
}

impl std::fmt::Debug for TokenKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TokenKeeper").field(&self.0.0.source).finish()
    }
}

impl PartialEq for TokenKeeper {
    fn eq(&self, other: &Self) -> bool {
        self.0.0.source == other.0.0.source
    }
}

impl Eq for TokenKeeper {}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}

impl TokenKeeper {
    /// The thread starts with the first request for a token.
    pub fn new(source: TokenSource) -> Self {
        let shared = Shared { source, state: Mutex::default(), changed: Condvar::new() };
        Self(Arc::new(Guard(Arc::new(shared))))
    }

    /// Fifty streams that log in as one client request one token.
    pub fn shared(source: TokenSource) -> Self {
        let mut kept = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|guard| guard.strong_count() > 0);
        let found = kept.iter().filter_map(Weak::upgrade).find(|guard| guard.0.source == source);
        if let Some(found) = found {
            return Self(found);
        }
        let new = Self::new(source);
        kept.push(Arc::downgrade(&new.0));
        new
    }

    pub fn source(&self) -> &TokenSource {
        &self.0.0.source
    }

    /// Does not wait.
    pub fn newest(&self) -> Result<Token, CredentialsError> {
        let state = self.0.0.state();
        state.good().unwrap_or_else(|| {
            Err(state.error.clone().unwrap_or_else(|| CredentialsError::Unanswered {
                whom: self.source().describe(),
                reason: "it has not been asked yet".to_owned(),
            }))
        })
    }

    /// Waits up to `limit` for an attempt if no token is valid, or the token was refused.
    pub fn wait(&self, limit: Duration) -> Result<Token, CredentialsError> {
        self.start()?;
        let shared = &self.0.0;
        let state = shared.state();
        let attempts = state.attempts;
        let is_waiting = |state: &mut State| {
            (state.good().is_none() || state.is_refused) && state.attempts == attempts
        };
        let _ = shared.changed.wait_timeout_while(state, limit, is_waiting);
        self.newest()
    }

    /// The next token is fetched now, unless the current one is new. The current one stays in use
    /// until then.
    pub fn refused(&self) {
        let mut state = self.0.0.state();
        let is_old = |token: &Token| now_ms().saturating_sub(token.fetched_ms) >= REFUSED_AGE_MS;
        state.is_refused |= state.token.as_ref().is_some_and(is_old);
        self.0.0.changed.notify_all();
    }

    fn start(&self) -> Result<(), CredentialsError> {
        if std::mem::replace(&mut self.0.0.state().has_thread, true) {
            return Ok(());
        }
        let shared = Arc::clone(&self.0.0);
        // The thread is not in a stream's span, because other streams may share it.
        let spawned = std::thread::Builder::new()
            .name("postrider-token".to_owned())
            .spawn(move || shared.keep());
        spawned.map(drop).map_err(|error| {
            self.0.0.state().has_thread = false;
            CredentialsError::Unanswered {
                whom: self.source().describe(),
                reason: format!("no thread to ask with: {error}"),
            }
        })
    }
}

impl State {
    fn good(&self) -> Option<Result<Token, CredentialsError>> {
        self.token.clone().filter(|token| token.expires_ms > now_ms()).map(Ok)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self) {
        let mut retry = RETRY_MIN;
        loop {
            let fetched = self.source.fetch();
            let mut state = self.state();
            state.attempts += 1;
            state.is_refused = false;
            let pause = match fetched {
                Ok(token) => {
                    if state.error.take().is_some() {
                        tracing::info!(source = self.source.describe(), "tokens are issued again");
                    }
                    retry = RETRY_MIN;
                    state.token = Some(token);
                    // Also limits the rate for sources whose tokens expire at once.
                    RETRY_MIN
                }
                Err(error) => {
                    tell(&self.source, &state, &error);
                    state.error = Some(error);
                    retry = (retry * 2).min(RETRY_MAX);
                    retry
                }
            };
            self.changed.notify_all();
            let is_done = |state: &mut State| !state.is_over;
            let (mut state, _) = self
                .changed
                .wait_timeout_while(state, pause, is_done)
                .unwrap_or_else(PoisonError::into_inner);
            while !state.is_over && !state.is_refused && state.error.is_none() {
                let Some(wait) = state.token.as_ref().and_then(until_refresh) else { break };
                let waited = self.changed.wait_timeout(state, wait);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_over {
                return;
            }
        }
    }
}

/// Logs an error again only after it changes.
fn tell(source: &TokenSource, state: &State, error: &CredentialsError) {
    if state.error.as_ref() == Some(error) {
        return;
    }
    let expires_ms = state.token.as_ref().map_or(0, |token| token.expires_ms);
    tracing::warn!(
        %error,
        help = error.hint(),
        source = source.describe(),
        good_for_s = expires_ms.saturating_sub(now_ms()) / 1_000,
        "no new token for the brokers; asking again, and the present one is used while it is good"
    );
}

/// `None` if the fetch is due.
fn until_refresh(token: &Token) -> Option<Duration> {
    let life_ms = token.expires_ms.saturating_sub(token.fetched_ms);
    let due_ms = token.fetched_ms + life_ms / 100 * REFRESH_PERCENT;
    let left_ms = due_ms.saturating_sub(now_ms()).min(LOOK_MS);
    (left_ms > 0).then(|| Duration::from_millis(left_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider_secrets::PasswordCommand;

    const LIMIT: Duration = Duration::from_secs(20);

    fn keeper(script: &str) -> TokenKeeper {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        TokenKeeper::new(TokenSource::Command(PasswordCommand::new(words).unwrap()))
    }

    #[test]
    fn clones_share_one_token_and_one_thread() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let script = r#"echo x >> RUNS; echo '{"access_token":"a","expires_in":3600}'"#;
        let keeper = keeper(&script.replace("RUNS", &runs.display().to_string()));
        assert!(keeper.newest().is_err(), "nobody has asked");
        let askers: Vec<_> = (0..8)
            .map(|_| keeper.clone())
            .map(|clone| std::thread::spawn(move || clone.wait(LIMIT).map(|token| token.text)))
            .collect();
        for asker in askers {
            assert_eq!(asker.join().unwrap().as_deref(), Ok("a"));
        }
        assert_eq!(std::fs::read_to_string(runs).unwrap(), "x\n");
    }

    #[test]
    fn equal_sources_share_one_token_for_as_long_as_anybody_uses_it() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let script = format!(
            r#"echo x >> {}; echo '{{"access_token":"a","expires_in":3600}}'"#,
            runs.display()
        );
        let shared = |script: &str| TokenKeeper::shared(keeper(script).source().clone());
        let (one, two, other) = (shared(&script), shared(&script), shared("exit 3"));
        assert!(one.wait(LIMIT).is_ok() && two.newest().is_ok() && other.newest().is_err());
        assert_eq!(std::fs::read_to_string(&runs).unwrap(), "x\n");
        drop((one, two));
        assert!(shared(&script).newest().is_err(), "nobody has asked for this one");
    }

    #[test]
    fn a_token_that_is_refused_is_fetched_again_unless_it_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let script =
            r#"echo x >> RUNS; printf '{"access_token":"%s","expires_in":3600}' $(wc -l < RUNS)"#;
        let keeper = keeper(&script.replace("RUNS", &runs.display().to_string()));
        let text = |keeper: &TokenKeeper| keeper.wait(LIMIT).map(|token| token.text);
        assert_eq!(text(&keeper).as_deref(), Ok("1"));
        keeper.refused();
        assert_eq!(text(&keeper).as_deref(), Ok("1"), "another client had an older one");
        let age = |state: &mut State| state.token.as_mut().unwrap().fetched_ms -= REFUSED_AGE_MS;
        age(&mut keeper.0.0.state());
        keeper.refused();
        assert_eq!(text(&keeper).as_deref(), Ok("2"));
    }

    #[test]
    fn a_source_that_fails_is_told_and_not_waited_for_longer() {
        let keeper = keeper("exit 3");
        let error = keeper.wait(LIMIT).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
        assert_eq!(keeper.newest(), Err(error));
    }
}
