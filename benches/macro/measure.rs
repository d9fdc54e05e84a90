//! What the operating system says of this process, and what its environment asks for.

use std::{env, fs, time::Duration};

/// Clock ticks of `/proc` are 10 ms on every Linux that this was run on (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// CPU time of all threads so far.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub user: Duration,
    /// In the kernel: the disk, and memory that is handed out for the first time.
    pub system: Duration,
}

impl Cpu {
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").expect("benches need Linux's /proc");
        // The name, which may hold anything, is in parentheses; user and system time are the 14th and 15th field.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut ticks = fields.split_whitespace().skip(11).map(|ticks| ticks.parse().unwrap_or(0));
        let mut next = || TICK * ticks.next().unwrap_or(0);
        Cpu { user: next(), system: next() }
    }

    /// Seconds of (user, system) time since.
    pub fn since(before: Cpu) -> (f64, f64) {
        let now = Cpu::now();
        ((now.user - before.user).as_secs_f64(), (now.system - before.system).as_secs_f64())
    }
}

/// The most memory that was ever resident, since [`forget_peak`], in bytes.
pub fn peak_memory() -> u64 {
    status("VmHWM:")
}

/// Memory that is resident now, in bytes.
pub fn memory() -> u64 {
    status("VmRSS:")
}

/// The peak starts again from what is resident now.
pub fn forget_peak() {
    // Where it is not allowed, the peak of the preparation counts too: never too little is shown.
    drop(fs::write("/proc/self/clear_refs", "5"));
}

/// A number from the environment.
pub fn size(variable: &str, default: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text.replace('_', "").parse().unwrap_or_else(|_| panic!("{variable}=`{text}` is no number")),
        Err(_) => default,
    }
}

fn status(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("benches need Linux's /proc");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}
