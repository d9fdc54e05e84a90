//! Limits on requests, and what each request leaves in the metrics and the log.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, FromRequestParts, MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument;

use super::{
    byte_budget::{ByteBudget, RequestBytes},
    problem::{FailureReason, Problem, ProblemKind},
};
use crate::{config::Http, rng::random_bytes, telemetry::Metrics, text::one_line};

/// Header with the id of a request; a client may choose the id.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest accepted request id of a client.
const LONGEST_REQUEST_ID: usize = 64;

/// Time in which a part of a log that was read until the deadline of its request is answered.
const SCAN_MARGIN: Duration = Duration::from_secs(1);

/// Limits of the server (`http.*`). Clones share the counts.
#[derive(Clone)]
pub struct HttpLimits {
    /// Largest body of a request, bytes.
    pub max_body: usize,
    /// Greatest distance of the height of a submitted transaction above the tip of the store.
    pub max_height_ahead: u32,
    /// Most keys of a batch request.
    pub max_batch: usize,
    /// Longest time for one request, without the wait that the request asks for.
    pub timeout: Duration,
    /// Most connections that are open at the same time.
    pub max_connections: usize,
    /// Bytes that all requests hold together.
    pub bytes: ByteBudget,
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

/// Requests that read a log from an earlier offset at the same time: each has a consumer of its own.
const MAX_SCANS: usize = 8;

impl HttpLimits {
    /// Takes the limits from the settings.
    pub fn new(http: &Http) -> Self {
        HttpLimits {
            max_body: usize::try_from(http.max_body_bytes).unwrap_or(usize::MAX),
            max_height_ahead: http.max_height_ahead,
            max_batch: http.max_batch as usize,
            timeout: Duration::from_millis(http.timeout_ms),
            max_connections: http.max_connections as usize,
            bytes: ByteBudget::new(http.max_bytes_in_flight),
            requests: Arc::new(Semaphore::new(http.max_requests as usize)),
            streams: Arc::new(Semaphore::new(http.max_streams as usize)),
            scans: Arc::new(Semaphore::new(MAX_SCANS)),
        }
    }

    /// Takes the right to keep a stream open; the right ends with the permit.
    ///
    /// # Errors
    /// 429 where as many streams are open as permitted.
    pub fn open_stream(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = self.streams.clone().try_acquire_owned();
        permit.map_err(|_| Problem::new(ProblemKind::TooManyRequests, "too many open streams (http.max_streams)"))
    }

    /// Takes the right to read a log from an earlier offset; the right ends with the permit.
    ///
    /// # Errors
    /// 429 where as many requests read the log as permitted.
    pub fn open_scan(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = self.scans.clone().try_acquire_owned();
        permit.map_err(|_| Problem::new(ProblemKind::TooManyRequests, "too many requests read the log; try again"))
    }

    /// Bounds the read of a part of a log, which ends by itself after the time of a request where the log answers.
    ///
    /// # Errors
    /// 503 a second after that time. `what`: the log.
    pub async fn bound_scan<T>(&self, what: &str, answer: impl Future<Output = T>) -> Result<T, Problem> {
        let limits = HttpLimits { timeout: self.timeout + SCAN_MARGIN, ..self.clone() };
        limits.bound(what, answer).await
    }

    /// Returns the time for which a key is read again while its node does not answer.
    pub fn read_limit(&self) -> Duration {
        self.timeout / 3
    }

    /// Bounds the read of a part of a batch by twice the time of a request: the keys of a node that is away fail after
    /// [`read_limit`](Self::read_limit) and the time limit of the store, and the others are answered.
    ///
    /// # Errors
    /// 503 after that time.
    pub async fn bound_batch<T>(&self, answer: impl Future<Output = T>) -> Result<T, Problem> {
        let limits = HttpLimits { timeout: self.timeout * 2, ..self.clone() };
        limits.bound("the store", answer).await
    }

