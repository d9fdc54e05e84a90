//! `utxo-store`: an event-sourced store of Bitcoin transaction outputs.
//!
//! Layers only look down: [`cli`], [`api`] → [`ingest`], [`sequencer`] → [`store`] → [`engine`] →
//! [`record`] → [`tx`], with [`blob`], [`broker`], [`event`] and [`generate`] beside [`engine`]. `ARCHITECTURE.md` is the
//! map.

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
pub mod heartbeats;
pub mod ingest;
pub mod instance;
pub mod preflight;
pub mod record;
pub mod seeded;
pub mod sequencer;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod text;
pub mod tx;
