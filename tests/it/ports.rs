//! Ports of the servers that tests and benches start.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

/// First of the ports that are given out.
const FIRST: u32 = 10_000;
/// Number of ports that are given out, one after the other. All are below 32,768, where Linux begins to take ports for
/// connections and for listeners on port 0: nothing else gets the port of a server that is dead for a while.
const COUNT: u32 = 22_000;

/// Returns a free port of 127.0.0.1. Each call returns another port.
pub fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin far from each other.
    let start = std::process::id().wrapping_mul(7_919);
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let next = |_| (FIRST + start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT) as u16;
    (0..COUNT).map(next).find(is_free).unwrap()
}
