//! A log and a store in memory that the instances of one test share, and made-up transactions.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use object_store::memory::InMemory;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobOptions, BlobStore},
    broker::{
        Broker, NewTopic, OutgoingMessage, TopicPartition,
        memory::{MemoryBroker, MemoryFaults, MemorySettings},
    },
    clock::Clock,
    engine::{RecordEngine, Set, fault::FaultEngine, memory::MemoryEngine},
    event::{Event, PartialOutput, PartialTxEvent, Validated},
    group::{
        dead_letters::DeadLetterLimits,
        missing_parent::{ChainProgress, ChainView},
        partition::PartitionLimits,
    },
    ingest::{
        dispatch::DispatchSettings,
        pipeline::{PipelineReport, PipelineSettings},
        plan::PlanSettings,
    },
    instance::{self, InstanceError, InstanceParts, InstanceSettings},
    record::{Body, Page, Record, Rules},
    sequencer::{
        PruneTask, RecoveryTask, SequencerSettings, SequencerTopics, VerdictMemory, chain_group,
        progress::CommittedProgress, state::ChainState,
    },
    status::Health,
    store::{
        StateStore, StoreSettings,
        create::{CreatorIdentity, ProcessVisibility},
        digest::{SurveyError, survey},
        into_page,
        prune::{PruneBasis, PrunePass, PruneSettings, PruneStep, PruneTerms, PruneTotals},
        restart_detector::RestartDetector,
    },
    telemetry::Metrics,
    tx::{Network, Outpoint, Transaction, Txid, UtxoHash, utxo_hash, varint},
};

use crate::{
    made_blocks::{MadeBlock, block_hash},
    model::{self, Complaint, Expected, Logs, Model},
    sim::chain_log::ChainLog,
};

pub const PARTITIONS: i32 = 3;
pub const GROUP: &str = "g";
/// The loss window of a store that can lose acknowledged writes.
pub const LOSS_WINDOW: Duration = Duration::from_secs(1);
const RETENTION: u32 = 288;
/// An era above every era that the chain reaches.
const LAST_ERA: u32 = u32::MAX >> 9;
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// A made-up transaction with its outputs.
#[derive(Clone, Debug)]
pub struct Made {
    pub txid: Txid,
    pub extended: Bytes,
    pub outputs: Vec<(u64, Vec<u8>)>,
}

impl Made {
    pub fn coin(&self, vout: u32) -> Coin {
        let (satoshis, script) = self.outputs[vout as usize].clone();
        Coin { outpoint: Outpoint { txid: self.txid, vout }, satoshis, script }
    }
}

/// An output that a transaction can spend.
#[derive(Clone, Debug)]
pub struct Coin {
    pub outpoint: Outpoint,
    pub satoshis: u64,
    pub script: Vec<u8>,
}

impl Coin {
    /// Returns the hash that the output's slot commits to.
    pub fn utxo_hash(&self) -> UtxoHash {
        utxo_hash(&self.outpoint.txid, self.outpoint.vout, &self.script, self.satoshis)
    }
}

/// Builds a transaction that spends `coins` and makes `count` outputs; `tag` makes rivals differ.
pub fn spend(coins: &[Coin], count: usize, tag: u8) -> Made {
    spend_claiming(coins, coins, count, tag)
}

/// Builds a transaction that spends `coins` and makes these outputs.
pub fn spend_to(coins: &[Coin], outputs: Vec<(u64, Vec<u8>)>, tag: u8) -> Made {
    finish(inputs_claiming(coins, coins, tag), outputs)
}

/// Builds the same transaction; its event claims that the inputs spend the outputs `claimed`.
pub fn spend_claiming(coins: &[Coin], claimed: &[Coin], count: usize, tag: u8) -> Made {
    let each = coins.iter().map(|coin| coin.satoshis).sum::<u64>() / count as u64;
    let outputs: Vec<_> = (0..count).map(|vout| (each, vec![0x51, tag, vout as u8])).collect();
    finish(inputs_claiming(coins, claimed, tag), outputs)
}

/// Builds the bytes of a transaction up to its outputs.
fn inputs_claiming(coins: &[Coin], claimed: &[Coin], tag: u8) -> Vec<u8> {
    let mut bytes = 1u32.to_le_bytes().to_vec();
    bytes.extend([0, 0, 0, 0, 0, 0xEF]);
    varint::write(&mut bytes, coins.len() as u64);
    for coin in claimed {
        bytes.extend(coin.outpoint.txid.0);
        bytes.extend(coin.outpoint.vout.to_le_bytes());
        bytes.extend([1, tag]);
        bytes.extend(u32::MAX.to_le_bytes());
        bytes.extend(coin.satoshis.to_le_bytes());
        varint::write(&mut bytes, coin.script.len() as u64);
        bytes.extend(&coin.script);
    }
    bytes
}

