//! Figures of this process from the operating system, numbers from the environment, and the runtime of the benches.

use std::{env, fs, time::Duration};

use tokio::runtime::{Builder, Runtime};

/// Clock ticks of `/proc` are 10 ms on every Linux that this was run on (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// CPU time of all threads.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub user: Duration,
    /// Time in the kernel: the disk, and first use of memory.
    pub system: Duration,
}

impl Cpu {
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").expect("benches need Linux's /proc");
        // The process name, of any characters, is in parentheses; user and system time are the 14th and 15th field.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut ticks = fields.split_whitespace().skip(11).map(|ticks| ticks.parse().unwrap_or(0));
        let mut next = || TICK * ticks.next().unwrap_or(0);
        Cpu { user: next(), system: next() }
    }

    /// Returns the seconds of (user, system) time since `before`.
    pub fn since(before: Cpu) -> (f64, f64) {
        let now = Cpu::now();
        ((now.user - before.user).as_secs_f64(), (now.system - before.system).as_secs_f64())
    }
}

/// Returns the peak of the resident memory since [`reset_peak`], in bytes.
pub fn peak_memory() -> u64 {
    status("VmHWM:")
}

/// Returns the resident memory, in bytes.
pub fn resident_memory() -> u64 {
    status("VmRSS:")
}

/// Resets the peak to the present resident memory.
pub fn reset_peak() {
    // Without permission the peak of the preparation counts, too: the figure is never too low.
    drop(fs::write("/proc/self/clear_refs", "5"));
}

/// Returns a number from the environment, or `default`.
pub fn env_number(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.replace('_', "").parse().unwrap_or_else(|_| panic!("{variable}=`{text}` is not a number")),
        Err(_) => default,
    }
}

/// Returns a runtime with this number of worker threads.
pub fn runtime(workers: usize) -> Runtime {
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    runtime.expect("a machine that runs benches has threads")
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("benches need Linux's /proc");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}