    /// Bounds the wait for an answer to a request that may wait for something itself. `wait`: longest wait of the
    /// request.
    ///
    /// # Errors
    /// 503 after that wait and [`timeout`](Self::timeout).
    #[cfg(feature = "vault")]
    pub async fn bound_wait<T>(
        &self,
        what: &str,
        wait: Duration,
        answer: impl Future<Output = T>,
    ) -> Result<T, Problem> {
        let limits = HttpLimits { timeout: self.timeout + wait, ..self.clone() };
        limits.bound(what, answer).await
    }

    /// Bounds the wait for an answer of the store, the blob store or the log.
    ///
    /// # Errors
    /// 503 after [`timeout`](Self::timeout). `what`: who does not answer.
    pub async fn bound<T>(&self, what: &str, answer: impl Future<Output = T>) -> Result<T, Problem> {
        let answered = tokio::time::timeout(self.timeout, answer).await;
        answered.map_err(|_| Problem::unavailable(format!("{what} does not answer within {:?}", self.timeout)))
    }
}

/// Place of a request among those that are handled at the same time. Clones share the place.
#[derive(Clone, Default)]
pub struct RequestPlace(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl RequestPlace {
    /// Gives the place to another request: this one only waits from now on.
    pub fn leave(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestPlace {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<RequestPlace>().cloned().unwrap_or_default())
    }
}

/// Bounds the number of requests that are handled at the same time, and counts the bytes of each.
pub async fn limit_requests(State(limits): State<HttpLimits>, mut request: Request, next: Next) -> Response {
    match limits.requests.clone().try_acquire_owned() {
        Ok(permit) => {
            let bytes = limits.bytes.begin_request();
            let place = RequestPlace(Arc::new(Mutex::new(Some(permit))));
            request.extensions_mut().insert(bytes.clone());
            request.extensions_mut().insert(place.clone());
            let answer = next.run(request).await;
            place.leave();
            bytes.keep_until_sent(answer)
        }
        Err(_) => Problem::new(ProblemKind::TooManyRequests, "too many requests at the same time (http.max_requests)")
            .into_response(),
    }
}

/// Gives a request its id, counts and times the request, and logs a failure. Each log record that is written while the
/// request is handled, or while its answer is sent, names the request.
pub async fn observe(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = known_method(request.method());
    let id = request_id(request.headers());
    let span = tracing::error_span!("request", %id);
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, elapsed) = (response.status(), started.elapsed());
    metrics.observe_http(&route, method, status.as_u16(), elapsed);
    let why = response.extensions_mut().remove::<FailureReason>().map(|FailureReason(why)| why);
    let why = why.as_deref().map(one_line).unwrap_or_default();
    span.in_scope(|| match status.as_u16() {
        // A process that is not ready answers its probes as it should.
        503 if route.starts_with("/health/") => {
            tracing::debug!(method, route, %status, ?elapsed, "http: probe answered");
        }
        503 => tracing::warn!(method, route, %status, ?elapsed, %why, "http: request failed"),
        500.. => tracing::error!(method, route, %status, ?elapsed, %why, "http: request failed"),
        400.. => tracing::debug!(method, route, %status, ?elapsed, %why, "http: request refused"),
        _ => tracing::debug!(method, route, %status, ?elapsed, "http: request answered"),
    });
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Returns the name of a method for the metrics: a client can send any word as a method.
fn known_method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::PATCH => "PATCH",
        _ => "other",
    }
}

/// Returns the id that the client gives, or a random one.
fn request_id(headers: &HeaderMap) -> String {
    let is_valid =
        |id: &&str| (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(is_valid);
    given.map_or_else(|| random_bytes::<8>().map(hex::encode).unwrap_or_default(), str::to_owned)
}

/// Body of a request, read as a whole within the limits.
pub struct LimitedBody(pub Bytes);

impl<S> FromRequest<S> for LimitedBody
where
    S: Send + Sync,
    HttpLimits: axum::extract::FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let limits = <HttpLimits as axum::extract::FromRef<S>>::from_ref(state);
        let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
        if announced.is_some_and(|len: u64| len > limits.max_body as u64) {
            return Err(too_large(&limits));
        }
        let begun = request.extensions().get::<RequestBytes>().cloned();
        let bytes = begun.unwrap_or_else(|| limits.bytes.begin_request());
        let read = read_body(request.into_body(), &limits, &bytes);
        let slow = || format!("the body did not arrive within {:?} (http.timeout_ms)", limits.timeout);
        let read = tokio::time::timeout(limits.timeout, read).await;
        read.map_err(|_| Problem::new(ProblemKind::RequestTimeout, slow()))?.map(LimitedBody)
    }
}