fn finish(mut bytes: Vec<u8>, outputs: Vec<(u64, Vec<u8>)>) -> Made {
    varint::write(&mut bytes, outputs.len() as u64);
    for (satoshis, script) in &outputs {
        bytes.extend(satoshis.to_le_bytes());
        varint::write(&mut bytes, script.len() as u64);
        bytes.extend(script);
    }
    bytes.extend(0u32.to_le_bytes());
    let txid = Transaction::parse(&bytes).unwrap().txid();
    Made { txid, extended: bytes.into(), outputs }
}

/// Builds a coinbase in standard format.
pub fn coinbase(height: u32) -> Made {
    coinbase_with(height, vec![(5_000, vec![0x51, 0xCB])])
}

/// Builds a coinbase with this number of outputs.
pub fn wide_coinbase(height: u32, outputs: usize) -> Made {
    coinbase_with(height, (0..outputs).map(|vout| (5_000, vec![0x51, 0xCB, vout as u8])).collect())
}

fn coinbase_with(height: u32, outputs: Vec<(u64, Vec<u8>)>) -> Made {
    let mut bytes = 1u32.to_le_bytes().to_vec();
    bytes.push(1);
    bytes.extend([0; 32]);
    bytes.extend(u32::MAX.to_le_bytes());
    bytes.push(4);
    bytes.extend(height.to_le_bytes());
    bytes.extend(u32::MAX.to_le_bytes());
    finish(bytes, outputs)
}

/// Puts an engine in front of another one.
pub type EngineWrapper = Arc<dyn Fn(Arc<dyn RecordEngine>) -> Arc<dyn RecordEngine> + Send + Sync>;

/// The log and the store of a test, and the settings of the instances that run on both.
#[derive(Clone)]
pub struct World {
    pub broker: MemoryBroker,
    pub clock: Clock,
    pub store: StateStore,
    /// Objects of the blob store, where the store has one.
    pub objects: Arc<InMemory>,
    /// The engine of `store`, for tests that make the store lose writes.
    pub memory: Arc<MemoryEngine>,
    /// The engine that the instances use; it injects faults in front of the store.
    pub nodes: Arc<FaultEngine>,
    pub settings: InstanceSettings,
    /// Wraps the engine of a rebuild.
    pub rebuild_engine: Option<EngineWrapper>,
    /// Times after which a rebuild is killed and resumed.
    pub rebuild_kills: Vec<Duration>,
    /// The owner token of the next instance.
    pub owners: Arc<AtomicU64>,
    /// Partitions of the topics of transactions, outcomes and dead letters.
    pub partitions: i32,
}

/// The settings in which worlds differ.
pub struct WorldSettings {
    /// Faults that the log injects.
    pub faults: MemoryFaults,
    /// Time that a group waits for a silent member.
    pub session_timeout: Duration,
    /// Rows in one batch of the pipeline.
    pub batch_size: usize,
    /// Descendants that one decision names.
    pub descendants_per_decision: usize,
    /// Events of one window.
    pub window_events: usize,
    /// Greatest size of a decision in bytes; `None`: unbounded.
    pub decision_bytes: Option<usize>,
    /// Time in which the store can lose acknowledged writes; zero: the store loses nothing.
    pub loss_window: Duration,
    /// Slots in one page.
    pub page_size: u32,
    /// Size in bytes above which a body goes to the blob store, as do the bodies of several pages; `None`: no blob
    /// store.
    pub inline_limit: Option<u64>,
    /// Retention in blocks after which due records are pruned; `None`: no pruning.
    pub prune_after: Option<u32>,
    /// Partitions of the topics of transactions, outcomes and dead letters.
    pub partitions: i32,
}

impl WorldSettings {
    /// Returns settings without any fault.
    pub fn calm() -> Self {
        WorldSettings {
            faults: MemoryFaults::default(),
            session_timeout: Duration::ZERO,
            batch_size: 16,
            descendants_per_decision: 2,
            window_events: 256,
            decision_bytes: None,
            loss_window: Duration::ZERO,
            page_size: 1_000,
            inline_limit: None,
            prune_after: None,
            partitions: PARTITIONS,
        }
    }

    /// Returns settings with pruning after this retention in blocks.
    pub fn pruned(retention: u32) -> Self {
        WorldSettings { prune_after: Some(retention), ..WorldSettings::calm() }
    }

