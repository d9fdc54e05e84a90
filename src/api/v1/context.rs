//! [`ApiContext`]: what the routes of the API use.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::extract::FromRef;
use tokio::{sync::watch, task::JoinError};

use super::log::LogAccess;
use crate::{
    api::{access::AccessControl, byte_budget::RequestBytes, limits::HttpLimits, problem::Problem},
    broker::Broker,
    config::{Config, Topics},
    embed::Store,
    record::BlockRecord,
    status::{Health, health::Condition},
    store::{StateStore, block_index::BlockIndex, chain::ChainInfo, queries::BlockName},
};

/// Longest age of the state of the chain that a request uses.
const CHAIN_AGE: Duration = Duration::from_secs(1);

/// Source of the store.
#[derive(Clone)]
pub enum StoreSource {
    /// A store that is open.
    Reader(Box<StateStore>),
    /// The store of an instance, which opens its store after the server has begun to answer. The store counts as open
    /// once the checks of the start have passed.
    Instance {
        /// Place of the store; `None`: not open yet.
        opened: watch::Receiver<Option<Store>>,
        /// Health of the instance.
        health: Arc<Health>,
        /// The checks of the start have passed.
        is_checked: Arc<AtomicBool>,
    },
}

impl StoreSource {
    /// Makes the source of the store that an instance opens.
    pub fn of_instance(opened: watch::Receiver<Option<Store>>, health: Arc<Health>) -> Self {
        StoreSource::Instance { opened, health, is_checked: Arc::default() }
    }

    /// Returns the store for one request.
    ///
    /// # Errors
    /// 503 until the store is open and checked. Later each request finds for itself whether the store answers.
    pub(in crate::api) fn get(&self) -> Result<StateStore, Problem> {
        match self {
            StoreSource::Reader(store) => Ok(StateStore::clone(store)),
            StoreSource::Instance { opened, health, is_checked } => {
                let is_open = is_checked.load(Ordering::Relaxed) || !health.is_unmet(Condition::StoreReachable);
                match opened.borrow().as_ref().filter(|_| is_open) {
                    Some(store) => {
                        is_checked.store(true, Ordering::Relaxed);
                        Ok(store.state_store().clone())
                    }
                    None => Err(Problem::unavailable("the store is not open yet")),
                }
            }
        }
    }
}

/// Parts that the routes of the API use. Cheap to clone.
#[derive(Clone)]
pub struct ApiContext {
    /// Limits of the server.
    pub limits: HttpLimits,
    /// Tokens and their roles.
    pub access: AccessControl,
    pub(super) store: StoreSource,
    log: Option<Arc<LogAccess>>,
    pub(super) topics: Topics,
    chain: Arc<Mutex<Option<(Instant, ChainInfo)>>>,
    blocks: BlockIndex,
}

impl ApiContext {
    /// Makes the context of a server. `broker`: the log; `None`: only questions about the store are answered.
    pub fn new(
        config: &Config,
        limits: HttpLimits,
        access: AccessControl,
        store: StoreSource,
        broker: Option<Arc<dyn Broker>>,
    ) -> Self {
        let topics = config.kafka.topics.clone();
        let log = broker.map(|broker| Arc::new(LogAccess::new(broker, config)));
        ApiContext { limits, access, store, log, topics, chain: Arc::default(), blocks: BlockIndex::default() }
    }

    /// Returns the store for one request.
    ///
    /// # Errors
    /// 503 while the store is not open, or does not answer.
    pub(in crate::api) fn store(&self) -> Result<StateStore, Problem> {
        Ok(self.store.get()?.with_read_limit(self.limits.read_limit()))
    }

    /// Returns the log of the process.
    ///
    /// # Errors
    /// 503 in a process without a log.
    pub(super) fn log(&self) -> Result<&LogAccess, Problem> {
        self.log.as_deref().ok_or_else(|| Problem::unavailable("this server has no log"))
    }

