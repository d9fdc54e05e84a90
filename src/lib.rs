//! `utxo-store`: an event-sourced store of Bitcoin transaction outputs.
//!
//! Kafka holds the log, a record engine holds the state, and an [`instance`] applies the log to the state: the pipeline
//! ([`ingest`]) applies validated transactions, the [`sequencer`] decides conflicts and applies blocks, reorgs and
//! commands. `ARCHITECTURE.md` is the map, `docs/glossary.md` has the terms.
//!
//! A module imports only from modules that come before the module in this order (tested by
//! `tests/it/module_order.rs`):
//!
//! ```text
//! basics:    address clock rng tasks liveness backoff
//! formats:   tx text record event
//! edges:     broker engine telemetry status blob
//! protocols: store replay prepare group
//! loops:     ingest sequencer
//! inputs:    generate config preflight
//! process:   instance api cli
//! ```

#![warn(clippy::large_futures)]

cfg_if::cfg_if! {
    // Tests, benches and fuzz targets name items by their modules.
    if #[cfg(feature = "testkit")] {
        pub mod address;
        pub mod api;
        pub mod backoff;
        pub mod blob;
        pub mod broker;
        pub mod cli;
        pub mod clock;
        pub mod config;
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
        pub mod status;
        pub mod store;
        pub mod tasks;
        pub mod telemetry;
        pub mod text;
        pub mod tx;
    } else {
        mod address;
        mod api;
        mod backoff;
        mod blob;
        mod broker;
        mod cli;
        mod clock;
        mod config;
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
        mod status;
        mod store;
        mod tasks;
        mod telemetry;
        mod text;
        mod tx;
    }
}

pub use cli::command::{Answer, CommandOutcome};
pub use config::{Config, ConfigError, ConfigErrors};
pub use event::{
    Block, BlockMined, Command, CommandAction, CommandResult, Contest, DeadLetter, DeadLetterClass, DecidedInput,
    Decision, DecisionBody, DecodeError, DecodeProblem, Descendant, Event, EventPosition, HeaderError,
    OutcomeEvent, OutcomeKind, PartialOutput, PartialTxEvent, Reorg, Subtree, SubtreeTransactions, Topic, Validated,
};
pub use tx::{
    Input, Inputs, Network, Outpoint, Output, Outputs, ParseError, ParseErrorKind, ParseIdError, PreviousOutput,
    RawOutputs, Transaction, TransactionBuilder, Txid, UnknownNetwork, UtxoHash,
};

/// Settings of a [`Config`], section by section; `docs/reference/settings.md` describes each.
pub mod settings {
    pub use crate::config::{
        Blobs, Brokers, Http, Ingest, Kafka, Log, LogFilter, Properties, Prune, Ratio, Run, Secret, Security,
        Sequencer, Store, TopicName, Topics,
    };
}

#[doc(hidden)]
pub use cli::{Cli, report};
