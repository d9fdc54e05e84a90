//! HTTP for operators: `/metrics`, `/health/live`, `/health/ready` and `/state`.

pub mod health;
pub mod state;

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Serialize;
use tokio::{net::TcpListener, sync::watch};

pub use health::{Commits, Condition, Health, Report};

use crate::telemetry::Metrics;

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
}

/// A server that listens already; it answers once it is [served](Self::serve).
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
}

impl Server {
    /// Takes the address.
    ///
    /// # Errors
    /// [`ApiError::Listen`], naming the address.
    pub async fn bind(address: SocketAddr, metrics: Arc<Metrics>, health: Arc<Health>) -> Result<Self, ApiError> {
        let failed = |source| ApiError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let router = Router::new()
            .route("/metrics", get(metrics_text))
            .route("/health/live", get(live))
            .route("/health/ready", get(ready))
            .route("/state", get(state_page))
            .with_state(Shared { metrics, health });
        Ok(Self { address: listener.local_addr().map_err(failed)?, listener, router })
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
        let serving = async { axum::serve(self.listener, self.router).with_graceful_shutdown(signal).await };
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
    json(StatusCode::OK, &shared.health.board().page(&shared.health))
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
        server.health.set(Condition::Assigned, None);
        server.health.set(Condition::StoreReachable, None);
        let ready = request(server.address, "/health/ready").await;
        assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with(r#"{"ok":true,"reasons":{}}"#), "{ready}");
        assert!(request(server.address, "/").await.starts_with("HTTP/1.1 404"));

        server.stop.send(()).unwrap();
        server.task.await.unwrap().unwrap();
        assert!(TcpStream::connect(server.address).await.is_err(), "it still listens");
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