    /// Returns the state of the chain, at most a second old: each question about an output needs the height.
    ///
    /// # Errors
    /// 503 while the store does not answer.
    pub(in crate::api) async fn chain(&self, store: &StateStore) -> Result<ChainInfo, Problem> {
        let known = self.chain.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, chain)) = known.filter(|(read_at, _)| read_at.elapsed() < CHAIN_AGE) {
            return Ok(chain);
        }
        let read = self.bound_store(store.chain()).await?;
        let chain = read.map_err(|error| Problem::unavailable(error.to_string()))?;
        *self.chain.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), chain.clone()));
        Ok(chain)
    }

    /// Finds the blocks of this name, in the order of their local ids.
    ///
    /// # Errors
    /// 503 while the store does not answer, and while all block records are read for the first time.
    pub(in crate::api) async fn find_blocks(
        &self,
        store: &StateStore,
        name: BlockName,
    ) -> Result<Vec<BlockRecord>, Problem> {
        Ok(self.bound_store(self.blocks.find(store, name)).await??)
    }

    /// Returns the height of the block after the tip, which is the first that can list a spender.
    ///
    /// # Errors
    /// 503 while the store does not answer.
    pub(in crate::api) async fn next_height(&self, store: &StateStore) -> Result<u32, Problem> {
        Ok(self.chain(store).await?.height.saturating_add(1))
    }

    /// Bounds the wait for an answer of the store.
    ///
    /// # Errors
    /// 503 after the time limit of a request.
    pub(in crate::api) async fn bound_store<T>(&self, answer: impl Future<Output = T>) -> Result<T, Problem> {
        self.limits.bound("the store", answer).await
    }
}

/// Memory of a computation, bytes, from which the computation leaves the threads of the runtime: an instance works on
/// the same threads.
const BLOCKING_FROM: u64 = 1 << 20;

/// Computes an answer of `bytes` of memory; of the large ones as many at a time as the machine has cores. A computation
/// goes on after its client is gone, and keeps the reservation of the request until its end.
pub(super) async fn compute<T: Send + 'static>(
    reserved: &RequestBytes,
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes < BLOCKING_FROM {
        return work();
    }
    let held = (reserved.begin_computation().await, reserved.clone());
    let work = move || {
        let _held = held;
        work()
    };
    match tokio::task::spawn_blocking(work).await.map_err(JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and this request with it.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// Refuses a part of a batch of which no key could be read because the store does not answer: the client repeats the
/// request.
///
/// # Errors
/// The 503 of the first key.
pub(super) fn refuse_unavailable<T>(answers: &[Result<T, Problem>]) -> Result<(), Problem> {
    let unavailable =
        |answer: &Result<T, Problem>| answer.as_ref().err().filter(|problem| problem.is_unavailable()).cloned();
    match answers.first().and_then(unavailable) {
        Some(first) if answers.iter().all(|answer| unavailable(answer).is_some()) => Err(first),
        _ => Ok(()),
    }
}

impl FromRef<ApiContext> for HttpLimits {
    fn from_ref(context: &ApiContext) -> Self {
        context.limits.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::api::byte_budget::ByteBudget;

    #[tokio::test]
    async fn a_large_computation_leaves_the_thread_of_the_runtime() {
        let here = std::thread::current().id();
        let reserved = ByteBudget::new(0).begin_request();
        assert_eq!(compute(&reserved, BLOCKING_FROM - 1, || std::thread::current().id()).await, here);
        assert_ne!(compute(&reserved, BLOCKING_FROM, || std::thread::current().id()).await, here);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn large_computations_run_at_most_one_a_core() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let budget = ByteBudget::new(0);
        let running = Arc::new(AtomicUsize::new(0));
        let computations = (0..3 * cores).map(|_| {
            let (reserved, running) = (budget.begin_request(), running.clone());
            async move {
                let work = move || {
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                    now
                };
                compute(&reserved, BLOCKING_FROM, work).await
            }
        });
        let seen = futures_util::future::join_all(computations).await;
        assert!(seen.iter().all(|now| *now <= cores), "{seen:?} at a time on {cores} cores");
    }
}
