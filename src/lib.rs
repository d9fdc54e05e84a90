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
