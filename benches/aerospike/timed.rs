//! Runs batches concurrently and measures the cost on both sides.

use std::{
    future::Future,
    pin::Pin,
    process,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};

use crate::process_stats::cpu;

/// One batch; its result is the number of operations.
pub type Batch = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Cost of a number of operations.
pub struct BatchTiming {
    operations: usize,
    wall: Duration,
    client: Duration,
    server: Duration,
}

/// Runs all batches, `in_flight` at a time; `server` is the process id of the server.
pub async fn run(server: u32, batches: impl IntoIterator<Item = Batch>, in_flight: usize) -> BatchTiming {
    let before = (Instant::now(), cpu(process::id()), cpu(server));
    let operations = stream::iter(batches)
        .map(tokio::spawn)
        .buffer_unordered(in_flight)
        .fold(0, |sum, done| async move { sum + done.expect("a batch of the bench") })
        .await;
    BatchTiming {
        operations,
        wall: before.0.elapsed(),
        client: cpu(process::id()) - before.1,
        server: cpu(server) - before.2,
    }
}

impl BatchTiming {
    pub fn print(&self, case: &str, way: &str) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.operations as f64;
        let rate = self.operations as f64 / self.wall.as_secs_f64();
        println!("{case:<26} {way:>18} {rate:>12.0} {:>12.1} {:>12.1}", each(self.client), each(self.server));
    }
}
