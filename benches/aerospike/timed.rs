//! Runs batches concurrently and measures the cost on both sides.

use std::{
    fs,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};

/// One batch; its result is the number of operations.
pub type Batch = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Clock ticks of `/proc` are 10 ms on every Linux that this was run on (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// Cost of a number of operations.
pub struct BatchTiming {
    operations: usize,
    wall: Duration,
    client: Duration,
    server: Duration,
}

/// Runs all batches, `in_flight` at a time; `server` is the process id of the server.
pub async fn run(server: u32, batches: impl IntoIterator<Item = Batch>, in_flight: usize) -> BatchTiming {
    let before = (Instant::now(), cpu("self"), cpu(&server.to_string()));
    let operations = stream::iter(batches)
        .map(tokio::spawn)
        .buffer_unordered(in_flight)
        .fold(0, |sum, done| async move { sum + done.expect("a batch of the bench") })
        .await;
    BatchTiming {
        operations,
        wall: before.0.elapsed(),
        client: cpu("self") - before.1,
        server: cpu(&server.to_string()) - before.2,
    }
}

/// Returns the CPU time of all threads of a process, user and system.
fn cpu(process: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("benches need Linux's /proc");
    // The process name, of any characters, is in parentheses; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok());
    TICK * ticks.sum()
}

impl BatchTiming {
    pub fn print(&self, case: &str, way: &str) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.operations as f64;
        let rate = self.operations as f64 / self.wall.as_secs_f64();
        println!("{case:<26} {way:>18} {rate:>12.0} {:>12.1} {:>12.1}", each(self.client), each(self.server));
    }
}
