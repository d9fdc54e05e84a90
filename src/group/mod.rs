//! Parts that the pipeline and the sequencer share as members of consumer groups.
//!
//! | module | task |
//! |---|---|
//! | [`offsets`] | tracks the completed and the durable prefix of a partition |
//! | [`partition`] | keeps the state of an assigned partition, reads and writes the metadata of commits |
//! | [`missing_parent`] | proves a parent missing from the metadata of commits |
//! | [`dead_letters`] | limits and publishes dead letters |
//! | [`earlier_halts`] | knows the halts that a start of an instance lifts |
//! | [`notify`] | wakes parked children of transactions that the sequencer creates |

pub mod dead_letters;
pub mod earlier_halts;
pub mod missing_parent;
pub mod notify;
pub mod offsets;
pub mod partition;
