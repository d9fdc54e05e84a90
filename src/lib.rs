//! `utxo-store`: an event-sourced store of Bitcoin transaction outputs.
//!
//! Kafka holds the log of events, a record engine holds the state that the log produces, and an instance applies the
//! log to the state. The program `utxo-store` runs instances and operates stores; this library embeds the same in
//! another process.
//!
//! # Use
//! | task | items |
//! |---|---|
//! | run an instance in this process | [`Instance::builder`], [`InstanceBuilder`], [`Config`], [`settings`] |
//! | read a store | [`Store::open`], [`OutputState`], [`SpendStatus`], [`TxMeta`], [`ChainInfo`], [`MetaRecord`] |
//! | publish events | [`Event`] and its bodies, [`EventPublisher`]; [`EventBodies`] for large transactions |
//! | publish commands and wait for their results | [`PendingCommand`], [`submit_commands`], [`CommandOutcome`] |
//! | read outcomes and dead letters | [`Event::decode`], [`OutcomeEvent`], [`OutcomeBatch`], [`DeadLetter`] |
//! | build transactions | [`TransactionBuilder`], [`Transaction`], [`Txid`], [`Outpoint`] |
//! | run without Kafka | [`MemoryBroker`]; [`Broker`] is the contract of a log |
//!
//! Everything is asynchronous and runs in a tokio runtime of the caller. Errors are one line each and say what to do.
//!
//! # Example
//! An instance on a log and a store in memory. A transaction is published, applied and read.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use utxo_store::{
//!     Broker, Config, Event, EventPublisher, Instance, MemoryBroker, Outpoint, PartialOutput, PartialTxEvent,
//!     SpendStatus, Txid, create_topics,
//! };
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let topics = Config::default().kafka.topics;
//! let broker: Arc<dyn Broker> = Arc::new(MemoryBroker::default());
//! create_topics(broker.as_ref(), &topics, 4).await?;
//! let instance = Instance::builder().store_url("memory://".parse()?).broker(broker.clone()).start();
//!
//! let publisher = EventPublisher::open(broker.as_ref(), topics).await?;
//! let txid = Txid([7; 32]);
//! let outputs = vec![PartialOutput { vout: 0, satoshis: 5_000, script: &[0x51] }];
//! publisher.publish(&Event::Seeded(PartialTxEvent { txid, coinbase: false, height: 100, outputs })).await?;
//!
//! let store = instance.store().await.ok_or("the instance has ended")?;
//! let outpoint = Outpoint { txid, vout: 0 };
//! while store.output(outpoint, None).await?.status == SpendStatus::NotFound {
//!     tokio::time::sleep(Duration::from_millis(5)).await;
//! }
//! assert_eq!(store.output(outpoint, None).await?.status, SpendStatus::Unspent);
//! assert_eq!(instance.shut_down().await?.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/` has programs for each task.
//!
//! # Features
//! | feature | content |
//! |---|---|
//! | `aws` (default) | blobs and objects in S3 (`s3://bucket/prefix`) |
//! | `http` (default) | blobs and objects read over HTTP |
//! | `tls` | brokers over TLS, and logins by SCRAM or OAUTHBEARER |
//! | `vault` | wallets beside a store: watched scripts, soft locks and coin selection in a SQL database |
//! | `testkit` | public modules, fault injection and conformance suites for tests of this crate; no stable interface |
//!
//! # Modules
//! `ARCHITECTURE.md` is the map, `docs/glossary.md` has the terms. A module imports only from modules that come before
//! the module in this order (tested by `tests/it/module_order.rs`):
//!
//! ```text
//! basics:    address clock rng tasks liveness backoff
//! formats:   tx text record event
//! edges:     broker engine telemetry status blob
//! protocols: store replay prepare group
//! loops:     ingest sequencer
//! inputs:    generate config preflight sizing
//! process:   client bridge instance snapshot utxo_set embed vault api cli
//! ```

#![warn(clippy::large_futures)]

