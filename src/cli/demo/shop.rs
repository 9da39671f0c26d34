//! First part of the demo: places orders in the reference shop over HTTP and waits until each has
//! ended.
//!
//! Some orders exceed the card's limit, some find no stock, and some requests are sent twice but
//! must create one order.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Client;
use uuid::Uuid;

use super::DemoError;
use super::report;
use super::stage::Stage;
use postrider_shop::orders::OrderLimits;
use postrider_shop::payments::CARD_LIMIT_CENTS;
use postrider_shop::settings::{ServiceListener, ServiceSettings};
use postrider_shop::{KafkaArgs, ShopError, inventory, orders, payments};

pub(super) const ORDERS: usize = 24;
/// Fewer units than are ordered.
const SKU: &str = "demo-teapot";
const STOCK: i64 = 14;
/// Number of orders, of which one is too expensive for the card.
const TOO_DEAR_EVERY: usize = 6;
/// Number of requests, of which one is sent twice.
pub(super) const REPEATED_EVERY: usize = 4;
const LIMIT: Duration = Duration::from_mins(3);
/// No order times out earlier. Without Redis no key has an owner.
const ORDER_LIMITS: OrderLimits = OrderLimits { order_timeout: LIMIT, owner_silence: LIMIT };

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct ShopFigures {
    pub(super) orders: usize,
    pub(super) repeated_requests: usize,
    pub(super) confirmed: usize,
    pub(super) cancelled: usize,
    /// Cancelled orders that had been paid.
    pub(super) refunded: usize,
    pub(super) stuck: usize,
}

impl ShopFigures {
    /// Whether every order ended, and each request created one.
    pub(super) const fn is_sound(&self) -> bool {
        self.stuck == 0 && self.confirmed + self.cancelled == self.orders
    }
}

/// Topics of the shop besides those for its events.
pub(super) fn topics() -> Vec<String> {
    let letters =
        [orders::NAME, payments::NAME, inventory::NAME].map(|name| format!("{name}.dead-letters"));
    orders::EVENT_TYPES.iter().map(ToString::to_string).chain(letters).collect()
}

pub(super) async fn play(
    stage: &Stage,
    client: &Client,
    shows: bool,
) -> Result<ShopFigures, DemoError> {
    let (closing, closed) = watch::channel(false);
    let mut services = JoinSet::new();
    let settings = ServiceSettings {
        database_url: stage.database_url.clone(),
        kafka: KafkaArgs::at(&stage.brokers),
        redis_url: None,
        bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
    };
    let at = || async {
        let mut closed = closed.clone();
        let stop = async move {
            // The sender outlives all receivers.
            let _ = closed.wait_for(|closed| *closed).await;
        };
        ServiceListener::listen(settings.bind, stop).await
    };
    let endpoint = at().await?;
    let address = endpoint.address()?;
    let own = settings.clone();
    services.spawn(async move { orders::run(&own, ORDER_LIMITS, endpoint).await });
    let (own, endpoint) = (settings.clone(), at().await?);
    services.spawn(async move { payments::run(&own, endpoint).await });
    let (own, endpoint) = (settings.clone(), at().await?);
    services.spawn(async move { inventory::run(&own, endpoint).await });

    let played = tokio::select! {
        played = place_and_wait(address, client, shows) => played,
        ended = services.join_next() => Err(ended_early(ended)),
    };
    closing.send_replace(true);
    while let Some(ended) = services.join_next().await {
        if let Ok(Err(error)) = ended {
            return Err(error.into());
        }
    }
    played
}

fn ended_early(ended: Option<Result<Result<(), ShopError>, tokio::task::JoinError>>) -> DemoError {
    match ended {
        Some(Ok(Err(error))) => error.into(),
        _ => DemoError::ShopEnded,
    }
}

async fn place_and_wait(
    address: SocketAddr,
    client: &Client,
    shows: bool,
) -> Result<ShopFigures, DemoError> {
    let sql = "INSERT INTO stock (sku, available) VALUES ($1, $2) \
               ON CONFLICT (sku) DO UPDATE SET available = $2";
    client.execute(sql, &[&SKU, &STOCK]).await?;
    let mut figures = ShopFigures { orders: ORDERS, ..ShopFigures::default() };
    let mut open = Vec::new();
    for number in 1..=ORDERS {
        let is_dear = number.is_multiple_of(TOO_DEAR_EVERY);
        let amount_cents = if is_dear { CARD_LIMIT_CENTS + 1 } else { 4_900 };
        let body = json!({
            "customer": format!("customer-{number}"), "sku": SKU, "quantity": 1,
            "amount_cents": amount_cents,
        });
        let (key, body) = (Uuid::now_v7().to_string(), body.to_string());
        let id = order(address, &key, &body).await?;
        if number.is_multiple_of(REPEATED_EVERY) {
            figures.repeated_requests += 1;
            if order(address, &key, &body).await? != id {
                return Err(DemoError::TwoOrders);
            }
        }
        open.push(id);
    }
    let mut ways = BTreeMap::new();
    let deadline = Instant::now() + LIMIT;
    while !open.is_empty() && Instant::now() < deadline {
        let mut still_open = Vec::new();
        for id in open {
            match end_of(client, &id).await? {
                Some(way) => count(&mut figures, way, &mut ways),
                None => still_open.push(id),
            }
        }
        open = still_open;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    figures.stuck = open.len();
    if shows {
        report::tell_ways(&ways);
    }
    Ok(figures)
}

async fn end_of(client: &Client, id: &str) -> Result<Option<Vec<String>>, DemoError> {
    let sql = "SELECT array_agg(event ORDER BY number) || sagas.status FROM sagas \
               JOIN saga_history USING (kind, id) WHERE kind = 'order' AND id = $1 \
               AND sagas.status IN ('CONFIRMED', 'CANCELLED') GROUP BY sagas.status";
    let row = client.query_opt(sql, &[&id]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

fn count(figures: &mut ShopFigures, way: Vec<String>, ways: &mut BTreeMap<Vec<String>, usize>) {
    let ends = |end: &str| way.last().is_some_and(|last| last == end);
    figures.confirmed += usize::from(ends("CONFIRMED"));
    figures.cancelled += usize::from(ends("CANCELLED"));
    figures.refunded += usize::from(way.iter().any(|event| event == "PaymentRefunded"));
    *ways.entry(way).or_default() += 1;
}

async fn order(address: SocketAddr, key: &str, body: &str) -> Result<String, DemoError> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\nidempotency-key: {key}\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let id = answer.starts_with("HTTP/1.1 201 ").then(|| {
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let order: serde_json::Value = serde_json::from_str(body).ok()?;
        Some(order.get("id")?.as_str()?.to_owned())
    });
    let status = || answer.lines().next().unwrap_or_default().to_owned();
    id.flatten().ok_or_else(|| DemoError::OrderRefused(status()))
}
