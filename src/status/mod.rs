//! Status of an instance: the reports that its loops publish, and operators' requests to the loops. HTTP (`api`) serves
//! both.

pub mod control;
pub mod health;
pub mod registry;

pub use health::{CommitHealth, Condition, Health, HealthReport};
pub use registry::StatePage;
