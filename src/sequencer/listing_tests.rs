//! Tests of large blocks: a chunk has four transactions here.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use object_store::{ObjectStoreExt, memory::InMemory, path::Path};
use sha2::{Digest, Sha256};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::{
    blob::{
        BlobOptions,
        fault::{BlobFaults, FaultStore},
    },
    broker::{BrokerError, Delivery, Message, OutgoingMessage, Producer, TopicPartition},
    engine::{self, fault::FaultEngine},
    event::{BlockMined, Event, OutcomeBatch, OutcomeChange},
    liveness::{LivenessLimits, LivenessMonitor},
    record::{Key, Operation, Phase, Record, Sequenced, Stamp},
    sequencer::{
        SequencerParts, block::put_block, decisions::DecisionLog, handler::Handler, state::ChainState,
        steps::DecisionMode, tests::parts,
    },
    store::{StateStore, testing},
};

const KEY: &str = "blocks/1/1.subtree";
const LONG: Duration = Duration::from_secs(60);

/// A block of ten transactions: three are listed in the event, seven in an object.
struct Bench {
    parts: SequencerParts,
    objects: Arc<InMemory>,
    content: Vec<u8>,
    event: Bytes,
}

fn ids(of: std::ops::Range<u8>) -> Vec<u8> {
    of.flat_map(|n| [n; 32]).collect()
}

impl Bench {
    async fn new() -> Self {
        let (objects, parts) = (Arc::new(InMemory::new()), parts().await);
        let read = Objects::new(objects.clone(), &BlobOptions::default());
        let parts = SequencerParts { store: parts.store.clone().with_objects(Some(read)), ..parts };
        let (inline, content) = (ids(1..4), ids(4..11));
        let sha256 = Sha256::digest(&content).into();
        let subtrees = vec![
            Subtree { count: 3, transactions: SubtreeTransactions::Inline(&inline) },
            Subtree { count: 7, transactions: SubtreeTransactions::Object { key: KEY, sha256 } },
        ];
        let coinbase = testing::coinbase(5_000);
        let block = Block {
            block_id: 1,
            hash: [1; 32],
            previous: [0; 32],
            height: 100,
            time: 5,
            longest_chain: true,
            coinbase: &coinbase,
            subtrees,
        };
        let event = Event::BlockMined(BlockMined { sequence: 1, block }).encode().into();
        Bench { parts, objects, content, event }
    }

    /// Makes the same block a block of a side chain.
    fn on_side_chain(self) -> Self {
        let Ok(Event::BlockMined(mined)) = Event::decode(&self.event) else { panic!("no block") };
        let block = Block { longest_chain: false, ..mined.block };
        let event = Event::BlockMined(BlockMined { block, ..mined }).encode().into();
        Bench { event, ..self }
    }

    async fn put(&self, content: &[u8]) {
        self.objects.put(&Path::from(KEY), content.to_vec().into()).await.unwrap();
    }

    async fn plant(&self, ids: impl Iterator<Item = u8>) {
        for id in ids {
            self.parts.store.plant(testing::seeded(id, 1)).await;
        }
    }

    /// Handles the block as the event at this offset of the chain. Returns whether the block counts as handled.
    fn handle(&self, offset: u64) -> JoinHandle<Result<bool, SequencerError>> {
        let (parts, event) = (self.parts.clone(), self.event.clone());
        tokio::spawn(async move {
            let topic = parts.topics.decisions.clone();
            let log = DecisionLog::open(parts.broker.clone(), parts.producer.clone(), &topic, 0, offset).await;
            let mut log = log.unwrap().with_parts(&parts);
            let message = Message { offset, timestamp_ms: 0, key: Bytes::new(), payload: event, headers: vec![] };
            let mut handler = Handler::new(parts, ChainState::default());
            handler.handle(&mut log, DecisionMode::Live, &message).await?;
            Ok(handler.state.sequence == 1)
        })
    }

    async fn handled(&self, offset: u64) {
        assert!(timeout(LONG, self.handle(offset)).await.unwrap().unwrap().unwrap());
    }

    async fn progress(&self) -> Option<u64> {
        match self.parts.store.read(vec![Key::Block(1)]).await.unwrap().remove(0) {
            Some(Record::Block(block)) => Some(block.progress),
            _ => None,
        }
    }

    fn ready(&self) -> String {
        format!("{:?}", self.parts.health.ready().reasons)
    }
}

