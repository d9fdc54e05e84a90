//! [`AerospikeEngine`]: records in an Aerospike namespace.
//!
//! | file | content |
//! |---|---|
//! | `batch` | one call of `apply`: rows grouped by record, each group taken through its steps |
//! | `native` | operations that one request does, behind a packed filter expression |
//! | `rewrite` | every operation through the pure function, written by generation |
//! | `bins`, `packed`, `names`, `keys` | records and keys as the server stores them |
//! | `selected` | reads of parts of pages |
//! | `layout` | the bins of pages: few of them, or those of the reference system |
//! | `template` | expressions that are packed once, with holes |
//! | `index`, `scan` | queries by secondary index, scans with a cursor |
//! | `checks`, `info` | checks of a cluster before it is used |
//! | `incarnation` | the identity of the running nodes |
//! | `room` | the lack of room that nodes report |
//! | `members` | with several copies: the nodes of the present cluster, and the client that talks to them |
//! | `view`, `fence_record` | views of a cluster, and the fences that keep left-out nodes away |
//! | `cluster_hosts`, `info_connection` | info commands to all hosts, also to nodes that are in no cluster |
//! | `connection`, `settings`, `errors` | connecting to a cluster, and the classes of its errors |
//!
//! Only this module uses the client library `aerospike`.

mod batch;
mod bins;
mod checks;
mod cluster_hosts;
mod connection;
mod errors;
mod fence_record;
mod incarnation;
mod index;
mod info;
mod info_connection;
mod keys;
mod layout;
mod members;
mod names;
mod native;
mod packed;
mod rewrite;
mod room;
mod scan;
mod selected;
mod settings;
mod template;
mod view;
mod view_error;
#[cfg(test)]
mod view_model_tests;
#[cfg(test)]
mod view_tests;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ::aerospike::{BatchOperation, BatchReadPolicy, Bins, Client, IndexMap, ResultCode, Value};
use async_trait::async_trait;

use super::{
    Cursor, EngineError, Incarnation, Index, KeyPage, RecordEngine, RoomShortage, Row, RowResult, ScanPage, ScanPart,
    Set, local::closed_error,
};
use crate::record::{Key, Record, Rules, SelectedPage, Selection};
use bins::BadRecord;
use checks::CheckedCluster;
use errors::{RequestKind, damaged, engine_error};
use incarnation::IncarnationTracker;
use keys::StoreLocation;

use members::Members;
use native::NativeOperations;
use settings::Policies;

pub use connection::OpenAerospikeError;
pub use layout::Layout;
pub use settings::{Access, AerospikeSettings};

/// Records that one read request asks for, at most.
const READ_ROWS: usize = 256;
/// Time for which a start checks the nodes anew while members leave.
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two of these checks.
const START_CHECK_PAUSE: Duration = Duration::from_millis(500);

/// A store in an Aerospike namespace.
pub struct AerospikeEngine {
    cluster: ConnectedCluster,
    closed: AtomicBool,
}

/// The nodes to which requests go.
enum Nodes {
    /// Every node of the cluster.
    All(Arc<Client>),
    /// The members of the present view: nodes that were left out may have old records.
    Members(Arc<Members>),
}

/// The nodes, with the state that every request shares.
struct ConnectedCluster {
    nodes: Nodes,
    rules: Rules,
    layout: Layout,
    location: StoreLocation,
    policies: Policies,
    natives: NativeOperations,
    loss_window: Duration,
    incarnations: IncarnationTracker,
    /// Start of the jitter of calls; the process id keeps two processes from the same sequence.
    jitter_seed: u64,
    calls: AtomicU64,
    counters: GroupCounters,
}

/// Counts of groups (rows on one record), by the way that they took.
#[derive(Default)]
struct GroupCounters {
    native: AtomicU64,
    refused: AtomicU64,
    blind_writes: AtomicU64,
    reads: AtomicU64,
    lost_races: AtomicU64,
}

/// Counts of groups (rows on one record) since the engine was opened, by the way that they took.
#[cfg(feature = "testkit")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupCounts {
    /// Groups done by one native request, without a read.
    pub native: u64,
    /// Groups that a filter refused, or blind writes that met an existing record. The record was read next.
    pub refused: u64,
    /// Groups written without a read on the assumption, which was right, that the record was absent.
    pub blind_writes: u64,
    /// Records read in order to apply the pure function.
    pub reads: u64,
    /// Writes refused because another writer had changed the record since the read.
    pub lost_races: u64,
}

