//! [`ByteBudget`]: bound of the memory that all requests hold together.
//!
//! A request reserves memory before the memory is filled: the body while it arrives, the bodies and the slots of
//! transactions before they are read. The reservation ends with the last byte of the answer. A request without room is
//! refused, and changes nothing.

use std::{
    num::NonZero,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::{FromRef, FromRequestParts},
    http::request::Parts,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tracing::Span;

use super::{
    limits::HttpLimits,
    problem::{Problem, ProblemKind},
};

/// Pause before a part of a stream asks for room again.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Bytes that all requests of a server may hold at the same time (`http.max_bytes_in_flight`). Clones share the count.
#[derive(Clone)]
pub struct ByteBudget {
    limit: u64,
    held: Arc<AtomicU64>,
    /// Large computations that may run at a time: one for each core.
    computations: Arc<Semaphore>,
}

/// Bytes that one request holds. Clones share the count; the last one to be dropped gives the bytes back.
#[derive(Clone)]
pub struct RequestBytes(Arc<RequestHold>);

struct RequestHold {
    budget: ByteBudget,
    bytes: AtomicU64,
}

impl ByteBudget {
    /// Makes a budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        ByteBudget { limit, held: Arc::default(), computations: Arc::new(Semaphore::new(cores)) }
    }

    /// Returns the bytes that all requests may hold.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes that all requests hold at the moment.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Begins a request, which holds nothing yet.
    pub fn begin_request(&self) -> RequestBytes {
        RequestBytes(Arc::new(RequestHold { budget: self.clone(), bytes: AtomicU64::new(0) }))
    }
}

impl RequestBytes {
    /// Waits until a core is free for a large computation of the request. The computation ends when the permit is
    /// dropped.
    pub async fn begin_computation(&self) -> OwnedSemaphorePermit {
        let computations = self.0.budget.computations.clone();
        computations.acquire_owned().await.unwrap_or_else(|_| unreachable!("nothing closes the semaphore"))
    }

    /// Reserves further bytes for the request.
    ///
    /// # Errors
    /// 413 where the request alone needs more than the limit, 429 where other requests hold the bytes.
    pub fn reserve(&self, bytes: u64) -> Result<(), Problem> {
        let ByteBudget { limit, held, .. } = &self.0.budget;
        let needed = self.held().saturating_add(bytes);
        if needed > *limit {
            let detail = format!(
                "the request needs {needed} bytes of memory; all requests together have {limit} \
                 (http.max_bytes_in_flight)"
            );
            return Err(Problem::new(ProblemKind::TooLarge, detail));
        }
        let fits = |held: u64| held.checked_add(bytes).filter(|held| held <= limit);
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|held| {
            let detail = format!(
                "the request needs {bytes} bytes of memory, and other requests hold {held} of {limit} \
                 (http.max_bytes_in_flight)"
            );
            Problem::new(ProblemKind::TooManyRequests, detail)
        })?;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Reserves further bytes for a part of an answer that has begun: waits for room until the limit of time.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_within(&self, bytes: u64, limit: Duration) -> Result<(), Problem> {
        let deadline = Instant::now() + limit;
        loop {
            match self.reserve(bytes) {
                Err(_) if Instant::now() < deadline && self.held().saturating_add(bytes) <= self.0.budget.limit => {
                    tokio::time::sleep(ROOM_PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Begins a part of the request, whose bytes are given back before those of the request.
    pub fn begin_part(&self) -> RequestBytes {
        self.0.budget.begin_request()
    }

    /// Keeps the bytes until this part of an answer is sent, or the client is gone.
    pub fn keep_until_part_sent(self, part: Bytes) -> Bytes {
        Bytes::from_owner(MeteredPart { part, _bytes: self })
    }

    /// Returns the bytes that all requests may hold.
    pub fn limit(&self) -> u64 {
        self.0.budget.limit
    }

    /// Keeps the bytes until the answer is sent, or the client is gone.
    pub fn keep_until_sent(self, answer: Response) -> Response {
        answer.map(|body| Body::new(MeteredBody { body, bytes: self, span: Span::current() }))
    }

    fn held(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for RequestHold {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

impl<S> FromRequestParts<S> for RequestBytes
where
    S: Send + Sync,
    HttpLimits: FromRef<S>,
{
    type Rejection = Problem;

    /// Returns the bytes of the request, which the server begins for each request of the API.
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let begun = parts.extensions.get::<RequestBytes>().cloned();
        Ok(begun.unwrap_or_else(|| HttpLimits::from_ref(state).bytes.begin_request()))
    }
}

/// Body of an answer that keeps the bytes of its request, as does each part of the answer: the connection takes a part
/// out of the body long before a slow client has received the part.
struct MeteredBody {
    body: Body,
    bytes: RequestBytes,
    /// Names the request in the log while its answer is made.
    span: Span,
}

/// Part of an answer that keeps the bytes of its request.
struct MeteredPart {
    part: Bytes,
    _bytes: RequestBytes,
}

impl AsRef<[u8]> for MeteredPart {
    fn as_ref(&self) -> &[u8] {
        &self.part
    }
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let span = self.span.clone();
        let frame = ready!(span.in_scope(|| Pin::new(&mut self.body).poll_frame(context)));
        let metered = |part| self.bytes.clone().keep_until_part_sent(part);
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(metered))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn requests_share_the_bytes_and_give_them_back() {
        let budget = ByteBudget::new(100);
        let (first, second) = (budget.begin_request(), budget.begin_request());
        first.reserve(60).unwrap();
        assert_eq!(second.reserve(41).unwrap_err().status, 429);
        second.reserve(40).unwrap();
        assert_eq!(first.reserve(41).unwrap_err().status, 413, "more than all together");
        assert_eq!(budget.held(), 100);
        let clone = first.clone();
        drop(first);
        assert_eq!(budget.held(), 100, "a clone keeps the bytes");
        drop(clone);
        assert_eq!(budget.held(), 40);
        let answer = second.keep_until_sent(Response::new(Body::from("answer")));
        assert_eq!((budget.held(), answer.body().size_hint().exact()), (40, Some(6)));
        drop(answer);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test]
    async fn a_part_that_waits_in_the_connection_keeps_the_bytes() {
        let budget = ByteBudget::new(100);
        let request = budget.begin_request();
        request.reserve(60).unwrap();
        let mut body = request.keep_until_sent(Response::new(Body::from("answer"))).into_body();
        let part = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await.unwrap().unwrap();
        drop(body);
        assert_eq!((budget.held(), part.data_ref().map(|part| &part[..])), (60, Some(&b"answer"[..])));
        drop(part);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_of_a_stream_waits_for_room() {
        let budget = ByteBudget::new(100);
        let (first, second) = (budget.begin_request(), budget.begin_request());
        first.reserve(60).unwrap();
        let limit = Duration::from_secs(5);
        assert_eq!(second.reserve_within(50, limit).await.unwrap_err().status, 429);
        let begun = Instant::now();
        assert_eq!(second.reserve_within(101, limit).await.unwrap_err().status, 413);
        assert_eq!(begun.elapsed(), Duration::ZERO, "waiting does not help");
        let freed = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(first);
        };
        let (reserved, ()) = tokio::join!(second.reserve_within(50, limit), freed);
        assert!(reserved.is_ok() && budget.held() == 50);
    }
}
