//! HTTP for operators: `/metrics`, `/health/live`, `/health/ready` and `/state`; and, where that is on, what they may ask of the loops.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use serde_json::json;
use tokio::{net::TcpListener, sync::watch};

use crate::{
    status::{
        Health, Report,
        control::{Answer, PartitionCommand},
    },
    telemetry::Metrics,
};

/// How long open connections may keep a shutdown waiting.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the server cannot do.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address is occupied or not this machine's.
    #[error("cannot listen on {address} for metrics and health (http.listen)")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The server stopped by itself.
    #[error("the server for metrics and health failed")]
    Serve(#[source] io::Error),
}

#[derive(Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// Whether anything may be asked of the loops.
    controls: bool,
}

/// A server that listens already; it answers once it is [served](Self::serve).
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    shared: Shared,
}

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// [`ApiError::Listen`], naming the address.
    pub async fn bind(address: SocketAddr, metrics: Arc<Metrics>, health: Arc<Health>) -> Result<Self, ApiError> {
        let failed = |source| ApiError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let shared = Shared { metrics, health, controls: false };
        Ok(Self { address: listener.local_addr().map_err(failed)?, listener, shared })
    }

    /// Whether halts may be lifted here, and partitions paused: by whoever reaches the port, since it has no login.
    pub fn controls(mut self, controls: bool) -> Self {
        self.shared.controls = controls;
        self
    }

    /// The address it has; differs from the one asked for where that had port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` completes, then finishes the requests at hand, within two seconds.
    ///
    /// # Errors
    /// [`ApiError::Serve`] when the listener fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ApiError> {
        let (closing, mut closed) = watch::channel(());
        let signal = async move {
            shutdown.await;
            drop(closing);
        };
        let serving = async { axum::serve(self.listener, router(self.shared)).with_graceful_shutdown(signal).await };
        // Somebody who holds a request half sent must not hold the process.
        let too_late = async {
            while closed.changed().await.is_ok() {}
            tokio::time::sleep(CLOSE_TIMEOUT).await;
        };
        tokio::select! {
            served = serving => served.map_err(ApiError::Serve),
            () = too_late => Ok(()),
        }
    }
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/state", get(state_page))
        .route(
            "/partitions/{number}/retry",
            post(|shared, by, number| partition(shared, by, number, PartitionCommand::Retry)),
        )
        .route(
            "/partitions/{number}/pause",
            post(|shared, by, number| partition(shared, by, number, PartitionCommand::Pause)),
        )
        .route(
            "/partitions/{number}/resume",
            post(|shared, by, number| partition(shared, by, number, PartitionCommand::Resume)),
        )
        .route("/chain/retry", post(retry_chain))
        .with_state(shared)
}

async fn partition(
    State(shared): State<Shared>,
    by: HeaderMap,
    Path(number): Path<i32>,
    wish: PartitionCommand,
) -> Response {
    match shared.refuses(&by) {
        Some(why) => said(StatusCode::FORBIDDEN, "refused", why),
        None => answered(shared.health.control().partitions.ask((number, wish)).await),
    }
}

async fn retry_chain(State(shared): State<Shared>, by: HeaderMap) -> Response {
    match shared.refuses(&by) {
        Some(why) => said(StatusCode::FORBIDDEN, "refused", why),
        None => answered(shared.health.control().chain.ask(()).await),
    }
}

impl Shared {
    /// Why nothing may be asked of the loops, if so. A browser says where a page is from that has it ask; on loopback any page could.
    fn refuses(&self, by: &HeaderMap) -> Option<&'static str> {
        if !self.controls {
            return Some(
                "nothing can be asked of the loops here: set http.control = true (the port has no login, so keep it on loopback or \
                 behind a proxy that asks for one)",
            );
        }
        by.contains_key(header::ORIGIN).then_some("a web page may not ask for this")
    }
}

fn answered(answer: Answer) -> Response {
    match answer {
        Answer::Done(what) => said(StatusCode::OK, "done", &what),
        Answer::NotHeld(why) => said(StatusCode::NOT_FOUND, "refused", &why),
        Answer::Refused(why) => said(StatusCode::CONFLICT, "refused", &why),
        Answer::NotNow(why) => said(StatusCode::SERVICE_UNAVAILABLE, "refused", &why),
    }
}

fn said(status: StatusCode, name: &str, what: &str) -> Response {
    json(status, &json!({ name: what }))
}

