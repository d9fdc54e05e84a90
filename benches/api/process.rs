//! CPU time and memory of another process, from `/proc`.

use std::{fs, time::Duration};

/// Clock ticks of `/proc` are 10 ms on every Linux that this was run on (`getconf CLK_TCK`).
const TICK: Duration = Duration::from_millis(10);

/// Returns the CPU time of all threads of a process, user and system.
pub fn cpu(process: u32) -> Duration {
    let stat = read(process, "stat");
    // The process name, of any characters, is in parentheses; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok());
    TICK * ticks.sum()
}

/// Returns the resident memory, in bytes.
pub fn resident(process: u32) -> u64 {
    status(process, "VmRSS:")
}

/// Returns the peak of the resident memory since [`reset_peak`], in bytes.
pub fn peak(process: u32) -> u64 {
    status(process, "VmHWM:")
}

/// Resets the peak to the present resident memory.
pub fn reset_peak(process: u32) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").expect("the process belongs to this bench");
}

/// Formats bytes as MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn status(process: u32, field: &str) -> u64 {
    let status = read(process, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn read(process: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{file}")).expect("the process runs, and benches need Linux's /proc")
}
