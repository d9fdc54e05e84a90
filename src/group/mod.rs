//! Parts that the pipeline and the sequencer share as members of consumer groups.
//!
//! [`offsets`] tracks the completed and the durable prefix of a partition, [`partition`] the state of an assigned partition and the
//! metadata of its commits, [`proof`] proves a parent missing from those, [`dead_letters`] limits and publishes dead letters,
//! [`halts`] says which halts a start lifts, [`notify`] wakes parked children of transactions that the sequencer creates.

pub mod dead_letters;
pub mod halts;
pub mod notify;
pub mod offsets;
pub mod partition;
pub mod proof;