cfg_if::cfg_if! {
    // Tests, benches and fuzz targets name items by their modules.
    if #[cfg(feature = "testkit")] {
        pub mod address;
        pub mod api;
        pub mod backoff;
        pub mod blob;
        pub mod bridge;
        pub mod broker;
        pub mod cli;
        pub mod client;
        pub mod clock;
        pub mod config;
        pub mod embed;
        pub mod engine;
        pub mod event;
        pub mod generate;
        pub mod group;
        pub mod ingest;
        pub mod instance;
        pub mod liveness;
        pub mod preflight;
        pub mod prepare;
        pub mod record;
        pub mod replay;
        pub mod rng;
        pub mod sequencer;
        pub mod sizing;
        pub mod snapshot;
        pub mod status;
        pub mod store;
        pub mod tasks;
        pub mod telemetry;
        pub mod text;
        pub mod tx;
        pub mod utxo_set;
        #[cfg(feature = "vault")]
        pub mod vault;
    } else {
        mod address;
        mod api;
        mod backoff;
        mod blob;
        mod bridge;
        mod broker;
        mod cli;
        mod client;
        mod clock;
        mod config;
        mod embed;
        mod engine;
        mod event;
        mod generate;
        mod group;
        mod ingest;
        mod instance;
        mod liveness;
        mod preflight;
        mod prepare;
        mod record;
        mod replay;
        mod rng;
        mod sequencer;
        mod sizing;
        mod snapshot;
        mod status;
        mod store;
        mod tasks;
        mod telemetry;
        mod text;
        mod tx;
        mod utxo_set;
        #[cfg(feature = "vault")]
        pub mod vault;
    }
}

pub use blob::{
    BlobError, BlobErrorKind, BlobUrl, BlobUrlError, EventBodies, EventBodyLimits, OpenBlobError, objects::ObjectError,
};
pub use broker::{
    AssignedPartition, Broker, BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, Consumer, ConsumerEvent,
    Delivery, Message, MessageBatch, NewTopic, Outage, OutgoingMessage, PartitionEnd, PartitionReader,
    PartitionSetReader, Producer, TopicId, TopicIdentity, TopicPartition, memory::MemoryBroker,
};
pub use client::{
    CommandAnswer, CommandOutcome, EventPublisher, PendingCommand, PublishError, PublishedEvent, create_topics,
    submit_commands,
};
pub use config::{Config, ConfigError, ConfigErrors};
pub use embed::{
    Instance, InstanceBuilder, OpeningError, RunError, Stopper, Store,
    opening::{open_broker, open_event_bodies},
};
#[cfg(feature = "vault")]
pub use engine::sql::SqlAccess;
pub use engine::{EngineError, ErrorKind as EngineErrorKind, OpenError as OpenEngineError, StoreUrl};
pub use event::{
    Block, BlockMined, BodyReference, Command, CommandAction, CommandResult, ContentHash, Contest, DeadLetter,
    DeadLetterClass, DecidedEvent, DecidedInput, Decision, DecisionBody, DecisionGroup, DecisionRun, DecodeError,
    DecodeProblem, Descendant, Destination, DestinationError, Event, EventPosition, HeaderError, OutcomeBatch,
    OutcomeChange, OutcomeEvent, OutcomeKind, OutcomeSource, PartialOutput, PartialTxEvent, PartialTxReference, Reorg,
    Subtree, SubtreeTransactions, Topic, TxidList, Validated, ValidatedReference, from_json, to_json,
};
pub use ingest::pipeline::PipelineReport;
pub use instance::InstanceError;
pub use prometheus::Error as MetricsError;
pub use record::{MetaRecord, Reason, SpendingData, StoredOutput, Verdict};
pub use status::{HealthReport, StatePage, control::ControlAnswer};
pub use store::{
    chain::ChainInfo,
    health_check::{CheckError, CheckStep},
    meta::MetaError,
    outputs::OutputState,
    read::{FROZEN_SPENDER, ReadError, TxInpoints, TxMeta},
    spend_status::SpendStatus,
};
pub use tx::{
    Input, Inputs, MAX_MONEY, Network, Outpoint, Output, Outputs, ParseError, ParseErrorKind, ParseIdError,
    PreviousOutput, RawOutputs, Transaction, TransactionBuilder, Txid, UnknownNetwork, UtxoHash, utxo_hash,
};

/// Settings of a [`Config`], section by section; `docs/reference/settings.md` describes each.
pub mod settings {
    pub use crate::config::{
        BackgroundRecovery, Blobs, Brokers, EventObjects, Http, Ingest, Kafka, Log, LogFilter, Outcomes, Properties,
        Prune, Ratio, Run, Secret, Security, Sequencer, Snapshots, Store, TopicName, Topics, Vault,
    };
}

// The program `utxo-store`.
#[doc(hidden)]
pub use cli::{Cli, report};
