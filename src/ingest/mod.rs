//! The pipeline: poll → decode → plan → apply → complete → commit offsets.
//!
//! [`pipeline`] is the loop; [`plan`] says what each transaction does next and is pure, as are [`offsets`], [`parked`],
//! [`level`], [`proof`], [`dead_letters`] and [`replay`].

pub mod arrivals;
pub mod dead_letters;
pub mod dispatch;
pub mod flight;
pub mod halts;
pub mod level;
pub mod offsets;
pub mod parked;
pub mod partition;
pub mod pipeline;
pub mod plan;
pub mod prepare;
pub mod proof;
pub mod publish;
pub mod replay;
