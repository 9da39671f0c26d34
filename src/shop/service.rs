//! Runs a consumer, an HTTP server and background tasks, which start and stop together. The first
//! error of background, consumer or HTTP server, in this order, is returned.

use std::future::Future;
use std::time::Duration;

use axum::Router;
use tokio::sync::watch;
use tokio_postgres_rustls::MakeRustlsConnect;
use tracing::info;

use super::error::ShopError;
use super::settings::ServiceListener;
use postrider_patterns::inbox::{Consumer, Effects};
use postrider_service::http;

const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// `tls` secures the consumer's session. `background` ends only with an error.
pub(super) async fn run<E: Effects>(
    consumer: Consumer<E>,
    tls: MakeRustlsConnect,
    router: Router,
    background: impl Future<Output = ShopError>,
    endpoint: ServiceListener<impl Future<Output = ()>>,
) -> Result<(), ShopError> {
    let ServiceListener { listener, stop: asked_to_stop } = endpoint;
    let (stopping, stop) = watch::channel(false);
    let stopped = |mut stop: watch::Receiver<bool>| async move {
        // The sender outlives the tasks that wait here.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let consuming = async {
        let ended = consumer.run_with_tls(tls, stopped(stop.clone())).await;
        stopping.send_replace(true);
        ended.map(drop).map_err(ShopError::Consumer)
    };
    let serving = async {
        let serve = http::serve(listener, router, stopped(stop.clone()));
        let too_long = async {
            stopped(stop.clone()).await;
            tokio::time::sleep(DRAIN_LIMIT).await;
        };
        let ended = tokio::select! {
            ended = serve => ended,
            () = too_long => Ok(()),
        };
        stopping.send_replace(true);
        ended.map_err(ShopError::Http)
    };
    let asked = async {
        let mut ended = Ok(());
        tokio::select! {
            () = asked_to_stop => info!("stopping"),
            () = stopped(stop.clone()) => {}
            error = background => ended = Err(error),
        }
        stopping.send_replace(true);
        ended
    };
    let (consumption, service, asked) = tokio::join!(consuming, serving, asked);
    asked.and(consumption).and(service)
}