/// Copies of a body that a request holds: as it came, parsed, and as the events that it becomes.
const BODY_COPIES: u64 = 3;

async fn read_body(body: Body, limits: &HttpLimits, bytes: &RequestBytes) -> Result<Bytes, Problem> {
    let mut pieces = body.into_data_stream();
    let mut whole: Vec<u8> = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Problem::bad_request(format!("cannot read the body: {error}")))?;
        let needed = whole.len() + piece.len();
        if needed > limits.max_body {
            return Err(too_large(limits));
        }
        if needed > whole.capacity() {
            // Reserved as the body comes: a client that only announces a body holds nothing.
            let capacity = needed.max(whole.capacity() * 2).min(limits.max_body);
            bytes.reserve((capacity - whole.capacity()) as u64 * BODY_COPIES)?;
            whole.reserve_exact(capacity - whole.len());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.into())
}

fn too_large(limits: &HttpLimits) -> Problem {
    let detail = format!("the body is larger than {} bytes (http.max_body_bytes)", limits.max_body);
    Problem::new(ProblemKind::TooLarge, detail)
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::{Router, middleware, routing::get};
    use futures_util::stream;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::{
        api::connections::{self, Routers},
        config::Config,
    };

    /// The log lines of this thread.
    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            io::Write::write(&mut *self.0.lock().unwrap(), bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn whatever_is_logged_of_a_failed_request_names_the_request() {
        let log = CapturedLog::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::DEBUG);
        let _guard = tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish());
        let cut = || async {
            let piece = async {
                tracing::warn!("http: cut short");
                Err::<Bytes, io::Error>(io::Error::other("cut"))
            };
            Body::from_stream(stream::once(piece))
        };
        let away = || async { Problem::unavailable("the store\nis away") };
        let router = Router::new()
            .route("/cut", get(cut))
            .route("/away", get(away))
            .route("/health/ready", get(away))
            .route("/damaged", get(|| async { Problem::new(ProblemKind::Internal, "damaged") }))
            .route("/absent", get(|| async { Problem::not_found("no such thing") }))
            .layer(middleware::from_fn_with_state(HttpLimits::new(&Config::default().http), limit_requests))
            .layer(middleware::from_fn_with_state(Arc::new(Metrics::new()), observe));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routers = Routers { all: router, probes: Router::new() };
        tokio::spawn(connections::serve(listener, None, 8, routers, std::future::pending()));
        for (number, path) in ["/cut", "/cut", "/away", "/health/ready", "/damaged", "/absent"].into_iter().enumerate()
        {
            if number > 0 {
                // Tests without a log that run beside this one may have switched the span off for the whole process.
                tracing::callsite::rebuild_interest_cache();
            }
            let mut stream = TcpStream::connect(address).await.unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: ask{path}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.read_to_end(&mut Vec::new()).await.unwrap();
        }
        let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        for (path, level, words) in [
            ("/cut", "WARN", "http: cut short"),
            ("/away", "WARN", "http: request failed"),
            ("/away", "WARN", r"why=the store\nis away"),
            ("/health/ready", "DEBUG", "http: probe answered"),
            ("/damaged", "ERROR", "why=damaged"),
            ("/absent", "DEBUG", "why=no such thing"),
        ] {
            let id = format!("request{{id=ask{path}}}");
            let is_line = |line: &str| line.contains(level) && line.contains(words) && line.contains(&id);
            assert!(text.lines().any(is_line), "{path}: {text}");
        }
    }
}
