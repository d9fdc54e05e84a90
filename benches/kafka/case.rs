//! Cases: a source and a sink.

use utxo_store::broker::kafka::{KafkaBroker, KafkaSettings};
use utxo_store::{config::Config, embed::wiring};

/// Source of the transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A real broker.
    Kafka,
    /// The log in memory.
    Log,
    /// Prepared chunks, which cost no time.
    Feed,
}

/// Processing of the transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// Bare loop: decodes the event, parses the transaction, hashes its id and compares it with the key.
    Txid,
    /// The same loop with all the work of the pipeline before planning: it checks the transaction, hashes the spent and
    /// the new outputs, and builds the record.
    Prepare,
    /// The program's own consumer: each batch is copied into memory of its own, and dropped.
    Read,
    /// The pipeline on the null engine.
    Null,
    Memory,
    Fjall,
    Aerospike,
}

impl Sink {
    pub fn name(self) -> &'static str {
        match self {
            Sink::Txid => "bare-txid",
            Sink::Prepare => "bare-prepare",
            Sink::Read => "read",
            Sink::Null => "null",
            Sink::Memory => "memory",
            Sink::Fjall => "fjall",
            Sink::Aerospike => "aerospike",
        }
    }

    /// Whether every record goes to a disk or another process: fewer transactions suffice.
    pub fn is_far(self) -> bool {
        matches!(self, Sink::Fjall | Sink::Aerospike)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub source: Source,
    pub sink: Sink,
}

const fn case(source: Source, sink: Sink) -> Case {
    Case { source, sink }
}

pub const BARE: Case = case(Source::Kafka, Sink::Txid);
pub const BARE_PREPARE: Case = case(Source::Kafka, Sink::Prepare);
pub const READ: Case = case(Source::Kafka, Sink::Read);
pub const KAFKA_NULL: Case = case(Source::Kafka, Sink::Null);
pub const LOG_NULL: Case = case(Source::Log, Sink::Null);
pub const KAFKA_MEMORY: Case = case(Source::Kafka, Sink::Memory);
pub const LOG_MEMORY: Case = case(Source::Log, Sink::Memory);
pub const FEED_MEMORY: Case = case(Source::Feed, Sink::Memory);
pub const KAFKA_FJALL: Case = case(Source::Kafka, Sink::Fjall);
pub const KAFKA_AEROSPIKE: Case = case(Source::Kafka, Sink::Aerospike);

impl Case {
    /// Cases in the order of the table; compared ones run one after the other.
    pub const ALL: [Case; 10] = [
        BARE,
        BARE_PREPARE,
        READ,
        KAFKA_NULL,
        LOG_NULL,
        KAFKA_MEMORY,
        LOG_MEMORY,
        FEED_MEMORY,
        KAFKA_FJALL,
        KAFKA_AEROSPIKE,
    ];

    pub fn name(self) -> String {
        let source = match self.source {
            Source::Kafka => "kafka",
            Source::Log => "log",
            Source::Feed => "feed",
        };
        format!("{source}/{}", self.sink.name())
    }

    pub fn named(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }
}

/// A topic with its transactions, as described to a child process.
#[derive(Debug, Clone)]
pub struct BenchTopic {
    pub brokers: String,
    pub topic: String,
    pub partitions: i32,
    pub transactions: u64,
}

impl BenchTopic {
    /// Returns the arguments of the child; [`parse`](Self::parse) reads them.
    pub fn arguments(&self) -> [String; 4] {
        [self.brokers.clone(), self.topic.clone(), self.partitions.to_string(), self.transactions.to_string()]
    }

    pub fn parse(arguments: &[String]) -> Option<BenchTopic> {
        let [brokers, topic, partitions, transactions] = arguments else { return None };
        Some(BenchTopic {
            brokers: brokers.clone(),
            topic: topic.clone(),
            partitions: partitions.parse().ok()?,
            transactions: transactions.parse().ok()?,
        })
    }

    /// Number of transactions before the clock starts. Memory that a long-running process would have touched already
    /// (transactions in flight, librdkafka's buffers) is touched by then. The same number is left when the clock stops.
    pub fn warm_up(&self) -> u64 {
        self.transactions / 4
    }

    /// Returns the default settings of the configuration.
    pub fn settings(&self) -> KafkaSettings {
        KafkaSettings { brokers: self.brokers.clone(), ..wiring::kafka_settings(&Config::default()) }
    }

    pub fn broker(&self) -> KafkaBroker {
        KafkaBroker::new(self.settings()).expect("the defaults are settings")
    }
}
