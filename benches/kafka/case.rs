//! What is compared with what.

use utxo_store::broker::kafka::{KafkaBroker, KafkaSettings};
use utxo_store::{cli::wiring, config::Config};

/// Where transactions are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The broker.
    Kafka,
    /// The log in memory.
    Log,
    /// Chunks that are there already: what costs nothing.
    Feed,
}

/// What is done with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sink {
    /// A bare loop: decodes the event, parses the transaction, hashes its id and compares it with the key.
    Txid,
    /// The same loop, which checks the transaction as well, hashes what it spends and what it makes, and builds its record: all that
    /// the pipeline makes of a message before it plans anything.
    Prepare,
    /// The program's own consumer: batches in hand, each in memory of its own, and dropped.
    Read,
    /// The pipeline, on an engine.
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

    /// Where every record goes to a disk or to another process: fewer transactions will do.
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
    /// In the order of the table; those that are compared run one after the other.
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

/// A topic full of transactions, as a child is told of it.
#[derive(Debug, Clone)]
pub struct Place {
    pub brokers: String,
    pub topic: String,
    pub partitions: i32,
    pub transactions: u64,
}

impl Place {
    /// For the child; [`parse`](Self::parse) reads them.
    pub fn arguments(&self) -> [String; 4] {
        [self.brokers.clone(), self.topic.clone(), self.partitions.to_string(), self.transactions.to_string()]
    }

    pub fn parse(arguments: &[String]) -> Option<Place> {
        let [brokers, topic, partitions, transactions] = arguments else { return None };
        Some(Place {
            brokers: brokers.clone(),
            topic: topic.clone(),
            partitions: partitions.parse().ok()?,
            transactions: transactions.parse().ok()?,
        })
    }

    /// How many of the transactions come before the clock starts: what is touched for the first time, and would not be touched anew by
    /// a process that has run for a while (what is in flight, librdkafka's buffers), is there by then. As many are left when it stops.
    pub fn warm_up(&self) -> u64 {
        self.transactions / 4
    }

    /// The configuration's own defaults.
    pub fn settings(&self) -> KafkaSettings {
        KafkaSettings { brokers: self.brokers.clone(), ..wiring::kafka(&Config::default()) }
    }

    pub fn broker(&self) -> KafkaBroker {
        KafkaBroker::new(self.settings()).expect("the defaults are settings")
    }
}
