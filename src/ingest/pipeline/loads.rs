//! Loads of bodies that are objects: one task each, beside the loop, within a bound on the bytes in memory.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use tokio::task::{JoinError, JoinHandle};

use super::chunks::{PreparationFailure, PreparedMessages};
use crate::{
    backoff::Backoff,
    blob::EventBodies,
    broker::Message,
    clock::Clock,
    prepare::{BodyLoadError, PrepareSettings, PreparedEvent, check_partition, load_body, prepare_loaded},
};

/// First and longest pause between two attempts to read an object.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// Time without a change of the memory for bodies after which one body is loaded beyond the bound: the bodies in memory
/// can all wait for it.
const STALL_MS: u64 = 1_000;

/// Body of this length or more is parsed and hashed on a thread for blocking work, bytes.
const LARGE_BODY: u64 = 1 << 20;

/// The loads of one pipeline.
#[derive(Clone)]
pub(super) struct BodyLoads {
    bodies: Option<EventBodies>,
    clock: Clock,
    memory: Arc<BodyMemory>,
    /// Most bytes of bodies in memory. Beyond the bound is one body that is alone, and in a stall one body a second.
    max_bytes: u64,
    /// Number of events that wait for their body.
    waiting: Arc<AtomicUsize>,
}

/// Memory of the bodies of one pipeline.
#[derive(Default)]
struct BodyMemory {
    /// Bytes of loaded bodies that are in memory, or are being loaded.
    held_bytes: AtomicU64,
    /// Number of bodies that took bytes, and of those that gave bytes back.
    changes: AtomicU64,
    /// Changes at the last look of the loop, and the time since which they are the same, by the steady clock.
    last_change: Mutex<(u64, u64)>,
}

impl BodyMemory {
    /// Returns whether nothing has changed for [`STALL_MS`].
    fn is_stalled(&self, now_ms: u64) -> bool {
        let mut last_change = self.last_change.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.changes.load(Relaxed);
        if last_change.0 != changes {
            *last_change = (changes, now_ms);
        }
        now_ms.saturating_sub(last_change.1) >= STALL_MS
    }
}

/// Bytes that a body takes of the bound, until the body is dropped.
struct HeldBytes {
    bytes: u64,
    memory: Arc<BodyMemory>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.memory.held_bytes.fetch_sub(self.bytes, Relaxed);
        self.memory.changes.fetch_add(1, Relaxed);
    }
}

/// A body in memory. Every slice of the body keeps the bytes in the bound.
struct HeldBody {
    body: Bytes,
    _held: HeldBytes,
}

impl AsRef<[u8]> for HeldBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// An event that waits for its body: until the memory has room, then until the body is loaded. Dropping the value ends
/// the load.
pub(super) struct BodyLoad {
    loads: BodyLoads,
    length: u64,
    state: LoadState,
    /// Time of the first failure, by the steady clock, and the last failure.
    failure: Arc<Mutex<Option<(u64, String)>>>,
}

enum LoadState {
    /// The memory has no room yet.
    Waiting(Message),
    Running(JoinHandle<PreparedMessages>),
}

impl BodyLoads {
    pub(super) fn new(bodies: Option<EventBodies>, clock: Clock, max_bytes: u64) -> Self {
        BodyLoads { bodies, clock, memory: Arc::default(), max_bytes, waiting: Arc::default() }
    }

    /// Returns whether no event waits for its body.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Relaxed) == 0
    }

    /// Lets an event wait until [`BodyLoad::begin_if_room`] begins to load its body of `length` bytes.
    pub(super) fn wait_for_room(&self, message: Message, length: u64) -> BodyLoad {
        self.waiting.fetch_add(1, Relaxed);
        BodyLoad { loads: self.clone(), length, state: LoadState::Waiting(message), failure: Arc::default() }
    }

    /// Takes the bytes of a body from the bound; `None`: the memory has no room. The body of the oldest event of a
    /// partition is also loaded where no other body is in memory, and in a stall.
    fn take_room(&self, bytes: u64, is_oldest: bool) -> Option<HeldBytes> {
        // Only the loop of the pipeline takes room; other tasks only give room back.
        let held = self.memory.held_bytes.load(Relaxed);
        let is_stalled = self.memory.is_stalled(self.clock.steady_ms());
        let has_room = held.saturating_add(bytes) <= self.max_bytes;
        if !(has_room || is_oldest && (held == 0 || is_stalled)) {
            return None;
        }
        self.memory.held_bytes.fetch_add(bytes, Relaxed);
        self.memory.changes.fetch_add(1, Relaxed);
        Some(HeldBytes { bytes, memory: self.memory.clone() })
    }
}

