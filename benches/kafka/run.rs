//! One case, in a process of its own.

use std::sync::Arc;

use utxo_store::{
    broker::{Broker, Polled},
    engine::{
        RecordEngine,
        aerospike::AerospikeEngine,
        fjall::{FjallEngine, FjallOptions},
        memory::MemoryEngine,
        null::NullEngine,
    },
    ingest::pipeline::PipelineSettings,
};

use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup},
    bare,
    case::{Case, Place, Sink, Source},
    feed::Feed,
    generator::Generator,
    growth::{self, Grown, Growth},
    pipeline::{self, Log, POLLED, RULES, Took, Watch},
    topic,
};

pub fn run(case: Case, place: &Place) -> Took {
    match case.sink {
        Sink::Txid | Sink::Prepare => bare::run(place, case.sink),
        Sink::Read => runtime(2).block_on(read(place)),
        sink => runtime(2).block_on(async {
            let opened = Opened::new(sink).await;
            opened.fill(&topic::generator(place)).await;
            let (settings, log) = log(case.source, place).await;
            let took =
                pipeline::to_the_end(settings, log, opened.engine.clone(), place.transactions, place.warm_up()).await;
            opened.engine.close().await.expect("closed");
            took
        }),
    }
}

/// What it takes to have the messages in hand.
async fn read(place: &Place) -> Took {
    let Log { mut consumer, .. } = joined(place, &settings(place)).await;
    let (begins, ends) = (place.warm_up(), place.transactions - place.warm_up());
    let (mut watch, mut read, mut before) = (Watch::start(), 0, None);
    while read < ends {
        let Polled::Messages(batch) = consumer.poll().await.expect("the broker is ours") else { continue };
        read += batch.messages.len() as u64;
        if before.is_none() && read >= begins {
            watch = watch.warmed_up();
            before = Some(read);
        }
    }
    watch.stop(read - before.unwrap_or_default())
}

/// The memory of a pipeline that reads a topic on the broker.
pub fn grown(growth: Growth, place: &Place) -> Grown {
    let settings = settings(place);
    let of_client = place.settings().fetch_budget_bytes;
    let log_settings = settings.clone();
    let log = async { joined(place, &log_settings).await };
    runtime(2).block_on(growth::watch(growth, settings, log, place.transactions, of_client))
}

pub fn runtime(workers: usize) -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    runtime.expect("a machine that runs benches has threads")
}

/// The settings for a topic on the broker, and a group of this process's own.
pub fn settings(place: &Place) -> PipelineSettings {
    let group = format!("bench-{}", std::process::id());
    let topic = place.topic.as_str().into();
    PipelineSettings { topic, group, partitions: Some(place.partitions), ..pipeline::settings() }
}

/// A member of that group.
pub async fn joined(place: &Place, settings: &PipelineSettings) -> Log {
    let broker = place.broker();
    let consumer = broker.subscribe(&settings.group, std::slice::from_ref(&place.topic)).await.expect("subscribed");
    Log { broker: Arc::new(broker), consumer }
}

async fn log(source: Source, place: &Place) -> (PipelineSettings, Log) {
    let on_kafka = settings(place);
    let alone = PipelineSettings { partitions: Some(1), ..on_kafka.clone() };
    match source {
        Source::Kafka => {
            let log = joined(place, &on_kafka).await;
            (on_kafka, log)
        }
        Source::Log => {
            let broker = pipeline::memory_broker(&[&place.topic]).await;
            topic::into_log(place, broker.producer().await.expect("it has one").as_ref()).await;
            let consumer = broker.subscribe(&alone.group, std::slice::from_ref(&place.topic)).await;
            (alone, Log { broker: Arc::new(broker), consumer: consumer.expect("the topic is there") })
        }
        Source::Feed => {
            let chunks: Vec<_> = topic::generator(place).chunks(POLLED).collect();
            let feed = Feed::new(&alone.topic, Box::new(chunks.into_iter()), place.transactions);
            (alone, Log::of_feed(feed).await)
        }
    }
}

/// An engine, and what it lives in.
pub struct Opened {
    pub engine: Arc<dyn RecordEngine>,
    keeps_nothing: bool,
    _server: Option<AerospikeServer>,
    _directory: Option<tempfile::TempDir>,
}

impl Opened {
    pub async fn new(sink: Sink) -> Self {
        // On a server of its own, which is another process: what is measured is the client's.
        let server = || AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
        let server = (sink == Sink::Aerospike).then(server);
        let directory = (sink == Sink::Fjall).then(pipeline::scratch);
        let engine: Arc<dyn RecordEngine> = match (&server, &directory) {
            (Some(server), _) => {
                Arc::new(AerospikeEngine::open(&server.settings(), RULES).await.expect("it was set up for it"))
            }
            (_, Some(directory)) => {
                Arc::new(FjallEngine::open(directory.path(), RULES, FjallOptions::default()).expect("a new store"))
            }
            _ if sink == Sink::Memory => Arc::new(MemoryEngine::new(RULES)),
            _ => Arc::new(NullEngine::new(RULES)),
        };
        Opened { engine, keeps_nothing: sink == Sink::Null, _server: server, _directory: directory }
    }

    /// With what is spent.
    pub async fn fill(&self, generator: &Generator) {
        if !self.keeps_nothing {
            pipeline::fill(generator, self.engine.as_ref()).await;
        }
    }
}
