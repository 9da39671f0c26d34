//! Reads the whole body of a request, within limits of size and time. Output: its bytes, or the
//! problem for the client. Invariant: memory use is limited to the maximum size.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::problem::Problem;

pub(super) async fn read<B>(body: B, bytes_max: usize, time_max: Duration) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data: Send, Error: Send> + Send + 'static,
{
    let body = Limited::new(body.map_err(|_| Broken).boxed_unsync(), bytes_max);
    match tokio::time::timeout(time_max, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::too_large(bytes_max)),
        Ok(Err(_)) => Err(Problem::incomplete()),
        Err(_) => Err(Problem::too_slow(time_max)),
    }
}

/// The body's own error. The client knows the details, so the response omits them.
#[derive(Debug, thiserror::Error)]
#[error("the body was not received completely")]
struct Broken;