impl AerospikeEngine {
    /// Connects, checks the cluster, and creates the secondary indexes that are missing. Returns once all indexes can
    /// be queried.
    ///
    /// # Errors
    /// See [`OpenAerospikeError`]; each error says in one line what to do.
    pub async fn open(settings: &AerospikeSettings, rules: Rules) -> Result<Self, OpenAerospikeError> {
        let policies = Policies::new(settings);
        let nodes = match Box::pin(Members::open(settings)).await? {
            None => Nodes::All(Arc::new(connection::connect(settings).await?)),
            Some(members) => Nodes::Members(members),
        };
        let location = StoreLocation::new(&settings.namespace, &settings.set);
        let (checked, layout) = nodes.check(settings, &policies, &location).await?;
        tracing::info!(namespace = settings.namespace, set = settings.set, %layout, "aerospike: store opened");
        let cluster = ConnectedCluster {
            nodes,
            rules,
            layout,
            location,
            policies,
            natives: NativeOperations::new(layout, &rules),
            loss_window: checked.loss_window,
            incarnations: IncarnationTracker::default(),
            jitter_seed: u64::from(std::process::id()) << 32,
            calls: AtomicU64::new(0),
            counters: GroupCounters::default(),
        };
        Ok(AerospikeEngine { cluster, closed: AtomicBool::new(false) })
    }

    /// Returns the counts since the engine was opened.
    #[cfg(feature = "testkit")]
    pub fn group_counts(&self) -> GroupCounts {
        let GroupCounters { native, refused, blind_writes, reads, lost_races } = &self.cluster.counters;
        let [native, refused, blind_writes, reads, lost_races] =
            [native, refused, blind_writes, reads, lost_races].map(|counter| counter.load(Ordering::Relaxed));
        GroupCounts { native, refused, blind_writes, reads, lost_races }
    }

    fn require_open(&self, operation: &'static str) -> Result<&ConnectedCluster, EngineError> {
        if self.closed.load(Ordering::Acquire) { Err(closed_error(operation, "any")) } else { Ok(&self.cluster) }
    }
}

#[async_trait]
impl RecordEngine for AerospikeEngine {
    fn name(&self) -> &'static str {
        "aerospike"
    }

    fn layout_name(&self) -> Option<&'static str> {
        Some(self.cluster.layout.into())
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        match self.require_open("apply") {
            Ok(cluster) => cluster.apply(rows).await,
            Err(error) => vec![Err(error); rows.len()],
        }
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let cluster = match self.require_open("read") {
            Ok(cluster) => cluster,
            Err(error) => return vec![Err(error); keys.len()],
        };
        let mut records = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READ_ROWS) {
            records.extend(cluster.read(keys).await);
        }
        records
    }

    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        let cluster = match self.require_open("read") {
            Ok(cluster) => cluster,
            Err(error) => return vec![Err(error); pages.len()],
        };
        let mut selected = Vec::with_capacity(pages.len());
        for pages in pages.chunks(READ_ROWS) {
            selected.extend(cluster.read_selected(pages).await);
        }
        selected
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.require_open("query")?.query(index, from, to, limit).await
    }

    async fn query_part(
        &self,
        index: Index,
        range: (u64, u64),
        cursor: Option<Cursor>,
    ) -> Result<KeyPage, EngineError> {
        self.require_open("query")?.query_part(index, range, cursor).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.require_open("scan")?.scan(set, cursor, limit).await
    }

    async fn is_empty(&self, set: Set) -> Result<bool, EngineError> {
        self.require_open("scan")?.is_empty(set).await
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.require_open("scan")?.scan_part(Set::Transactions, part, cursor, limit).await
    }

    fn loss_window(&self) -> Duration {
        self.cluster.loss_window
    }

    fn may_lose_parts(&self) -> bool {
        true
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        let ConnectedCluster { nodes, policies, incarnations, .. } = self.require_open("incarnation")?;
        match nodes {
            Nodes::All(client) => incarnations.read(client, &policies.admin).await,
            Nodes::Members(members) => incarnations.read_view(members).await,
        }
    }

    async fn check_flushing(&self) -> Result<(), EngineError> {
        let ConnectedCluster { nodes, policies, location, incarnations, .. } = self.require_open("check flushing")?;
        incarnations.check_flushing(&nodes.client(), &policies.admin, &location.namespace).await
    }

    async fn shortages(&self) -> Result<Vec<RoomShortage>, EngineError> {
        let ConnectedCluster { nodes, policies, location, .. } = self.require_open("shortages")?;
        room::read_shortages(&nodes.client(), &policies.admin, &location.namespace).await
    }

    async fn close(&self) -> Result<(), EngineError> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let closed = match &self.cluster.nodes {
            Nodes::All(client) => client.close().await,
            Nodes::Members(members) => members.close().await,
        };
        closed.map_err(|error| engine_error("close", "store", &error, RequestKind::Read))
    }
}