    /// Returns settings with pages of this many slots.
    pub fn paged(page_size: u32) -> Self {
        WorldSettings { page_size, ..WorldSettings::calm() }
    }

    /// Returns the same settings with a blob store for paged bodies and for bodies of more bytes than `inline_limit`.
    pub fn with_blobs(page_size: u32, inline_limit: u64) -> Self {
        WorldSettings { inline_limit: Some(inline_limit), ..WorldSettings::paged(page_size) }
    }
}

/// A running instance.
pub struct Running {
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<PipelineReport, InstanceError>>,
    pub health: Arc<Health>,
    pub metrics: Arc<Metrics>,
}

impl World {
    pub async fn new() -> Self {
        Self::with_settings(WorldSettings::calm()).await
    }

    /// Returns a world whose sequencers handle each event alone.
    pub async fn without_windows() -> Self {
        Self::with_settings(WorldSettings { window_events: 0, ..WorldSettings::calm() }).await
    }

    /// Returns a world whose decisions have at most this many bytes.
    pub async fn with_decisions_of(bytes: usize) -> Self {
        Self::with_settings(WorldSettings { decision_bytes: Some(bytes), ..WorldSettings::calm() }).await
    }

    pub async fn with_settings(settings: WorldSettings) -> Self {
        let WorldSettings {
            faults,
            session_timeout,
            batch_size,
            descendants_per_decision,
            window_events,
            decision_bytes,
            loss_window,
            page_size,
            inline_limit,
            prune_after,
            partitions,
        } = settings;
        let rules = Rules { retention: prune_after.unwrap_or(RETENTION), network: Network::Regtest };
        let seed = faults.seed;
        let clock = Clock::simulated(1_700_000_000_000);
        let broker =
            MemoryBroker::new(MemorySettings { faults, session_timeout, ..MemorySettings::new(clock.clone()) });
        let topics = SequencerTopics {
            block_mined: "block-mined".into(),
            reorgs: "reorgs".into(),
            chain: "chain".into(),
            decisions: "decisions".into(),
            outcomes: "outcomes".into(),
            dead_letters: "dead-letters".into(),
        };
        let new = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: vec![] };
        let mut singles = ["block-mined", "reorgs", "chain", "decisions"].map(|name| new(name, 1));
        singles[3].config =
            decision_bytes.map(|most| ("max.message.bytes".to_owned(), most.to_string())).into_iter().collect();
        let many = ["txs", "outcomes", "dead-letters"].map(|name| new(name, partitions));
        broker.create_topics(&[singles.as_slice(), many.as_slice()].concat()).await.unwrap();
        let settings = InstanceSettings {
            pipeline: PipelineSettings {
                topic: "txs".into(),
                partitions: None,
                group: GROUP.into(),
                plan: PlanSettings { retry_min_ms: 5, retry_max_ms: 200, flag_grace_ms: 5_000, rules },
                dispatch: DispatchSettings { batch_size, batch_age: Duration::from_millis(2), in_flight_batches: 4 },
                max_active: 1_000,
                max_not_durable: 1_000_000,
                bounds: PartitionLimits { span: 10_000, bytes: 1 << 24 },
                bytes_in_all: 1 << 26,
                dead_letter_limits: DeadLetterLimits { consecutive: 100, ratio: 0.05 },
                missing_parent_grace_ms: 3_000,
                commit_interval: Duration::from_millis(100),
                drain_timeout: Duration::from_secs(5),
                live_outcomes: Some(Duration::from_millis(5)),
            },
            sequencer: SequencerSettings {
                prune: prune_after.map(|_| PruneTask { per_second: 10_000, pass: pruning(batch_size, false) }),
                recovery: Some(RecoveryTask {
                    interval: Duration::from_secs(10),
                    older_than: Duration::from_secs(60),
                    batch_size: 4,
                }),
                block_wait: Duration::from_secs(10),
                descendants_per_decision,
                // Each chunk but the newest is read again, in every history.
                verdict_memory: VerdictMemory { chunk_bytes: 0, settled_slots: 1 },
                window_events,
                commit_interval: Duration::from_millis(100),
                mined_outcomes: true,
            },
            topics,
            sequencer_enabled: true,
            durability_lag: None,
        };
        let memory = Arc::new(match loss_window {
            Duration::ZERO => MemoryEngine::new(rules),
            period => MemoryEngine::with_loss_window(rules, clock.clone(), period),
        });
        let nodes = Arc::new(FaultEngine::with_restarts(memory.clone(), clock.clone(), seed));
        let owners = Arc::new(AtomicU64::new(1));
        let objects = Arc::new(InMemory::new());
        let blobs = inline_limit.map(|_| BlobStore::new(objects.clone(), BlobOptions::default()));
        let mut store = store_on(memory.clone(), rules, page_size).with_blobs(blobs);
        store.settings.inline_limit = inline_limit.unwrap_or(u64::MAX);
        World {
            store,
            objects,
            owners,
            memory,
            nodes,
            broker,
            clock,
            settings,
            rebuild_engine: None,
            rebuild_kills: Vec::new(),
            partitions,
        }
    }

    /// Returns a world whose store can lose writes, by [`FaultEngine::restart_nodes`] on its `nodes` or by their
    /// faults.
    ///
    /// The first start takes two durability lags of 5 × [`LOSS_WINDOW`] each before it reads an event: the meta record
    /// must be durable, and then the sentinels. The offset of an event is committed one lag after its completion. A
    /// start that is killed within its two lags begins them again. With a paused clock none of this takes time.
    pub async fn forgetful() -> Self {
        Self::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::calm() }).await
    }

    /// Returns the same world over another engine.
    pub fn over(self, engine: Arc<dyn RecordEngine>) -> Self {
        self.beside(engine)
    }

    /// Returns a world with the same log and group over another store.
    pub fn beside(&self, engine: Arc<dyn RecordEngine>) -> Self {
        World {
            broker: self.broker.clone(),
            clock: self.clock.clone(),
            store: StateStore { engine: engine.clone(), ..self.store.clone() },
            objects: self.objects.clone(),
            memory: self.memory.clone(),
            nodes: Arc::new(FaultEngine::new(engine, 0)),
            settings: self.settings.clone(),
            owners: self.owners.clone(),
            rebuild_engine: None,
            rebuild_kills: Vec::new(),
            partitions: self.partitions,
        }
    }

    /// Returns the parts that an instance over this store is made from.
    pub fn parts(&self, store: &StateStore) -> InstanceParts {
        InstanceParts {
            broker: Arc::new(self.broker.clone()),
            store: store.clone(),
            clock: self.clock.clone(),
            metrics: Arc::new(Metrics::new()),
            health: Arc::new(Health::new(self.clock.clone(), Duration::from_secs(600))),
            earlier_halts: Arc::default(),
            store_id: [7; 16],
            identity: CreatorIdentity {
                owner: self.owners.fetch_add(1, Ordering::Relaxed),
                process_id: 1,
                hostname: "here".into(),
                process_visibility: ProcessVisibility::None,
            },
        }
    }

    /// Starts an instance.
    pub fn start(&self) -> Running {
        let shutdown = CancellationToken::new();
        let parts = self.parts(&StateStore { engine: self.nodes.clone(), ..self.store.clone() });
        let (health, metrics) = (parts.health.clone(), parts.metrics.clone());
        let run = instance::run(self.settings.clone(), parts, shutdown.clone());
        let task = tokio::spawn(async move { run.await.inspect_err(|error| eprintln!("an instance ended: {error}")) });
        Running { shutdown, task, health, metrics }
    }

    /// Rebuilds the committed events of the group into a new store.
    pub async fn rebuild(&self) -> StateStore {
        let engine = Arc::new(MemoryEngine::new(self.store.settings.rules));
        let blobs = self.store.blobs.as_ref().map(|_| BlobStore::memory());
        let store = StateStore::new(engine, self.store.settings)
            .with_blobs(blobs)
            .with_objects(self.store.objects.clone())
            .with_event_bodies(self.store.event_bodies.clone());
        let wrap = |wrap: &EngineWrapper| StateStore { engine: wrap(store.engine.clone()), ..store.clone() };
        let wrapped = self.rebuild_engine.as_ref().map(wrap);
        let parts = || self.parts(wrapped.as_ref().unwrap_or(&store));
        for after in &self.rebuild_kills {
            let rebuilding =
                tokio::spawn(instance::resume_rebuild(self.settings.clone(), parts(), CancellationToken::new()));
            tokio::time::sleep(*after).await;
            rebuilding.abort();
            if let Ok(ended) = rebuilding.await {
                ended.unwrap_or_else(|error| panic!("the rebuild ended: {error}"));
                return store;
            }
            if store.meta().await.unwrap().is_some_and(|meta| meta.rebuilder.is_some() && meta.rebuilding.is_none()) {
                return store;
            }
        }
        let rebuilt = instance::resume_rebuild(self.settings.clone(), parts(), CancellationToken::new());
        match tokio::time::timeout(Duration::from_secs(3_600), rebuilt).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => panic!("the rebuild ended: {error}\n{}", self.story(&store).await),
            Err(_) => panic!("the rebuild does not end:\n{}", self.story(&store).await),
        }
        store
    }

    /// Returns both logs of the sequencer and the transactions of both stores as text, for the analysis of a failure.
    pub async fn story(&self, rebuilt: &StateStore) -> String {
        let mut story = String::new();
        let logs = Logs::read(&self.broker, &self.settings.pipeline.topic, &self.settings.topics).await.unwrap();
        story += "validated:\n";
        for logged in logs.validated {
            let txid = <[u8; 32]>::try_from(logged.message.key.as_ref()).map(|key| Txid(key).to_string());
            story += &format!("  {:?} {}\n", logged.place(), txid.unwrap_or_default());
        }
        for topic in ["chain", "decisions"] {
            story += &format!("{topic}:\n");
            let partition = TopicPartition { topic: topic.into(), partition: 0 };
            let end = self.end(topic, 0).await;
            let mut reader = self.broker.read(&partition, 0).await.unwrap();
            while reader.position() < end {
                for message in reader.next(Duration::from_millis(1)).await.unwrap() {
                    let event = Event::decode(&message.payload).map(|event| utxo_store::event::to_json(&event));
                    story += &format!("  {} {}\n", message.offset, event.unwrap_or_else(|error| error.to_string()));
                }
            }
        }
        for (name, store) in [("live", &self.store), ("rebuilt", rebuilt)] {
            story += &format!("{name}:\n");
            let page = store.engine.scan(Set::Transactions, None, 100_000).await.unwrap();
            for (key, record) in page.records {
                let Record::Page(page) = record else { continue };
                let spenders: Vec<_> = page.utxos.iter().flatten().map(|slot| slot.spender().map(|s| s.txid)).collect();
                let fallen = if page.conflicting { " conflicting" } else { "" };
                story += &format!("  {key} {:?}{fallen} contested {:?} {spenders:?}\n", page.state(), page.contested);
            }
        }
        story
    }

    /// Runs one instance until everything is consumed, then stops it.
    pub async fn run_until_consumed(&self) -> PipelineReport {
        let running = self.start();
        self.until_consumed().await;
        running.stop().await
    }

    /// Waits until the groups have committed the end of every topic that they consume.
    pub async fn until_consumed(&self) {
        let consumed = tokio::time::timeout(Duration::from_secs(3_600), async {
            while !self.is_consumed().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        if consumed.await.is_err() {
            let positions = self.describe_positions().await;
            panic!("some topics are not consumed to the end:\n{positions}{}", self.story(&self.store).await);
        }
    }

    /// Returns the committed offset and the end of each consumed partition as text, for the analysis of a failure.
    async fn describe_positions(&self) -> String {
        let txs = (0..self.partitions).map(|partition| (GROUP.to_owned(), "txs", partition));
        let mut text = String::new();
        for (group, topic, partition) in txs.chain([(chain_group(GROUP), "chain", 0)]) {
            let at = TopicPartition { topic: topic.into(), partition };
            let committed = self.broker.committed(&group, std::slice::from_ref(&at)).await;
            text += &format!("{at}: {committed:?} of {}\n", self.end(topic, partition).await);
        }
        text
    }

    /// Returns whether the groups have committed the end of every topic that they consume.
    pub async fn is_consumed(&self) -> bool {
        let txs: Vec<_> =
            (0..self.partitions).map(|partition| TopicPartition { topic: "txs".into(), partition }).collect();
        self.caught_up(GROUP, &txs).await && self.chain_progress().view().await.unwrap() == ChainView::AtEnd
    }

    /// Returns the progress of the chain as instances know it.
    pub fn chain_progress(&self) -> CommittedProgress {
        CommittedProgress::new(Arc::new(self.broker.clone()), chain_group(GROUP), self.settings.topics.clone())
    }

    /// The sum of the offsets that the group has committed on the validated partitions.
    pub async fn committed_txs(&self) -> u64 {
        let txs: Vec<_> =
            (0..self.partitions).map(|partition| TopicPartition { topic: "txs".into(), partition }).collect();
        let committed = self.broker.committed(GROUP, &txs).await.unwrap();
        committed.into_iter().flatten().map(|committed| committed.offset).sum()
    }

    pub async fn end(&self, topic: &str, partition: i32) -> u64 {
        self.broker.watermarks(&TopicPartition { topic: topic.into(), partition }).await.unwrap().1
    }

    async fn caught_up(&self, group: &str, partitions: &[TopicPartition]) -> bool {
        let committed = self.broker.committed(group, partitions).await.unwrap();
        for (partition, committed) in partitions.iter().zip(committed) {
            if committed.map_or(0, |committed| committed.offset) < self.end(&partition.topic, partition.partition).await
            {
                return false;
            }
        }
        true
    }

    /// Produces a message as it is.
    pub async fn produce(&self, topic: &str, key: &[u8], payload: Vec<u8>) {
        let partition = (topic != "txs").then_some(0);
        let message = OutgoingMessage {
            topic: topic.into(),
            partition,
            key: Bytes::copy_from_slice(key),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        let producer = self.broker.producer().await.unwrap();
        while producer.produce(message.clone()).await.is_err() {}
    }

    /// Produces a validated transaction.
    pub async fn validate(&self, made: &Made) {
        self.validate_at(made, 200).await;
    }

    /// Produces a validated transaction that can first be in a block of this height.
    pub async fn validate_at(&self, made: &Made, height: u32) {
        let event = Validated { tx: &made.extended, height, locked: false };
        self.produce("txs", &made.txid.0, event.encode()).await;
    }

    /// Produces a validated transaction whose outputs cannot be spent yet.
    pub async fn validate_locked(&self, made: &Made) {
        let event = Validated { tx: &made.extended, height: 200, locked: true };
        self.produce("txs", &made.txid.0, event.encode()).await;
    }

    /// Produces a partial transaction with `count` outputs.
    pub async fn seed(&self, tag: u8, count: usize) -> Made {
        let made = Self::partial(tag, count);
        self.produce_partial(&made).await;
        made
    }

    /// Builds a partial transaction with `count` outputs.
    pub fn partial(tag: u8, count: usize) -> Made {
        let outputs: Vec<_> = (0..count).map(|vout| (1_000_000, vec![0x52, tag, vout as u8])).collect();
        Made { txid: Txid([tag; 32]), extended: Bytes::new(), outputs }
    }

    /// Encodes the event of a partial transaction.
    pub fn partial_event(made: &Made) -> Vec<u8> {
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
        PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() }.encode()
    }

    /// Produces a partial transaction.
    pub async fn produce_partial(&self, made: &Made) {
        self.produce("txs", &made.txid.0, Self::partial_event(made)).await;
    }

    /// Produces a block that lists these transactions.
    pub async fn mine(&self, sequence: u64, listed: &[&Made]) -> Made {
        self.mine_as(sequence as u32, sequence, listed).await
    }

    /// Produces a block under another local id.
    pub async fn mine_as(&self, block_id: u32, sequence: u64, listed: &[&Made]) -> Made {
        let coinbase = coinbase(sequence as u32);
        self.mine_with(block_id, sequence, 100 + sequence as u32, &coinbase, listed).await;
        coinbase
    }

    /// Produces a block of this height with this coinbase.
    pub async fn mine_with(&self, block_id: u32, sequence: u64, height: u32, coinbase: &Made, listed: &[&Made]) {
        let block =
            MadeBlock { previous: block_hash(sequence - 1), ..MadeBlock::new(block_id, height, coinbase, listed) };
        let block = MadeBlock { hash: block_hash(sequence), ..block };
        self.produce("block-mined", b"", block.mined(sequence, true)).await;
    }

    /// Fails unless the store breaks no invariant, equals the model, and equals a rebuild from the log.
    pub async fn check(&self, what: &str) {
        let rebuilt = self.check_without_model(what).await;
        let expected = self.expected(what).await;
        for (name, store) in [("the store", &self.store), ("the rebuild", &rebuilt)] {
            self.compare(&format!("{what}: {name}"), &expected, store).await;
        }
    }

    /// Fails as [`check`](Self::check) does, without the model; returns the rebuild. Where due records are pruned, both
    /// stores are pruned to one height first.
    pub async fn check_without_model(&self, what: &str) -> StateStore {
        self.verify(what, &self.store).await;
        let rebuilt = self.rebuild().await;
        self.verify(&format!("{what}: the rebuild"), &rebuilt).await;
        if self.prunes() {
            self.check_horizon(what).await;
            for store in [&self.store, &rebuilt] {
                self.prune_by_hand(store).await;
                self.verify(&format!("{what}: pruned by hand"), store).await;
            }
        }
        let (live, again) = (survey(&self.store, |_| {}).await.unwrap(), survey(&rebuilt, |_| {}).await.unwrap());
        if live.digest != again.digest {
            let (live, again) = (dump(&self.store).await, dump(&rebuilt).await);
            let differ: Vec<_> = live.iter().filter(|line| !again.contains(line)).collect();
            let instead: Vec<_> = again.iter().filter(|line| !live.contains(line)).collect();
            let story = self.story(&rebuilt).await;
            panic!("{what}: the rebuild differs: live {differ:#?}\nrebuilt {instead:#?}\n{story}");
        }
        let chain = async |store: &StateStore| {
            let chain = store.chain().await.unwrap();
            (chain.height, chain.hash, chain.median_time)
        };
        assert_eq!(chain(&rebuilt).await, chain(&self.store).await, "{what}: the chain of the rebuild");
        rebuilt
    }

    fn prunes(&self) -> bool {
        self.settings.sequencer.prune.is_some()
    }

    /// Returns the state of the chain as the group has committed it.
    pub async fn chain_state(&self) -> ChainState {
        let chain = [TopicPartition { topic: "chain".into(), partition: 0 }];
        let committed = self.broker.committed(&chain_group(GROUP), &chain).await.unwrap().pop().flatten();
        ChainState::from_metadata(committed.as_ref().map_or("", |committed| &committed.metadata)).unwrap()
    }

    /// Returns the greatest height that the longest chain has had.
    pub async fn highest(&self) -> u32 {
        self.chain_state().await.highest()
    }

    async fn tip(&self) -> u32 {
        self.chain_state().await.tip.map_or(0, |tip| tip.height)
    }

    /// Fails where a record due at the prune horizon is not pruned. The check is left out after a node restart and for
    /// a chain that ends lower than it did. A transaction that became conflicting when a reorg had made the chain as
    /// short as allowed may be due at that very height.
    async fn check_horizon(&self, what: &str) {
        let horizon = self.store.meta().await.unwrap().map_or(0, |meta| meta.prune_horizon);
        // A pass above the horizon may have been stopped half-way (simulator, seed 661). That pass has pruned spenders,
        // so that the slots left make their parents due.
        let is_behind = horizon < self.highest().await;
        if self.memory.restart_count() > 0 || self.tip().await < self.highest().await || is_behind {
            return;
        }
        let horizon = horizon.saturating_sub(u32::from(ChainLog::default().contents(&self.broker).await.has_reorgs()));
        let left =
            self.pass_over(&self.store, horizon, LAST_ERA, PruneSettings { dry_run: true, ..pruning(16, true) }).await;
        // An event that was read again may have extended a tombstone since.
        assert_eq!(
            left.spent + left.conflicting,
            0,
            "{what}: records due at the horizon {horizon} are not pruned: {left:?}"
        );
    }

    /// Prunes due records once everything is handled, as an operator would while no instance runs.
    pub async fn prune_by_hand(&self, store: &StateStore) {
        self.pass_over(store, self.pruned_to().await, LAST_ERA, pruning(16, true)).await;
    }

    /// Prunes at this height and in the present era; the chain goes on afterwards.
    pub async fn prune_to(&self, height: u32) {
        self.pass_over(&self.store, height, self.chain_state().await.era, pruning(16, true)).await;
    }

    /// Returns one above the greatest height. A record that was put off at that height, such as a stub whose event came
    /// later, is then looked at again.
    async fn pruned_to(&self) -> u32 {
        self.highest().await + 1
    }

    async fn pass_over(&self, store: &StateStore, height: u32, era: u32, settings: PruneSettings) -> PruneTotals {
        let retention = store.settings.rules.retention;
        let under = PruneBasis::new(PruneTerms { height, retention, committed: self.end("chain", 0).await }, era);
        let mut pass = PrunePass::new(settings, under);
        // Only this pass uses the store, so that no node restarts.
        let nodes = RestartDetector::new(store.engine.clone(), Duration::ZERO);
        loop {
            match pass.step(store, &nodes).await.unwrap() {
                PruneStep::Progressed(_) => {}
                PruneStep::Done => return pass.pruned(),
                step => panic!("pruning by hand is blocked: {step:?}"),
            }
        }
    }

    pub async fn verify(&self, what: &str, store: &StateStore) {
        let mut violations = Vec::new();
        utxo_store::store::verify::verify(store, |_| {}, |violation| violations.push(violation.to_string()))
            .await
            .unwrap();
        if !violations.is_empty() {
            panic!("{what}: {violations:#?}\n{}", self.story(store).await);
        }
    }

    /// Fails as [`check`](Self::check) does, with the rules of the model for nodes that have lost writes.
    pub async fn check_after_forgetting(&self, what: &str) {
        let rebuilt = self.check_without_model(what).await;
        let expected = self.replayed(what, Model::replay_after_forgetting).await;
        for (name, store) in [("the store", &self.store), ("the rebuild", &rebuilt)] {
            let expected = expected.clone().claiming_as(&pages_of(store).await);
            self.compare(&format!("{what}: {name}"), &expected, store).await;
        }
    }

    /// Returns the state that the model derives from the logs. Everything must have been handled.
    pub async fn expected(&self, what: &str) -> Expected {
        self.replayed(what, Model::replay).await
    }

    async fn replayed(
        &self,
        what: &str,
        replay: fn(&Logs, &model::Rules) -> Result<Expected, Vec<Complaint>>,
    ) -> Expected {
        let logs = Logs::read(&self.broker, &self.settings.pipeline.topic, &self.settings.topics).await.unwrap();
        let settings = self.store.settings;
        let rules = model::Rules {
            network: settings.network,
            utxo_batch_size: settings.utxo_batch_size,
            retention: settings.rules.retention,
            forgetful: self.memory.restart_count() > 0,
            slow: self.store.blobs.is_some()
                || self.store.can_lose_writes()
                || self.broker.generation(&self.settings.pipeline.group) > 1,
            pruned_to: if self.prunes() { Some(self.pruned_to().await) } else { None },
            partitions: PARTITIONS,
            live_outcomes: self.settings.pipeline.live_outcomes.is_some(),
            mined_outcomes: self.settings.sequencer.mined_outcomes,
        };
        match replay(&logs, &rules) {
            Ok(expected) => expected,
            Err(complaints) => {
                let lines: String = complaints.iter().map(|complaint| format!("  {complaint}\n")).collect();
                panic!("{what}: the model does not agree:\n{lines}{}", self.story(&self.store).await);
            }
        }
    }

    async fn compare(&self, what: &str, expected: &Expected, store: &StateStore) {
        let pages = pages_of(store).await;
        let complaints = expected.compare(pages.iter().map(|page| &**page));
        let digest = survey(store, |_| {}).await.unwrap().digest;
        if !complaints.is_empty() || digest != expected.digest() {
            let lines: String = complaints.iter().map(|complaint| format!("  {complaint}\n")).collect();
            panic!("{what} is not what the model expects:\n{lines}{}", self.story(store).await);
        }
    }

    /// Returns the master record.
    pub async fn page(&self, made: &Made) -> Option<Arc<Page>> {
        self.store.master(made.txid).await.unwrap()
    }

    /// Returns the number of messages in a topic.
    pub async fn count(&self, topic: &str) -> u64 {
        let mut count = 0;
        for partition in 0..self.broker.partitions(topic).await.unwrap().unwrap() {
            count += self.end(topic, partition).await;
        }
        count
    }
}

impl Running {
    /// Shuts the instance down in order.
    pub async fn stop(self) -> PipelineReport {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap()
    }

    /// Waits until the instance ends by itself.
    pub async fn ended(self) -> Result<PipelineReport, InstanceError> {
        self.task.await.unwrap()
    }

    /// Aborts the instance at whatever await it has reached.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Returns every page with its body, read from the blob store where the body is external.
pub async fn pages_of(store: &StateStore) -> Vec<Arc<Page>> {
    let scanned = store.engine.scan(Set::Transactions, None, 1_000_000).await.unwrap();
    let mut pages: Vec<Arc<Page>> =
        scanned.records.into_iter().filter_map(|(_, record)| into_page(Some(record))).collect();
    for page in pages.iter_mut().filter(|page| matches!(page.body(), Some(Body::External(_)))) {
        let body = store.body(page).await.unwrap().into_owned();
        Arc::make_mut(page).master.as_mut().unwrap().body = Some(body);
    }
    pages
}

/// Returns the transactions that the digest covers, one line each.
pub async fn dump(store: &StateStore) -> Vec<String> {
    let mut lines = Vec::new();
    let dumped = utxo_store::store::dump::dump::<SurveyError>(store, |tx| {
        lines.push(serde_json::to_string(&tx).unwrap());
        Ok(())
    });
    dumped.await.unwrap();
    lines
}

/// Returns settings under which tombstones soon shrink to names, so that repeated events meet shrunken tombstones too.
fn pruning(step: usize, alone: bool) -> PruneSettings {
    PruneSettings { keep_tombstones: Some(2), step_size: step, dry_run: false, is_exclusive: alone }
}

fn store_on(engine: Arc<dyn RecordEngine>, rules: Rules, page_size: u32) -> StateStore {
    let settings = StoreSettings {
        network: Network::Regtest,
        rules,
        utxo_batch_size: page_size,
        batch_size: 16,
        concurrency: 4,
        retry_pause: PAUSE,
        inline_limit: u64::MAX,
    };
    StateStore::new(engine, settings)
}
