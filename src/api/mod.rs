//! HTTP: the routes of operators, and the API under `/v1` where it is served.
//!
//! | file | content |
//! |---|---|
//! | `operator` | metrics, health, the state page, control requests |
//! | `v1` | the API: questions about the store, transactions and commands for the log |
//! | `page` | the page for people at `/`, and the description of the API at `/docs` |
//! | `access`, `limits` | tokens and roles; limits of requests, and what is counted of each |
//! | `byte_budget` | the memory that all requests hold together |
//! | `connections`, `watched_stream`, `certificate` | connections, with or without TLS; slow readers |
//! | `problem` | problem documents (RFC 9457) |

pub mod access;
pub mod byte_budget;
mod certificate;
mod connections;
pub mod limits;
mod operator;
mod page;
mod problem;
pub mod v1;
mod watched_stream;

use std::{io, net::SocketAddr, path::Path, sync::Arc};

use axum::middleware;
use tokio::net::TcpListener;

use crate::{config::Http, status::Health, telemetry::Metrics};
use access::{AccessControl, TokenFileError};
use certificate::{ServerCertificate, TlsError};
use connections::Routers;
use limits::HttpLimits;
use operator::OperatorState;
use problem::{Problem, ProblemKind};
#[cfg(feature = "vault")]
use v1::VaultContext;
use v1::{ApiContext, StoreSource};

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
    /// The token file cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    /// The certificate of the server cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Tokens, certificate and limits of a server, as the settings name them.
#[derive(Clone)]
pub struct ServerSettings {
    /// Tokens and their roles.
    pub access: AccessControl,
    /// Limits of the server.
    pub limits: HttpLimits,
    certificate: Option<Arc<ServerCertificate>>,
    is_control_enabled: bool,
}

impl ServerSettings {
    /// Reads the files that the settings name.
    ///
    /// # Errors
    /// The token file or the certificate cannot be used.
    pub fn load(http: &Http) -> Result<Self, ApiError> {
        let access = match &http.tokens_file {
            Some(path) => AccessControl::from_file(Path::new(path))?,
            None => AccessControl::open(),
        };
        let certificate = match (&http.tls_certificate_file, &http.tls_key_file) {
            (Some(certificate), Some(key)) => {
                Some(Arc::new(ServerCertificate::load(Path::new(certificate), Path::new(key))?))
            }
            _ => None,
        };
        Ok(ServerSettings { access, limits: HttpLimits::new(http), certificate, is_control_enabled: http.control })
    }

    /// Returns whether clients of a server on this address send their tokens unencrypted over a network.
    fn exposes_tokens(&self, address: SocketAddr) -> bool {
        self.access.needs_token() && self.certificate.is_none() && !address.ip().is_loopback()
    }
}

/// A server that has its address; [`serve`](Self::serve) answers requests.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    settings: ServerSettings,
    operator: OperatorState,
    api: Option<ApiContext>,
    #[cfg(feature = "vault")]
    vault: Option<VaultContext>,
}

