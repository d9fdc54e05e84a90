//! A command as a process, with its time, CPU and peak of memory.

use std::{
    fs::File,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    process::{cpu, peak},
    program::Bench,
};

const POLL: Duration = Duration::from_millis(10);

/// A command that has ended.
pub struct Measured {
    pub time: Duration,
    /// CPU of the process, up to [`POLL`] before its end.
    pub cpu: Duration,
    /// Peak of the resident memory, bytes.
    pub peak: u64,
    /// Report of the command.
    pub report: Value,
}

/// Runs a command of the program to its end.
pub fn run(program: &Bench, arguments: &[&str], variables: &[(&str, &str)]) -> Measured {
    let (out, log) = (program.path("command.json"), program.path("command.log"));
    let create = |path| File::create(path).expect("the folder belongs to the bench");
    let mut command = program.command(arguments, variables);
    command.arg("--json").stdin(Stdio::null()).stdout(create(&out)).stderr(create(&log));
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program was built");
    let (mut cpu_used, mut most) = (Duration::ZERO, 0);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the process belongs to the bench") {
            break status;
        }
        (cpu_used, most) = (cpu(child.id()), most.max(peak(child.id())));
        thread::sleep(POLL);
    };
    let time = begun.elapsed();
    let text = |path| std::fs::read_to_string(path).expect("the process wrote text");
    assert!(status.success(), "{arguments:?}: {}", text(&log));
    let report = serde_json::from_str(text(&out).lines().last().unwrap_or_default()).expect("a report in JSON");
    Measured { time, cpu: cpu_used, peak: most, report }
}