async fn metrics_text(State(shared): State<Shared>) -> Response {
    let conditions = shared.health.conditions_now();
    let conditions = conditions.iter().map(|(name, condition)| (*name, condition.met));
    shared.metrics.show_health(shared.health.live().ok, conditions);
    match shared.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn live(State(shared): State<Shared>) -> Response {
    answer(&shared.health.live())
}

async fn ready(State(shared): State<Shared>) -> Response {
    answer(&shared.health.ready())
}

async fn state_page(State(shared): State<Shared>) -> Response {
    json(StatusCode::OK, &shared.health.status_registry().page(&shared.health))
}

fn answer(report: &Report) -> Response {
    json(if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, report)
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_string(answer) {
        Ok(json) => (status, [(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod deploy_tests;

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::oneshot,
        task::JoinHandle,
    };

    use super::*;
    use crate::clock::Clock;

    struct Running {
        address: SocketAddr,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), ApiError>>,
    }

    async fn start() -> Running {
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Clock::System, Duration::from_secs(60)));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(free, metrics.clone(), health.clone()).await.unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve(async {
            stopped.await.ok();
        }));
        Running { address, metrics, health, stop, task }
    }

    /// Status line, headers and body.
    async fn request(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn it_shows_metrics_and_health() {
        let server = start().await;
        server.metrics.contests.inc_by(3);
        let metrics = request(server.address, "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("text/plain; version=0.0.4"), "{metrics}");
        assert!(metrics.contains("\nutxo_contests_total 3\n"), "{metrics}");

        assert!(request(server.address, "/health/live").await.starts_with("HTTP/1.1 200"));
        let unready = request(server.address, "/health/ready").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(
            unready.ends_with(r#"{"ok":false,"reasons":{"assigned":"starting","store_reachable":"starting"}}"#),
            "{unready}"
        );
        server.health.set(crate::status::Condition::Assigned, None);
        server.health.set(crate::status::Condition::StoreReachable, None);
        let ready = request(server.address, "/health/ready").await;
        assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with(r#"{"ok":true,"reasons":{}}"#), "{ready}");
        assert!(request(server.address, "/").await.starts_with("HTTP/1.1 404"));

        server.stop.send(()).unwrap();
        server.task.await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err(), "it still listens");
    }

    /// What is answered to a POST, from a page of `origin` or from none.
    async fn post(address: SocketAddr, path: &str, origin: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\n{origin}Content-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn what_is_asked_of_a_loop_reaches_it_and_only_where_that_is_on() {
        let server = start().await;
        let off = post(server.address, "/partitions/3/retry", "").await;
        assert!(off.starts_with("HTTP/1.1 403") && off.contains("http.control = true"), "{off}");

        let health = server.health.clone();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = Server::bind(free, server.metrics.clone(), health.clone()).await.unwrap().controls(true);
        let address = bound.address();
        tokio::spawn(bound.serve(std::future::pending()));
        let nobody = post(address, "/partitions/3/retry", "").await;
        assert!(nobody.starts_with("HTTP/1.1 404") && nobody.contains("{\"refused\":\""), "{nobody}");

        let mut orders = health.control().partitions.open();
        tokio::spawn(async move {
            while let Some(order) = orders.recv().await {
                let answer = match order.what {
                    (3, PartitionCommand::Retry) => Answer::Done("it goes on".into()),
                    (3, PartitionCommand::Pause) => Answer::NotNow("later".into()),
                    other => Answer::Refused(format!("{other:?}")),
                };
                order.answer(answer);
            }
        });
        let retried = post(address, "/partitions/3/retry", "").await;
        assert!(retried.starts_with("HTTP/1.1 200") && retried.ends_with("{\"done\":\"it goes on\"}"), "{retried}");
        assert!(post(address, "/partitions/3/pause", "").await.starts_with("HTTP/1.1 503"));
        let refused = post(address, "/partitions/4/resume", "").await;
        assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("(4, Resume)"), "{refused}");
        let page = post(address, "/partitions/3/retry", "Origin: http://elsewhere\r\n").await;
        assert!(page.starts_with("HTTP/1.1 403"), "{page}");
        assert!(request(address, "/partitions/3/retry").await.starts_with("HTTP/1.1 405"));
        assert!(post(address, "/chain/retry", "").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_half_sent_request_does_not_hold_a_shutdown() {
        let server = start().await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
        // Once this is answered, the earlier connection has been accepted too.
        request(server.address, "/health/live").await;
        server.stop.send(()).unwrap();
        server.task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_occupied_address_is_named() {
        let server = start().await;
        let Err(error) = Server::bind(server.address, server.metrics, server.health).await else {
            panic!("two servers on one address");
        };
        let line = crate::cli::Failure::from(error).to_string();
        assert!(line.contains(&server.address.to_string()) && line.contains("in use"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
