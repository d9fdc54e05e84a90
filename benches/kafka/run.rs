//! One case in a process of its own.

use std::sync::Arc;

use utxo_store::{
    broker::{Broker, ConsumerEvent},
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
    case::{Case, Sink, Source},
    feed::Feed,
    generator::Generator,
    growth::{self, Growth, GrowthResult},
    measure::runtime,
    pipeline::{self, Log, Measurement, OUTCOMES, POLLED, RULES, Stopwatch},
    topic::{self, BenchTopic},
};

pub fn run(case: Case, bench_topic: &BenchTopic) -> Measurement {
    match case.sink {
        Sink::Txid | Sink::Prepare => bare::run(bench_topic, case.sink),
        Sink::Read => runtime(2).block_on(read(bench_topic)),
        sink => runtime(2).block_on(async {
            let bench_engine = BenchEngine::new(sink).await;
            bench_engine.fill(&topic::generator(bench_topic)).await;
            let (settings, log) = open_log(case.source, bench_topic).await;
            let measurement = pipeline::run_to_end(
                settings,
                log,
                bench_engine.engine.clone(),
                bench_topic.transactions,
                bench_topic.warm_up(),
            )
            .await;
            bench_engine.engine.close().await.expect("closed");
            measurement
        }),
    }
}

/// Measures the reading of messages without processing.
async fn read(bench_topic: &BenchTopic) -> Measurement {
    let Log { mut consumer, .. } = join_group(bench_topic, &settings(bench_topic)).await;
    let (begins, ends) = (bench_topic.warm_up(), bench_topic.transactions - bench_topic.warm_up());
    let (mut stopwatch, mut read, mut before) = (Stopwatch::start(), 0, None);
    while read < ends {
        let ConsumerEvent::Messages(batch) = consumer.poll().await.expect("the broker is ours") else { continue };
        read += batch.messages.len() as u64;
        if before.is_none() && read >= begins {
            stopwatch = stopwatch.warmed_up();
            before = Some(read);
        }
    }
    stopwatch.stop(read - before.unwrap_or_default())
}

/// Measures the memory of a pipeline that reads a topic of the broker.
pub fn measure_growth(growth: Growth, bench_topic: &BenchTopic) -> GrowthResult {
    let settings = settings(bench_topic);
    let client_bytes = bench_topic.settings().fetch_budget_bytes;
    let log_settings = settings.clone();
    let log = async { join_group(bench_topic, &log_settings).await };
    runtime(2).block_on(growth::measure_growth(growth, settings, log, bench_topic.transactions, client_bytes))
}

/// Returns the settings for a topic of the broker, with a consumer group of this process.
pub fn settings(bench_topic: &BenchTopic) -> PipelineSettings {
    let group = format!("bench-{}", std::process::id());
    let topic = bench_topic.topic.as_str().into();
    PipelineSettings { topic, group, partitions: Some(bench_topic.partitions), ..pipeline::settings() }
}

/// Joins that group.
pub async fn join_group(bench_topic: &BenchTopic, settings: &PipelineSettings) -> Log {
    let broker = bench_topic.broker();
    let consumer =
        broker.subscribe(&settings.group, std::slice::from_ref(&bench_topic.topic)).await.expect("subscribed");
    Log { broker: Arc::new(broker), consumer }
}

async fn open_log(source: Source, bench_topic: &BenchTopic) -> (PipelineSettings, Log) {
    let on_kafka = settings(bench_topic);
    let one_partition = PipelineSettings { partitions: Some(1), ..on_kafka.clone() };
    match source {
        Source::Kafka => {
            let log = join_group(bench_topic, &on_kafka).await;
            (on_kafka, log)
        }
        Source::Log => {
            let broker = pipeline::memory_broker(&[&bench_topic.topic, OUTCOMES]).await;
            topic::produce_generated(bench_topic, broker.producer().await.expect("it has one").as_ref()).await;
            let consumer = broker.subscribe(&one_partition.group, std::slice::from_ref(&bench_topic.topic)).await;
            (one_partition, Log { broker: Arc::new(broker), consumer: consumer.expect("the topic is there") })
        }
        Source::Feed => {
            let chunks: Vec<_> = topic::generator(bench_topic).chunks(POLLED).collect();
            let feed = Feed::new(&one_partition.topic, Box::new(chunks.into_iter()), bench_topic.transactions);
            (one_partition, Log::of_feed(feed).await)
        }
    }
}

/// An engine with its server or directory.
pub struct BenchEngine {
    pub engine: Arc<dyn RecordEngine>,
    is_null: bool,
    _server: Option<AerospikeServer>,
    _directory: Option<tempfile::TempDir>,
}

impl BenchEngine {
    pub async fn new(sink: Sink) -> Self {
        // The server is another process, so only the client's cost is measured.
        let server = || AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH");
        let server = (sink == Sink::Aerospike).then(server);
        let directory = (sink == Sink::Fjall).then(pipeline::scratch_directory);
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
        BenchEngine { engine, is_null: sink == Sink::Null, _server: server, _directory: directory }
    }

    /// Creates the transactions that the run spends.
    pub async fn fill(&self, generator: &Generator) {
        if !self.is_null {
            pipeline::fill(generator, self.engine.as_ref()).await;
        }
    }
}
