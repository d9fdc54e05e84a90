//! (being built)

pub mod events;