impl Server {
    /// Binds the address, without answering requests yet.
    ///
    /// # Errors
    /// [`ApiError::Listen`] with the address.
    pub async fn bind(
        address: SocketAddr,
        settings: ServerSettings,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<Self, ApiError> {
        let failed = |source| ApiError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let operator = OperatorState {
            metrics,
            health,
            is_control_enabled: settings.is_control_enabled,
            access: settings.access.clone(),
            store: None,
            limits: settings.limits.clone(),
            last_check: Default::default(),
        };
        Ok(Self {
            listener,
            address,
            settings,
            operator,
            api: None,
            #[cfg(feature = "vault")]
            vault: None,
        })
    }

    /// Names the store that `/health/ready?deep=true` checks.
    #[must_use]
    pub fn with_store(mut self, store: StoreSource) -> Self {
        self.operator.store = Some(store);
        self
    }

    /// Serves the API, too.
    #[must_use]
    pub fn with_api(self, context: ApiContext) -> Self {
        Server { api: Some(context), ..self }
    }

    /// Serves the routes of a vault, too. A server has either these or the API of a store.
    #[cfg(feature = "vault")]
    #[must_use]
    pub fn with_vault(self, context: VaultContext) -> Self {
        Server { vault: Some(context), ..self }
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
        #[cfg(feature = "vault")]
        let vault = self.vault.clone();
        let Server { listener, address, settings, operator, api, .. } = self;
        let metrics = operator.metrics.clone();
        let health = operator.health.clone();
        let probes = operator::probes(operator.clone());
        let mut router = probes.clone().merge(operator::router(operator));
        if let Some(context) = api {
            // Probes and metrics are answered however many requests the API has.
            let limit = middleware::from_fn_with_state(settings.limits.clone(), limits::limit_requests);
            let page = page::router(context.clone(), health, metrics.clone());
            router = router.merge(v1::router(context).merge(page).layer(limit));
        }
        #[cfg(feature = "vault")]
        if let Some(context) = vault {
            let limit = middleware::from_fn_with_state(settings.limits.clone(), limits::limit_requests);
            router = router.merge(v1::vault_router(context.clone()).merge(page::vault::router(context)).layer(limit));
        }
        let unknown = || async { Problem::new(ProblemKind::NotFound, "there is no such path") };
        let other_method =
            || async { Problem::new(ProblemKind::MethodNotAllowed, "the path does not take this method") };
        let max_connections = settings.limits.max_connections;
        let busy = move || async move {
            let detail = format!("{max_connections} connections are open (http.max_connections)");
            Problem::new(ProblemKind::TooManyRequests, detail)
        };
        let observe = middleware::from_fn_with_state(metrics.clone(), limits::observe);
        let routers = Routers {
            all: router.fallback(unknown).method_not_allowed_fallback(other_method).layer(observe.clone()),
            probes: probes.fallback(busy).method_not_allowed_fallback(other_method).layer(observe),
        };
        if settings.exposes_tokens(address) {
            tracing::warn!(
                %address,
                "http: tokens are sent unencrypted; set http.tls_certificate_file, or listen on loopback behind a \
                 proxy with TLS"
            );
        }
        let certificate = settings.certificate;
        let watch_certificate = async {
            match &certificate {
                Some(certificate) => certificate.clone().watch(&metrics).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            served = connections::serve(listener, certificate.as_deref(), max_connections, routers, shutdown) => {
                served.map_err(ApiError::Serve)
            }
            never = watch_certificate => match never {},
            never = settings.access.watch(&metrics) => match never {},
        }
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

    use std::time::Duration;

    use super::*;
    use crate::{
        clock::Clock,
        config::Config,
        status::control::{ControlAnswer, PartitionCommand},
    };

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
        let settings = ServerSettings::load(&Config::default().http).unwrap();
        let server = Server::bind(free, settings, metrics.clone(), health.clone()).await.unwrap();
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
        let mut settings = ServerSettings::load(&Config::default().http).unwrap();
        settings.is_control_enabled = true;
        let bound = Server::bind(free, settings, server.metrics.clone(), health.clone()).await.unwrap();
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

    #[test]
    fn tokens_over_plain_http_are_exposed_beyond_loopback() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("read {}", "0f".repeat(16))).unwrap();
        let tokens_file = Some(file.path().to_str().unwrap().to_owned());
        let open = ServerSettings::load(&Config::default().http).unwrap();
        let closed = ServerSettings::load(&Http { tokens_file, ..Config::default().http }).unwrap();
        let [loopback, any] = ["127.0.0.1:1", "0.0.0.0:1"].map(|address| address.parse().unwrap());
        assert!(closed.exposes_tokens(any) && !closed.exposes_tokens(loopback) && !open.exposes_tokens(any));
    }

    #[tokio::test]
    async fn an_occupied_address_is_named() {
        let server = start().await;
        let settings = ServerSettings::load(&Config::default().http).unwrap();
        let Err(error) = Server::bind(server.address, settings, server.metrics, server.health).await else {
            panic!("two servers on one address");
        };
        let line = crate::cli::Failure::from(error).to_string();
        assert!(line.contains(&server.address.to_string()) && line.contains("in use"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }
}