/// Returns the subtree in which a transaction is mined by block 1.
async fn mined_in(store: &StateStore, id: u8) -> Option<u32> {
    let master = store.master(Txid([id; 32])).await.unwrap()?.master.clone()?;
    master.mined.iter().find(|mined| mined.block_id == 1).map(|mined| mined.subtree)
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_block_continues_and_another_connection_of_it_starts_anew() {
    let bench = Bench::new().await;
    bench.put(&bench.content).await;
    bench.plant((1..11).filter(|id| *id != 9)).await;
    let waiting = bench.handle(5);
    tokio::time::sleep(LONG).await;
    assert!(bench.ready().contains(&Txid([9; 32]).to_string()), "{}", bench.ready());
    waiting.abort();
    // Three of the event, four of the object, and the coinbase.
    assert_eq!(bench.progress().await, Some(8));
    let again = async |offset: u64| {
        let stamp = Stamp::in_era(0, offset, Phase::Apply);
        let unset = Operation::Sequenced(stamp, Sequenced::UnsetMined { block_id: 1, height: 100 });
        bench.parts.store.must_apply(Key::master(Txid([2; 32])), unset).await;
        bench.handled(offset).await;
        mined_in(&bench.parts.store, 2).await
    };
    bench.plant([9].into_iter()).await;
    assert_eq!(again(5).await, None, "a finished transaction is not set mined again");
    let mut subtrees = Vec::new();
    for id in 3..11 {
        subtrees.push(mined_in(&bench.parts.store, id).await.unwrap());
    }
    assert_eq!((bench.progress().await, subtrees), (Some(11), vec![0, 1, 1, 1, 1, 1, 1, 1]));
    bench.handled(6).await;
    assert_eq!(mined_in(&bench.parts.store, 2).await, Some(0), "progress of another event does not count");
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_side_chain_block_continues() {
    let bench = Bench::new().await.on_side_chain();
    bench.put(&bench.content).await;
    bench.plant(1..11).await;
    bench.handled(5).await;
    assert_eq!(bench.progress().await, Some(11));
    let Ok(Event::BlockMined(mined)) = Event::decode(&bench.event) else { panic!("no block") };
    let handler = Handler::new(bench.parts.clone(), ChainState::default());
    for (offset, first) in [(6, None), (7, Some(0))] {
        let cx = handler.context(offset, DecisionMode::Live);
        for id in 1..11 {
            let unset = Sequenced::UnsetMined { block_id: 1, height: 100 };
            let row = cx.row(Phase::Apply, Key::master(Txid([id; 32])), unset);
            bench.parts.store.apply(vec![row]).await.unwrap();
        }
        // The record after the coinbase and the first three transactions, of this event or of another one.
        let begun = put_block(&HandlerContext { offset: 6, ..cx }, &mined.block, false, 4);
        bench.parts.store.must_apply(begun.key, begun.operation).await;
        bench.handled(offset).await;
        let subtrees = [mined_in(&bench.parts.store, 2).await, mined_in(&bench.parts.store, 10).await];
        assert_eq!((bench.progress().await, subtrees), (Some(11), [first, Some(1)]), "{offset}");
    }
}

/// A crash never leaves a progress greater than the number of transactions set mined.
#[tokio::test(start_paused = true)]
async fn progress_of_a_side_chain_block_is_written_after_its_transactions() {
    let bench = Bench::new().await.on_side_chain();
    bench.put(&bench.content).await;
    bench.plant(1..11).await;
    let store = bench.parts.store.clone();
    let engine = FaultEngine::new(store.engine.clone(), 1);
    engine.set(engine::fault::EngineFaults {
        delayed: 1.0,
        delay_within: Duration::from_millis(20),
        ..engine::fault::EngineFaults::default()
    });
    let slow = StateStore { engine: Arc::new(engine), ..store.clone() };
    let bench = Bench { parts: SequencerParts { store: slow, ..bench.parts.clone() }, ..bench };
    let handled = bench.handle(5);
    let mut seen = BTreeSet::new();
    while !handled.is_finished() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let Some(Record::Block(block)) = store.read(vec![Key::Block(1)]).await.unwrap().remove(0) else { continue };
        seen.insert(block.progress);
        for id in 1..block.progress as u8 {
            assert!(mined_in(&store, id).await.is_some(), "{id} of {}", block.progress);
        }
    }
    assert_eq!(seen, [1, 4, 8, 11].into());
}

#[tokio::test(start_paused = true)]
async fn an_absent_object_is_waited_for_by_name() {
    let bench = Bench::new().await;
    bench.plant(1..11).await;
    let waiting = bench.handle(0);
    tokio::time::sleep(LONG).await;
    assert!(bench.ready().contains(&format!("object `{KEY}` does not exist")), "{}", bench.ready());
    assert_eq!(bench.progress().await, None);
    bench.put(&bench.content).await;
    assert!(waiting.await.unwrap().unwrap());
    assert_eq!((bench.progress().await, mined_in(&bench.parts.store, 10).await), (Some(11), Some(1)));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_object_halts_the_chain_before_the_first_write() {
    for (content, why) in [(ids(4..10), "192 bytes are not 7 transaction ids"), (ids(14..21), "its SHA-256 is")] {
        let bench = Bench::new().await;
        bench.plant(1..11).await;
        bench.put(&content).await;
        let halted = bench.handle(0).await.unwrap().unwrap_err();
        let names = |message: &String| message.contains(KEY) && message.contains(why);
        assert!(matches!(&halted, SequencerError::Halt(message) if names(message)), "{halted}");
        assert_eq!((bench.progress().await, mined_in(&bench.parts.store, 1).await), (None, None));
    }
    let bench = Bench::new().await;
    let store = bench.parts.store.clone().with_objects(None);
    let bench = Bench { parts: SequencerParts { store, ..bench.parts.clone() }, ..bench };
    let halted = bench.handle(0).await.unwrap().unwrap_err();
    assert!(halted.to_string().contains("set objects.url or sequencer.objects_url"), "{halted}");
}

#[tokio::test(start_paused = true)]
async fn an_object_cut_short_is_read_again_from_its_beginning() {
    for seed in 0..20 {
        let bench = Bench::new().await;
        bench.plant(1..11).await;
        bench.put(&bench.content).await;
        let faulty = FaultStore::new(bench.objects.clone(), seed);
        faulty.set(BlobFaults { cut_short: 0.4, lost_request: 0.2, ..BlobFaults::default() });
        let objects = Objects::new(Arc::new(faulty), &BlobOptions::default());
        let store = bench.parts.store.clone().with_objects(Some(objects));
        let bench = Bench { parts: SequencerParts { store, ..bench.parts.clone() }, ..bench };
        bench.handled(0).await;
        for id in 1..11 {
            assert_eq!(mined_in(&bench.parts.store, id).await, Some(u32::from(id > 3)), "{id}, {seed}");
        }
    }
}

/// A worker that reads an object for minutes does not count as stalled.
#[tokio::test(start_paused = true)]
async fn the_worker_beats_while_an_object_is_read() {
    let bench = Bench::new().await;
    bench.plant(1..11).await;
    bench.put(&bench.content).await;
    let slow = FaultStore::new(bench.objects.clone(), 1);
    slow.set(BlobFaults { slow: 1.0, slow_within: Duration::from_secs(600), ..BlobFaults::default() });
    let options = BlobOptions { timeout: Duration::from_secs(3_600), ..BlobOptions::default() };
    let store = bench.parts.store.clone().with_objects(Some(Objects::new(Arc::new(slow), &options)));
    let limits = LivenessLimits { beat: Some(Duration::from_secs(120)), progress: Duration::from_secs(600) };
    let liveness = LivenessMonitor::new(bench.parts.clock.clone(), limits);
    let parts =
        SequencerParts { store, monitor: Some(liveness.watch_loop("the chain's worker")), ..bench.parts.clone() };
    let bench = Bench { parts, ..bench };
    let handled = bench.handle(0);
    let (began, mut longest) = (tokio::time::Instant::now(), Duration::ZERO);
    while !handled.is_finished() {
        tokio::time::sleep(Duration::from_millis(500)).await;
        longest = liveness.loops().iter().map(|stalled| stalled.since).fold(longest, Duration::max);
    }
    assert!(handled.await.unwrap().unwrap());
    assert!(began.elapsed() > Duration::from_secs(120) && longest < Duration::from_secs(15), "{longest:?}");
}

/// A producer whose topic of outcomes acknowledges nothing.
struct WithoutOutcomes(Arc<dyn Producer>);

#[async_trait::async_trait]
impl Producer for WithoutOutcomes {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        self.0.produce(message).await
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        match messages.iter().any(|message| message.topic == "outcomes") {
            true => std::future::pending().await,
            false => self.0.produce_all(messages).await,
        }
    }
}

/// Returns the transactions that are published as mined in block 1, by their first byte, without the coinbase.
async fn published_as_mined(parts: &SequencerParts) -> BTreeSet<u8> {
    let outcomes = TopicPartition { topic: "outcomes".into(), partition: 0 };
    let (_, end) = parts.broker.watermarks(&outcomes).await.unwrap();
    let mut reader = parts.broker.read(&outcomes, 0).await.unwrap();
    let mut mined = BTreeSet::new();
    while reader.position() < end {
        for message in reader.next(LONG).await.unwrap() {
            let Ok(Event::OutcomeBatch(OutcomeBatch { change: OutcomeChange::Mined { block_id: 1, .. }, txids })) =
                Event::decode(&message.payload)
            else {
                panic!("not mined in block 1")
            };
            mined.extend(txids.iter().filter(|txid| *txid == Txid([txid.0[0]; 32])).map(|txid| txid.0[0]));
        }
    }
    mined
}

/// A repeat continues after the progress: outcomes of the transactions before would be lost.
#[tokio::test(start_paused = true)]
async fn no_progress_of_a_block_is_recorded_before_its_outcomes() {
    let bench = Bench::new().await;
    bench.put(&bench.content).await;
    bench.plant(1..11).await;
    let producer = Arc::new(WithoutOutcomes(bench.parts.producer.clone()));
    let cut_off = Bench { parts: SequencerParts { producer, ..bench.parts.clone() }, ..bench };
    let waiting = cut_off.handle(5);
    tokio::time::sleep(LONG).await;
    waiting.abort();
    assert_eq!((cut_off.progress().await, mined_in(&cut_off.parts.store, 1).await), (Some(1), Some(0)));
    let producer = cut_off.parts.broker.producer().await.unwrap();
    let bench = Bench { parts: SequencerParts { producer, ..cut_off.parts.clone() }, ..cut_off };
    bench.handled(5).await;
    assert_eq!(published_as_mined(&bench.parts).await, (1..11).collect());
}
