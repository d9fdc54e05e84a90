//! The status of an instance: what its loops publish, and what operators ask of its loops. HTTP (`api`) shows and relays both.

pub mod control;
pub mod health;
pub mod registry;

pub use health::{Commits, Condition, Health, Report};
