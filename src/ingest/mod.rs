//! The pipeline: poll → decode → plan → apply → complete → commit offsets.
//!
//! [`pipeline`] is the loop; [`plan`] says what each transaction does next and is pure, as are [`parked`] and [`level`].

pub mod dispatch;
pub mod flight;
pub mod level;
pub mod parked;
pub mod pipeline;
pub mod plan;
pub mod publish;
