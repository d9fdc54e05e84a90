//! [`AerospikeEngine`]: the state's home in production.
//!
//! | file | what it does |
//! |---|---|
//! | `batch` | a call of `apply`: rows grouped by record, each group taken through its steps |
//! | `native` | the operations that one request does, behind a packed filter expression |
//! | `rewrite` | every operation through the pure function, written by compare-and-set |
//! | `bins`, `packed`, `names`, `keys` | records and keys as the server stores them |
//! | `template` | expressions that are packed once, with holes |
//! | `index`, `scan` | queries by secondary index, scans with a cursor |
//! | `checks`, `info` | what must be true of a cluster before it is used |
//! | `incarnation` | whether a node has restarted since |
//! | `connection`, `settings`, `errors` | reaching it, and what its errors let the caller do |
//!
//! This is the only place that names the client.

mod batch;
mod bins;
mod checks;
mod connection;
mod errors;
mod incarnation;
mod index;
mod info;
mod keys;
mod names;
mod native;
mod packed;
mod rewrite;
mod scan;
mod settings;
mod template;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use ::aerospike::{BatchOperation, BatchReadPolicy, Bins, Client, ResultCode};
use async_trait::async_trait;

use super::{Cursor, EngineError, Incarnation, Index, RecordEngine, Row, ScanPage, Set, local::closed};
use crate::record::{Key, Outcome, Record, Rules};
use errors::{Sent, damaged, engine_error};
use incarnation::Lives;
use keys::Place;
use native::Natives;
use settings::Policies;

pub use connection::OpenAerospikeError;
pub use settings::{Access, AerospikeSettings};

/// Records read by one request.
const READ_ROWS: usize = 256;

/// A store in an Aerospike namespace.
pub struct AerospikeEngine {
    inner: Inner,
    closed: AtomicBool,
}

/// What every request needs.
struct Inner {
    client: Arc<Client>,
    rules: Rules,
    place: Place,
    policies: Policies,
    natives: Natives,
    may_forget: Duration,
    lives: Lives,
    /// Where the jitter of calls starts: another place in each process.
    seed: u64,
    calls: AtomicU64,
    work: Counters,
}

/// How often each way was gone, in groups of rows on one record.
#[derive(Default)]
struct Counters {
    native: AtomicU64,
    refused: AtomicU64,
    unread: AtomicU64,
    read: AtomicU64,
    lost: AtomicU64,
}

/// What the operations of an engine came to, in groups of rows on one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Done by one request, without a read.
    pub native: u64,
    /// Refused by a filter, or there although taken to be absent, and so looked at.
    pub refused: u64,
    /// Written on the assumption that the record was absent, which it was.
    pub unread: u64,
    /// Read, and given to the pure function.
    pub read: u64,
    /// Written too late: somebody else had changed the record since it was read.
    pub lost: u64,
}

impl AerospikeEngine {
    /// Connects, checks the cluster and sees to it that the secondary indexes are there and ready.
    ///
    /// # Errors
    /// See [`OpenAerospikeError`]; each says in one line what to do.
    pub async fn open(settings: &AerospikeSettings, rules: Rules) -> Result<Self, OpenAerospikeError> {
        let client = Arc::new(connection::connect(settings).await?);
        let policies = Policies::new(settings);
        let checked = checks::check(&client, settings, &policies).await?;
        let inner = Inner {
            client,
            rules,
            place: Place::new(&settings.namespace, &settings.set),
            policies,
            natives: Natives::new(&rules),
            may_forget: checked.may_forget,
            lives: Lives::default(),
            seed: u64::from(std::process::id()) << 32,
            calls: AtomicU64::new(0),
            work: Counters::default(),
        };
        Ok(AerospikeEngine { inner, closed: AtomicBool::new(false) })
    }

    /// What there was to do so far.
    pub fn work(&self) -> Work {
        let Counters { native, refused, unread, read, lost } = &self.inner.work;
        let [native, refused, unread, read, lost] =
            [native, refused, unread, read, lost].map(|counter| counter.load(Ordering::Relaxed));
        Work { native, refused, unread, read, lost }
    }

    fn open_inner(&self, operation: &'static str) -> Result<&Inner, EngineError> {
        if self.closed.load(Ordering::Acquire) { Err(closed(operation, "any")) } else { Ok(&self.inner) }
    }
}

#[async_trait]
impl RecordEngine for AerospikeEngine {
    fn name(&self) -> &'static str {
        "aerospike"
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        match self.open_inner("apply") {
            Ok(inner) => inner.apply(rows).await,
            Err(error) => vec![Err(error); rows.len()],
        }
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let inner = match self.open_inner("read") {
            Ok(inner) => inner,
            Err(error) => return vec![Err(error); keys.len()],
        };
        let mut records = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READ_ROWS) {
            records.extend(inner.read(keys).await);
        }
        records
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.open_inner("query")?.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.open_inner("scan")?.scan(set, cursor, limit).await
    }

    fn may_forget(&self) -> Duration {
        self.inner.may_forget
    }

    fn may_lose_parts(&self) -> bool {
        true
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        let Inner { client, policies, place, lives, .. } = self.open_inner("incarnation")?;
        lives.ask(client, &policies.admin, &place.namespace).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let ended = self.inner.client.close().await;
        ended.map_err(|error| engine_error("close", "store", &error, Sent::Read))
    }
}

impl Inner {
    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let policy = BatchReadPolicy::default();
        let row = |key| Ok(BatchOperation::read(&policy, self.place.server_key(key)?, Bins::All));
        let rows: Result<Vec<BatchOperation>, ::aerospike::Error> = keys.iter().map(row).collect();
        let mut rows = match rows {
            Ok(rows) if rows.is_empty() => return Vec::new(),
            Ok(rows) => rows,
            Err(error) => return vec![Err(engine_error("read", "any", &error, Sent::Read)); keys.len()],
        };
        let failed = Box::pin(self.client.batch(&self.policies.batch, &mut rows)).await.err();
        let answers = keys.iter().zip(rows).map(|(key, row)| {
            let mut row = row.into_batch_record();
            if let Some(record) = row.record.take() {
                return bins::decode(key, record.bins).map(Some).map_err(|error| damaged("read", key, error));
            }
            match row.error().or(failed.as_ref()) {
                Some(error) if error.server_result_code() == Some(ResultCode::KeyNotFoundError) => Ok(None),
                Some(error) => Err(engine_error("read", key, error, Sent::Read)),
                None => Err(damaged("read", key, "a read answered nothing")),
            }
        });
        answers.collect()
    }
}