impl Nodes {
    fn client(&self) -> Arc<Client> {
        match self {
            Nodes::All(client) => client.clone(),
            Nodes::Members(members) => members.client(),
        }
    }

    fn are_fenced(&self) -> bool {
        matches!(self, Nodes::Members(_))
    }

    /// Checks that the nodes fit the store, creates the indexes that are missing, and reads the layout. Where a node
    /// leaves the members meanwhile, the members that are left are checked.
    async fn check(
        &self,
        settings: &AerospikeSettings,
        policies: &Policies,
        location: &StoreLocation,
    ) -> Result<(CheckedCluster, Layout), OpenAerospikeError> {
        let started = Instant::now();
        loop {
            let client = self.client();
            let checked = async {
                let checked = checks::check(&client, settings, policies, self.are_fenced()).await?;
                checks::ensure_indexes(&client, settings, policies).await?;
                let layout = layout::read_layout(&client, settings, &policies.batch, location).await?;
                Ok((checked, layout))
            };
            match checked.await {
                Err(OpenAerospikeError::Unreachable { problem, .. })
                    if self.are_fenced() && started.elapsed() < CHECK_TIMEOUT =>
                {
                    tracing::warn!(problem, "aerospike: the members of the cluster cannot be checked; repeating");
                    tokio::time::sleep(START_CHECK_PAUSE).await;
                }
                checked => return checked,
            }
        }
    }
}

impl ConnectedCluster {
    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let policy = BatchReadPolicy::default();
        let to_read = |key: &Key| BatchOperation::read(&policy, self.location.server_key(key), Bins::All);
        self.read_rows(keys, |key| key, to_read, |key, bins| bins::decode(self.layout, key, bins)).await
    }

    async fn read_selected(&self, pages: &[(Key, Selection)]) -> Vec<Result<Option<SelectedPage>, EngineError>> {
        let policy = BatchReadPolicy::default();
        let to_read = |(key, selection): &(Key, Selection)| {
            selected::read(self.layout, &policy, self.location.server_key(key), *selection)
        };
        let decode =
            |(key, selection): &(Key, Selection), bins| bins::decode_selected(self.layout, key, *selection, bins);
        self.read_rows(pages, |(key, _)| key, to_read, decode).await
    }

    /// Sends one request for these rows and decodes the answers, in the order of the rows.
    async fn read_rows<R, T>(
        &self,
        rows: &[R],
        key_of: impl Fn(&R) -> &Key,
        to_read: impl Fn(&R) -> BatchOperation,
        decode: impl Fn(&R, IndexMap<String, Value>) -> Result<T, BadRecord>,
    ) -> Vec<Result<Option<T>, EngineError>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let mut reads: Vec<BatchOperation> = rows.iter().map(to_read).collect();
        let failed = Box::pin(self.nodes.client().batch(&self.policies.batch, &mut reads)).await.err();
        let answers = rows.iter().zip(reads).map(|(row, read)| {
            let key = key_of(row);
            let mut read = read.into_batch_record();
            if let Some(record) = read.record.take() {
                return decode(row, record.bins).map(Some).map_err(|error| damaged("read", key, error));
            }
            match read.error().or(failed.as_ref()) {
                Some(error) if error.server_result_code() == Some(ResultCode::KeyNotFoundError) => Ok(None),
                Some(error) => Err(engine_error("read", key, error, RequestKind::Read)),
                None => Err(damaged("read", key, "the server returned neither a record nor an error")),
            }
        });
        answers.collect()
    }
}
