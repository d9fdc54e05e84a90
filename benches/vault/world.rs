//! A vault over a store and a log in memory.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    broker::{Broker, NewTopic, OutgoingMessage, Producer, TopicPartition, memory::MemoryBroker},
    config::{Config, Topics},
    engine::{StoreUrl, sql::SqlAccess},
    event::{Event, PartialOutput, PartialTxEvent, Validated},
    record::StoredOutput,
    store::{outputs::OutputState, spend_status::SpendStatus},
    tx::{Outpoint, Output, TransactionBuilder, Txid},
    vault::{Asker, AskerSettings, Follower, NewScript, OutputSource, SourceError, SourceTip, Vault, VaultSettings},
};

use super::{OUTPUT, owner};

/// Outputs of one message.
const OUTPUTS_OF_A_MESSAGE: u32 = 100;

/// A store that has every output of the bench as unspent and confirmed.
#[derive(Default)]
struct AllUnspent(RwLock<HashMap<Txid, Bytes>>);

#[async_trait]
impl OutputSource for AllUnspent {
    async fn ask(&self, outpoints: &[Outpoint], _: u32) -> Vec<Result<OutputState, SourceError>> {
        let scripts = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let answer = |outpoint: &Outpoint| {
            let script = scripts.get(&outpoint.txid).cloned();
            let status = if script.is_some() { SpendStatus::Unspent } else { SpendStatus::NotFound };
            Ok(OutputState {
                outpoint: *outpoint,
                status,
                spender: None,
                utxo_hash: None,
                output: script.map(|script| StoredOutput { satoshis: OUTPUT, script }),
                mined_height: Some(100),
            })
        };
        outpoints.iter().map(answer).collect()
    }

    async fn tip(&self) -> Result<SourceTip, SourceError> {
        Ok(SourceTip { height: 200, hash: Some([1; 32]) })
    }

    async fn block_at(&self, _: u32) -> Result<Option<[u8; 32]>, SourceError> {
        Ok(Some([1; 32]))
    }
}

pub struct World {
    pub vault: Vault,
    store: Arc<AllUnspent>,
    broker: MemoryBroker,
    follower: Arc<Follower>,
    asker: Asker,
    scripts: Vec<Bytes>,
    producer: Arc<dyn Producer>,
    topic: Arc<str>,
}

fn script(number: u64) -> Bytes {
    let hash = blake3::hash(&number.to_le_bytes());
    [&[0x76, 0xa9, 20][..], &hash.as_bytes()[..20], &[0x88, 0xac]].concat().into()
}

fn topics() -> Topics {
    Config::default().kafka.topics
}

impl World {
    /// Makes a vault with this number of owners, each with one script.
    pub async fn new(url: &str, owners: u64) -> Self {
        let store = Arc::<AllUnspent>::default();
        let url: StoreUrl = url.parse().expect("the URL of a database");
        let access = SqlAccess { timeout: Duration::from_secs(60), ..SqlAccess::default() };
        let vault =
            Vault::open(&url, &access, store.clone(), VaultSettings::default()).await.expect("an empty database");
        let broker = MemoryBroker::default();
        let Topics { validated_txs, chain, outcomes, .. } = topics();
        let topic = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
        let made = [topic(validated_txs.as_str(), 3), topic(chain.as_str(), 1), topic(outcomes.as_str(), 3)];
        broker.create_topics(&made).await.expect("a log in memory takes topics");
        let follower = Arc::new(Follower {
            vault: vault.clone(),
            broker: Arc::new(broker.clone()),
            topics: topics(),
            group: "vault".into(),
            bodies: None,
            counts: Arc::default(),
        });
        follower.begin().await.expect("the topics exist");
        let scripts: Vec<Bytes> = (0..owners).map(script).collect();
        for (number, script) in (0..).zip(&scripts) {
            let script = NewScript { script: script.clone(), address: None };
            vault.watch(&owner(number), &[script]).await.expect("the script is new");
        }
        let asker = Asker::new(vault.clone(), AskerSettings::default());
        let producer = broker.producer().await.expect("a log in memory");
        let topic = topics().validated_txs.as_str().into();
        World { vault, store, broker, follower, asker, scripts, producer, topic }
    }

    async fn publish(&self, key: Txid, payload: Vec<u8>) {
        let message = OutgoingMessage {
            topic: self.topic.to_string(),
            key: Bytes::copy_from_slice(&key.0),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        self.producer.produce(message).await.expect("a log in memory takes messages");
    }

    /// Makes this number of unspent outputs, of each owner as many.
    pub async fn fill(&self, outputs: u64) {
        for number in 0..outputs / u64::from(OUTPUTS_OF_A_MESSAGE) {
            let script = &self.scripts[number as usize % self.scripts.len()];
            let txid = Txid(*blake3::hash(&number.to_le_bytes()).as_bytes());
            self.store.0.write().unwrap_or_else(std::sync::PoisonError::into_inner).insert(txid, script.clone());
            let output = |vout| PartialOutput { vout, satoshis: OUTPUT, script };
            let outputs = (0..OUTPUTS_OF_A_MESSAGE).map(output).collect();
            let event = PartialTxEvent { txid, coinbase: false, height: 1, outputs };
            self.publish(txid, Event::Seeded(event).encode()).await;
        }
        self.follow_to_the_end().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        while self.asker.ask_due().await.expect("the database answers") > 0 {}
    }

    /// Publishes payments with two outputs each, of which one output in a hundred is watched.
    pub async fn publish_payments(&self, count: u64) {
        for number in 0..count {
            let hash = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let spent = Outpoint { txid: Txid(hash), vout: 0 };
            let foreign = script(1_000_000 + number);
            let own = match number % 50 {
                0 => self.scripts[(number / 50) as usize % self.scripts.len()].clone(),
                _ => script(2_000_000_000 + number),
            };
            let previous = Output { satoshis: 3 * OUTPUT, script: &foreign };
            let transaction = TransactionBuilder::default()
                .input(spent, &[7; 107], u32::MAX, Some(previous))
                .output(OUTPUT, &own)
                .output(OUTPUT, &foreign)
                .extended();
            let payload = Validated { tx: &transaction, height: 100, locked: false }.encode();
            self.publish(Txid(hash), payload).await;
        }
    }

    /// Follows the log to its end.
    pub async fn follow_to_the_end(&self) {
        let shutdown = CancellationToken::new();
        let (follower, stop) = (self.follower.clone(), shutdown.clone());
        let following = tokio::spawn(async move { follower.run(&stop).await });
        let name = topics().validated_txs;
        let partitions: Vec<TopicPartition> =
            (0..3).map(|partition| TopicPartition { topic: name.as_str().into(), partition }).collect();
        loop {
            let committed = self.broker.committed("vault", &partitions).await.expect("a log in memory");
            let mut is_done = true;
            for (partition, committed) in partitions.iter().zip(committed) {
                let (_, end) = self.broker.watermarks(partition).await.expect("a log in memory");
                is_done &= end == 0 || committed.is_some_and(|committed| committed.offset == end);
            }
            if is_done {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shutdown.cancel();
        following.await.expect("the follower does not panic").expect("the log in memory has no error");
    }
}
