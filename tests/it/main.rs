//! The one integration binary.

mod pipeline;
mod world;
