//! Parts that the pipeline and the sequencer share as members of consumer groups.
//!
//! | module | task |
//! |---|---|
//! | [`offsets`] | tracks the completed and the durable prefix of a partition |
//! | [`reading`] | tells for which causes a partition is not read: full, halted, paused by an operator |
//! | [`partition`] | keeps the state of an assigned partition |
//! | [`commit_metadata`] | reads and writes the metadata of commits, with the halt of a partition |
//! | [`member`] | assigns, reads, halts, commits: the member that the loops of pipeline and sequencer drive |
//! | [`missing_parent`] | proves a parent missing from the metadata of commits |
//! | [`dead_letters`] | limits and publishes dead letters |
//! | [`outcomes`] | gathers txids for the messages of the topic of outcomes |
//! | [`earlier_halts`] | knows the halts that a start of an instance lifts |
//! | [`notify`] | wakes parked children of transactions that the sequencer creates |

pub mod commit_metadata;
pub mod dead_letters;
pub mod earlier_halts;
pub mod member;
pub mod missing_parent;
pub mod notify;
pub mod offsets;
pub mod outcomes;
pub mod partition;
pub mod reading;
