//! HTTP for operators: `/metrics`, `/health/live`, `/health/ready`, `/state`, and the control endpoints, where enabled.

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
        Health, HealthReport,
        control::{ControlAnswer, PartitionCommand},
    },
    telemetry::Metrics,
};

/// Longest time for which open connections delay a shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Error of the HTTP server.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address is in use, or is not an address of this machine.
    #[error("cannot listen on {address} for metrics and health (http.listen)")]
    Listen {
        /// Address that `http.listen` names.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The server stopped without a shutdown.
    #[error("the server for metrics and health failed")]
    Serve(#[source] io::Error),
}

/// State that every request handler reads.
#[derive(Clone)]
struct ApiState {
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// True if the control endpoints are enabled.
    is_control_enabled: bool,
}

/// A server that has its address; [`serve`](Self::serve) answers requests.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    state: ApiState,
}

impl Server {
    /// Binds the address, without answering requests yet.
    ///
    /// # Errors
    /// [`ApiError::Listen`] with the address.
    pub async fn bind(address: SocketAddr, metrics: Arc<Metrics>, health: Arc<Health>) -> Result<Self, ApiError> {
        let failed = |source| ApiError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let state = ApiState { metrics, health, is_control_enabled: false };
        Ok(Self { address: listener.local_addr().map_err(failed)?, listener, state })
    }

    /// Enables the control endpoints, which clear halts and pause partitions. The port has no login, so that every
    /// client that reaches the port can use them.
    pub fn with_control(mut self, is_enabled: bool) -> Self {
        self.state.is_control_enabled = is_enabled;
        self
    }

    /// Returns the bound address; its port differs from the configured port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `shutdown` completes, then finishes open requests for at most 2 s.
    ///
    /// # Errors
    /// [`ApiError::Serve`] when the listener fails.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ApiError> {
        let (closing, mut closed) = watch::channel(());
        let signal = async move {
            shutdown.await;
            drop(closing);
        };
        let serving = async { axum::serve(self.listener, router(self.state)).with_graceful_shutdown(signal).await };
        // A client that has sent half of a request must not delay the shutdown for longer.
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

fn router(state: ApiState) -> Router {
    let partition = |command| post(move |state, headers, number| command_partition(state, headers, number, command));
    Router::new()
        .route("/metrics", get(metrics_text))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/state", get(state_page))
        .route("/partitions/{number}/retry", partition(PartitionCommand::Retry))
        .route("/partitions/{number}/pause", partition(PartitionCommand::Pause))
        .route("/partitions/{number}/resume", partition(PartitionCommand::Resume))
        .route("/chain/retry", post(retry_chain))
        .with_state(state)
}

async fn command_partition(
    State(state): State<ApiState>,
    headers: HeaderMap,
    Path(number): Path<i32>,
    command: PartitionCommand,
) -> Response {
    match state.control_refusal(&headers) {
        Some(why) => named_text(StatusCode::FORBIDDEN, "refused", why),
        None => control_response(state.health.control().partitions.ask((number, command)).await),
    }
}

async fn retry_chain(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    match state.control_refusal(&headers) {
        Some(why) => named_text(StatusCode::FORBIDDEN, "refused", why),
        None => control_response(state.health.control().chain.ask(()).await),
    }
}

impl ApiState {
    /// Returns the reason for the refusal of a control request; `None`: accepted. Requests of web pages are refused by
    /// their header `Origin`: otherwise any page in a browser could control an instance on loopback.
    fn control_refusal(&self, headers: &HeaderMap) -> Option<&'static str> {
        if !self.is_control_enabled {
            return Some(
                "the control endpoints are disabled: set http.control = true (the port has no login, so keep it on \
                 loopback or behind a proxy with a login)",
            );
        }
        headers.contains_key(header::ORIGIN).then_some("requests of web pages are refused")
    }
}

fn control_response(answer: ControlAnswer) -> Response {
    match answer {
        ControlAnswer::Done(text) => named_text(StatusCode::OK, "done", &text),
        ControlAnswer::NotHeld(why) => named_text(StatusCode::NOT_FOUND, "refused", &why),
        ControlAnswer::Refused(why) => named_text(StatusCode::CONFLICT, "refused", &why),
        ControlAnswer::NotNow(why) => named_text(StatusCode::SERVICE_UNAVAILABLE, "refused", &why),
    }
}

fn named_text(status: StatusCode, name: &str, text: &str) -> Response {
    json_response(status, &json!({ name: text }))
}

async fn metrics_text(State(state): State<ApiState>) -> Response {
    let conditions = state.health.condition_statuses();
    let conditions = conditions.iter().map(|(name, condition)| (*name, condition.met));
    state.metrics.publish_health(state.health.live().ok, conditions);
    match state.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn live(State(state): State<ApiState>) -> Response {
    health_response(&state.health.live())
}

async fn ready(State(state): State<ApiState>) -> Response {
    health_response(&state.health.ready())
}

async fn state_page(State(state): State<ApiState>) -> Response {
    json_response(StatusCode::OK, &state.health.status_registry().page(&state.health))
}

fn health_response(report: &HealthReport) -> Response {
    json_response(if report.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, report)
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_string(body) {
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

    struct RunningServer {
        address: SocketAddr,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        stop: oneshot::Sender<()>,
        task: JoinHandle<Result<(), ApiError>>,
    }

    async fn start() -> RunningServer {
        let metrics = Arc::new(Metrics::new());
        let health = Arc::new(Health::new(Clock::System, Duration::from_secs(60)));
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let server = Server::bind(free, metrics.clone(), health.clone()).await.unwrap();
        let address = server.address();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve(async {
            stopped.await.ok();
        }));
        RunningServer { address, metrics, health, stop, task }
    }

    /// Sends a GET request, and returns the status line, the headers and the body of the response.
    async fn request(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn metrics_and_health_are_served() {
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
        assert!(TcpStream::connect(server.address).await.is_err(), "the server still listens");
    }

    /// Sends a POST request with the header line `origin` (may be empty), and returns the response.
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
    async fn control_requests_reach_the_loop_only_where_enabled() {
        let server = start().await;
        let off = post(server.address, "/partitions/3/retry", "").await;
        assert!(off.starts_with("HTTP/1.1 403") && off.contains("http.control = true"), "{off}");

        let health = server.health.clone();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        let bound = Server::bind(free, server.metrics.clone(), health.clone()).await.unwrap().with_control(true);
        let address = bound.address();
        tokio::spawn(bound.serve(std::future::pending()));
        let no_owner = post(address, "/partitions/3/retry", "").await;
        assert!(no_owner.starts_with("HTTP/1.1 404") && no_owner.contains("{\"refused\":\""), "{no_owner}");

        let mut requests = health.control().partitions.open();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let answer = match request.command {
                    (3, PartitionCommand::Retry) => ControlAnswer::Done("it goes on".into()),
                    (3, PartitionCommand::Pause) => ControlAnswer::NotNow("later".into()),
                    other => ControlAnswer::Refused(format!("{other:?}")),
                };
                request.answer(answer);
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
    async fn a_half_sent_request_does_not_delay_a_shutdown() {
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