impl BodyLoad {
    /// Begins the load if the memory has room. `is_oldest`: the event is the oldest unfinished one of its partition,
    /// and is not left without room for long. `placed`: partition of the event and number of partitions, where the
    /// number is checked.
    pub(super) fn begin_if_room(&mut self, is_oldest: bool, settings: PrepareSettings, placed: Option<(i32, i32)>) {
        let LoadState::Waiting(message) = &self.state else { return };
        // A body above the limit is not loaded: the event halts its partition.
        let most = self.loads.bodies.as_ref().map_or(0, |bodies| bodies.limits().max_body_bytes);
        let bytes = if self.length > most { 0 } else { self.length };
        let Some(held) = self.loads.take_room(bytes, is_oldest) else { return };
        let (bodies, clock) = (self.loads.bodies.clone(), self.loads.clock.clone());
        let (message, failure) = (message.clone(), self.failure.clone());
        self.state = LoadState::Running(tokio::spawn(async move {
            let record = |why| record_failure(&failure, clock.steady_ms(), why);
            let prepared = load_and_prepare(bodies.as_ref(), settings, placed, (&message, held), record).await;
            vec![(message, prepared)]
        }));
    }

    /// Returns whether the load has not begun, because the memory has no room.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, LoadState::Waiting(_))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<PreparedMessages, JoinError>> {
        match &mut self.state {
            // The loop begins the load and polls again.
            LoadState::Waiting(_) => Poll::Pending,
            LoadState::Running(task) => Pin::new(task).poll(cx),
        }
    }

    /// Returns the time of the first failed attempt, by the steady clock, and the last reason; `None`: no attempt has
    /// failed.
    pub(super) fn failure(&self) -> Option<(u64, String)> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for BodyLoad {
    fn drop(&mut self) {
        self.loads.waiting.fetch_sub(1, Relaxed);
        if let LoadState::Running(task) = &self.state {
            task.abort();
        }
    }
}

fn record_failure(failure: &Mutex<Option<(u64, String)>>, now_ms: u64, why: String) {
    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
    let since_ms = failure.as_ref().map_or(now_ms, |(since_ms, _)| *since_ms);
    *failure = Some((since_ms, why));
}

/// Loads the body of an event, for as long as the object store takes, and prepares the event. `record`: receives the
/// reason of each failed attempt.
async fn load_and_prepare(
    bodies: Option<&EventBodies>,
    settings: PrepareSettings,
    placed: Option<(i32, i32)>,
    (message, held): (&Message, HeldBytes),
    record: impl Fn(String),
) -> Result<PreparedEvent, PreparationFailure> {
    let mut backoff = Backoff::from_key(RETRY_PAUSE, &message.key);
    let body = loop {
        match load_body(bodies, message).await {
            Ok(body) => break body,
            Err(BodyLoadError::Unavailable(why)) => {
                tracing::warn!(why, offset = message.offset, "pipeline: cannot read a body; trying again");
                record(why);
            }
            Err(BodyLoadError::Halt(why)) => return Err(PreparationFailure::Halt(why)),
            Err(BodyLoadError::Poison(poison)) => return Err(PreparationFailure::Poison(poison)),
        }
        backoff.pause().await;
    };
    let body = body.map(|body| Bytes::from_owner(HeldBody { body, _held: held }));
    let is_large = body.as_ref().is_some_and(|body| body.len() as u64 >= LARGE_BODY);
    let message = message.clone();
    let prepare = move || {
        let prepared = prepare_loaded(&settings, &message, body.as_ref())?;
        let checked = placed.map_or(Ok(()), |(partition, count)| check_partition(partition, count, &message));
        checked.map_err(|poison| poison.about(prepared.txid())).map(|()| prepared)
    };
    if !is_large {
        return prepare().map_err(PreparationFailure::Poison);
    }
    match tokio::task::spawn_blocking(prepare).await {
        Ok(prepared) => prepared.map_err(PreparationFailure::Poison),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_stall_loads_beyond_the_bound_and_one_body_at_a_time() {
        let clock = Clock::simulated(1_000_000);
        let loads = BodyLoads::new(None, clock, 100);
        let wait = async |ms| tokio::time::advance(Duration::from_millis(ms)).await;
        let large = loads.take_room(500, true).unwrap();
        assert!(loads.take_room(1, false).is_none(), "no room");
        assert!(loads.take_room(500, true).is_none(), "the memory may still empty");
        wait(STALL_MS - 1).await;
        assert!(loads.take_room(500, true).is_none());
        wait(1).await;
        assert!(loads.take_room(1, false).is_none(), "only an oldest event passes");
        let second = loads.take_room(500, true).unwrap();
        assert!(loads.take_room(500, true).is_none(), "one a second");
        drop(large);
        wait(STALL_MS - 1).await;
        assert!(loads.take_room(500, true).is_none(), "memory was given back");
        drop(second);
        assert!(loads.take_room(500, false).is_none(), "larger than the bound, and not the oldest");
        let first = loads.take_room(60, false).unwrap();
        let other = loads.take_room(40, false).unwrap();
        assert!(loads.take_room(1, true).is_none());
        drop((first, other));
        assert!(loads.take_room(500, true).is_some(), "alone");
    }
}
