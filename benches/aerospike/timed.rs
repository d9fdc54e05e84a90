//! Batches on their way, several at once, and what they cost both sides.

use std::{
    fs,
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};

/// One batch: how many operations it did.
pub type Batch = Pin<Box<dyn Future<Output = usize> + Send>>;

/// Clock ticks of `/proc` are 10 ms on every Linux that this was run on (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// What some operations took.
pub struct Timed {
    operations: usize,
    wall: Duration,
    client: Duration,
    server: Duration,
}

/// Runs all batches, `in_flight` at once; `server` is the server's process.
pub async fn run(server: u32, batches: impl IntoIterator<Item = Batch>, in_flight: usize) -> Timed {
    let before = (Instant::now(), cpu("self"), cpu(&server.to_string()));
    let operations = stream::iter(batches)
        .map(tokio::spawn)
        .buffer_unordered(in_flight)
        .fold(0, |sum, done| async move { sum + done.expect("a batch of the bench") })
        .await;
    Timed {
        operations,
        wall: before.0.elapsed(),
        client: cpu("self") - before.1,
        server: cpu(&server.to_string()) - before.2,
    }
}

/// CPU time of a process so far, all threads, user and system.
fn cpu(process: &str) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("benches need Linux's /proc");
    // The name, which may hold anything, is in parentheses; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok());
    TICK * ticks.sum()
}

impl Timed {
    pub fn print(&self, case: &str, way: &str) {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.operations as f64;
        let rate = self.operations as f64 / self.wall.as_secs_f64();
        println!("{case:<26} {way:>18} {rate:>12.0} {:>12.1} {:>12.1}", each(self.client), each(self.server));
    }
}
