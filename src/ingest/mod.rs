//! The pipeline of validated transactions: read, decode, plan, apply, complete, commit offsets.
//!
//! [`pipeline`] is the loop. [`plan`] decides the next step of each transaction. [`plan`], [`retry_queue`] and
//! [`fair_share`] are pure: no I/O and no clock.

pub mod dispatch;
pub mod fair_share;
pub mod flight;
pub mod outcome_watch;
pub mod pipeline;
pub mod plan;
pub mod publish;
pub mod retry_queue;
