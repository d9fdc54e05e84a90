//! [`ApiContext`]: what the routes of the API use.

use std::sync::Arc;

use axum::extract::FromRef;
use tokio::sync::watch;

use crate::{
    api::{access::AccessControl, limits::HttpLimits, problem::Problem},
    broker::Broker,
    config::{Config, Topics},
    embed::Store,
    status::{Health, health::Condition},
    store::StateStore,
};

/// Source of the store.
#[derive(Clone)]
pub enum StoreSource {
    /// A store that is open.
    Reader(StateStore),
    /// The store of an instance, which opens its store after the server has begun to answer. The store counts as open
    /// once the checks of the start have passed.
    Instance {
        /// Place of the store; `None`: not open yet.
        opened: watch::Receiver<Option<Store>>,
        /// Health of the instance.
        health: Arc<Health>,
    },
}

impl StoreSource {
    /// Returns the store for one request.
    ///
    /// # Errors
    /// 503 until the store is open and checked, and while the store does not answer its instance.
    fn get(&self) -> Result<StateStore, Problem> {
        match self {
            StoreSource::Reader(store) => Ok(store.clone()),
            StoreSource::Instance { health, .. } if health.is_unmet(Condition::StoreReachable) => {
                Err(Problem::unavailable("the store does not answer, or is not open yet"))
            }
            StoreSource::Instance { opened, .. } => match &*opened.borrow() {
                Some(store) => Ok(store.state_store().clone()),
                None => Err(Problem::unavailable("the store is not open yet")),
            },
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
    /// The log; `None`: the process has none, and answers only questions about the store.
    pub(super) broker: Option<Arc<dyn Broker>>,
    pub(super) topics: Topics,
}

impl ApiContext {
    /// Makes the context of a server.
    pub fn new(
        config: &Config,
        limits: HttpLimits,
        access: AccessControl,
        store: StoreSource,
        broker: Option<Arc<dyn Broker>>,
    ) -> Self {
        ApiContext { limits, access, store, broker, topics: config.kafka.topics.clone() }
    }

    /// Returns the store for one request.
    ///
    /// # Errors
    /// 503 while the store is not open, or does not answer.
    pub(super) fn store(&self) -> Result<StateStore, Problem> {
        self.store.get()
    }

    /// Returns the log for one request.
    ///
    /// # Errors
    /// 503 in a process without a log.
    pub(super) fn broker(&self) -> Result<Arc<dyn Broker>, Problem> {
        self.broker.clone().ok_or_else(|| Problem::unavailable("this server has no log"))
    }

    /// Returns the height of the block after the tip, which is the first that can list a spender; `None`: the store has
    /// applied no block.
    ///
    /// # Errors
    /// 503 while the store does not answer.
    pub(super) async fn next_height(&self, _store: &StateStore) -> Result<Option<u32>, Problem> {
        Ok(None)
    }

    /// Bounds the wait for an answer of the store.
    ///
    /// # Errors
    /// 503 after the time limit of a request.
    pub(super) async fn bound_store<T>(&self, answer: impl Future<Output = T>) -> Result<T, Problem> {
        self.limits.bound("the store", answer).await
    }
}

impl FromRef<ApiContext> for HttpLimits {
    fn from_ref(context: &ApiContext) -> Self {
        context.limits.clone()
    }
}
