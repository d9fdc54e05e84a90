//! A store that a test writes by hand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use utxo_store::{
    broker::{Broker, NewTopic, OutgoingMessage, memory::MemoryBroker},
    config::{Config, Topics},
    event::{Event, PartialOutput, PartialTxEvent},
    record::StoredOutput,
    store::{outputs::OutputState, spend_status::SpendStatus},
    tx::Outpoint,
    vault::{Asker, AskerSettings, Follower, OutputSource, SourceError, SourceTip, Vault},
};

use super::{new_script, owner, script};

/// A store without records: answers what the test has set.
#[derive(Default)]
pub struct FakeStore {
    state: Mutex<FakeState>,
}

#[derive(Default)]
struct FakeState {
    outputs: BTreeMap<Outpoint, OutputState>,
    chain: Vec<(u32, [u8; 32])>,
    is_away: bool,
}

impl FakeStore {
    /// Sets an output of the script of a name.
    pub fn put(&self, outpoint: Outpoint, name: &str, satoshis: u64, height: Option<u32>) {
        let output = StoredOutput { satoshis, script: script(name).into() };
        let state = OutputState {
            outpoint,
            status: SpendStatus::Unspent,
            spender: None,
            utxo_hash: None,
            output: Some(output),
            mined_height: height,
        };
        self.state.lock().unwrap().outputs.insert(outpoint, state);
    }

    /// Changes an output.
    pub fn change(&self, outpoint: Outpoint, change: impl FnOnce(&mut OutputState)) {
        change(self.state.lock().unwrap().outputs.get_mut(&outpoint).unwrap());
    }

    /// Makes a block of this hash the tip.
    pub fn set_tip(&self, height: u32, hash: u8) {
        let mut state = self.state.lock().unwrap();
        state.chain.retain(|(known, _)| *known < height);
        state.chain.push((height, [hash; 32]));
    }

    pub fn set_away(&self, is_away: bool) {
        self.state.lock().unwrap().is_away = is_away;
    }
}

#[async_trait]
impl OutputSource for FakeStore {
    async fn ask(&self, outpoints: &[Outpoint], _: u32) -> Vec<Result<OutputState, SourceError>> {
        let state = self.state.lock().unwrap();
        let answer = |outpoint: &Outpoint| {
            if state.is_away {
                return Err(SourceError("it is away".to_owned()));
            }
            Ok(state.outputs.get(outpoint).cloned().unwrap_or(OutputState {
                outpoint: *outpoint,
                status: SpendStatus::NotFound,
                spender: None,
                utxo_hash: None,
                output: None,
                mined_height: None,
            }))
        };
        outpoints.iter().map(answer).collect()
    }

    async fn tip(&self) -> Result<SourceTip, SourceError> {
        let state = self.state.lock().unwrap();
        if state.is_away {
            return Err(SourceError("it is away".to_owned()));
        }
        let (height, hash) = state.chain.last().map_or((0, None), |(height, hash)| (*height, Some(*hash)));
        Ok(SourceTip { height, hash })
    }

    async fn block_at(&self, height: u32) -> Result<Option<[u8; 32]>, SourceError> {
        let state = self.state.lock().unwrap();
        Ok(state.chain.iter().find(|(known, _)| *known == height).map(|(_, hash)| *hash))
    }
}

/// A vault over a store of a test, with a log in memory from which the vault learns of outputs.
pub struct FakeWorld {
    pub store: Arc<FakeStore>,
    pub broker: MemoryBroker,
    pub vault: Vault,
    pub follower: Arc<Follower>,
    pub asker: Arc<Asker>,
}

pub fn topics() -> Topics {
    let name = |text: &str| text.parse().unwrap();
    Topics {
        validated_txs: name("txs"),
        chain: name("chain"),
        outcomes: name("outcomes"),
        ..Config::default().kafka.topics
    }
}

impl FakeWorld {
    /// Makes a vault in this database that watches a script of each name, for an owner of the same name.
    pub async fn new(url: &str, names: &[&str]) -> Self {
        let store = Arc::new(FakeStore::default());
        store.set_tip(100, 1);
        let vault = super::open(url, store.clone()).await;
        let broker = MemoryBroker::default();
        let topic = |name: &str, partitions| NewTopic { name: name.into(), partitions, config: Vec::new() };
        broker.create_topics(&[topic("txs", 3), topic("chain", 1), topic("outcomes", 3)]).await.unwrap();
        let follower = Arc::new(Follower {
            vault: vault.clone(),
            broker: Arc::new(broker.clone()),
            topics: topics(),
            group: "vault".into(),
            bodies: None,
            counts: Arc::default(),
        });
        follower.begin().await.unwrap();
        let asker = Arc::new(Asker::new(vault.clone(), AskerSettings::default()));
        for name in names {
            vault.watch(&owner(name), &[new_script(name)]).await.unwrap();
        }
        FakeWorld { store, broker, vault, follower, asker }
    }

    /// Publishes an output of the script of a name, and waits until the vault has its row. The store has the output.
    pub async fn add(&self, outpoint: Outpoint, name: &str, satoshis: u64, height: Option<u32>) {
        self.store.put(outpoint, name, satoshis, height);
        self.publish_output(outpoint, name, satoshis).await;
    }

    pub async fn publish_output(&self, outpoint: Outpoint, name: &str, satoshis: u64) {
        let script = script(name);
        let outputs = vec![PartialOutput { vout: outpoint.vout, satoshis, script: &script }];
        let event = PartialTxEvent { txid: outpoint.txid, coinbase: false, height: 1, outputs };
        self.publish("txs", &outpoint.txid.0, Event::Seeded(event).encode()).await;
    }

    pub async fn publish(&self, topic: &str, key: &[u8], payload: Vec<u8>) {
        let message = OutgoingMessage {
            topic: topic.into(),
            key: bytes::Bytes::copy_from_slice(key),
            payload: payload.into(),
            ..OutgoingMessage::default()
        };
        self.broker.producer().await.unwrap().produce(message).await.unwrap();
    }

    /// Follows the log to its end and asks every due question.
    pub async fn settle(&self) {
        let shutdown = tokio_util::sync::CancellationToken::new();
        let (follower, stop) = (self.follower.clone(), shutdown.clone());
        let following = tokio::spawn(async move { follower.run(&stop).await });
        self.until_read().await;
        shutdown.cancel();
        following.await.unwrap().unwrap();
        // The first question of an output is due some time after its event.
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
        while self.asker.ask_due().await.unwrap() > 0 {}
    }

    async fn until_read(&self) {
        let partitions: Vec<_> = [("txs", 3), ("chain", 1), ("outcomes", 3)]
            .into_iter()
            .flat_map(|(topic, count)| (0..count).map(move |partition| (topic, partition)))
            .map(|(topic, partition)| utxo_store::broker::TopicPartition { topic: topic.into(), partition })
            .collect();
        loop {
            let committed = self.broker.committed("vault", &partitions).await.unwrap();
            let mut is_done = true;
            for (partition, committed) in partitions.iter().zip(committed) {
                let (_, end) = self.broker.watermarks(partition).await.unwrap();
                is_done &= end == 0 || committed.is_some_and(|committed| committed.offset == end);
            }
            if is_done {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }
}
