//! x
pub mod health;
