//! Cases: a source and a sink.

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
