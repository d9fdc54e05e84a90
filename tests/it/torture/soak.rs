//! Soak: the torture for hours. One instance (on fjall: the process of all) is never killed, and its memory, file
//! descriptors and threads must stay flat: the maximum of the last third of the time exceeds the maximum of the first
//! third by a stated factor at most.
//!
//! `make soak HOURS=8 RATE=50 SEED=7 STORE=fjall|aerospike`; the log and the model, which reads all of it in the end,
//! need space.

use std::{
    fmt,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use utxo_store::broker::kafka::GroupProtocol;

use super::{
    INSTANCES, TestBed, TortureSettings, brokers::start_brokers, env_number, env_seed, instances::InstanceSet,
    on_aerospike, on_fjall,
};

/// Share of the time that is not judged: caches fill meanwhile.
const WARM_UP: f64 = 0.25;
/// Factor by which the last third may exceed the first.
const FACTOR: f64 = 1.25;
/// Amount by which it may exceed besides: bytes, file descriptors, threads. Restarts of the others take some.
const SLACK: [f64; 3] = [32e6, 16.0, 8.0];
const NAMES: [&str; 3] = ["bytes resident", "file descriptors", "threads"];
/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Time between two printed lines.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Size at which the log of an instance is truncated; one older copy is kept. Bytes.
const LOG_BYTES: u64 = 64 << 20;

/// Resources of a process, in the order of [`NAMES`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct ResourceUse([f64; 3]);

impl ResourceUse {
    /// Returns the present use; `None` if the process has ended.
    fn of(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as f64;
        Some(ResourceUse([number("VmRSS:")? * 1_024.0, files, number("Threads:")?]))
    }

    fn maximum(of: impl Iterator<Item = ResourceUse>) -> ResourceUse {
        of.fold(ResourceUse([0.0; 3]), |most, usage| {
            ResourceUse(std::array::from_fn(|place| most.0[place].max(usage.0[place])))
        })
    }
}

impl fmt::Display for ResourceUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, files, threads] = self.0;
        write!(f, "{:.1} MB, {files} files, {threads} threads", bytes / 1e6)
    }
}

/// Samples the processes of a soak.
pub struct ResourceWatch {
    started: Instant,
    time: Duration,
    sampled: Option<Instant>,
    last_report: Instant,
    /// Samples of the instance that is never killed, with the time since the start.
    samples: Vec<(Duration, ResourceUse)>,
    /// Maximum of all other instances.
    others: ResourceUse,
}

impl ResourceWatch {
    pub fn new(time: Duration) -> Self {
        let now = Instant::now();
        ResourceWatch {
            started: now,
            time,
            sampled: None,
            last_report: now,
            samples: Vec::new(),
            others: ResourceUse([0.0; 3]),
        }
    }

    /// Takes a sample, if one is due.
    pub fn sample(&mut self, testbed: &TestBed, instances: &dyn InstanceSet) {
        if self.sampled.is_some_and(|last| last.elapsed() < SAMPLE_EVERY) {
            return;
        }
        self.sampled = Some(Instant::now());
        for slot in 0..INSTANCES {
            let Some(usage) = instances.process(slot).and_then(ResourceUse::of) else { continue };
            match slot {
                0 => self.samples.push((self.started.elapsed(), usage)),
                _ => self.others = ResourceUse::maximum([self.others, usage].into_iter()),
            }
        }
        for name in ["host", "run-0", "run-1", "run-2"] {
            truncate_log(&testbed.bench.path(&format!("{name}.log")));
        }
        if self.last_report.elapsed() > REPORT_EVERY {
            self.last_report = Instant::now();
            if let Some((at, usage)) = self.samples.last() {
                eprintln!("{:>6.0} s: {usage}; {}", at.as_secs_f64(), describe_disk(testbed));
            }
        }
    }

    /// Fails unless the resources stayed flat.
    pub fn judge(&self, testbed: &TestBed) {
        let begins = self.time.mul_f64(WARM_UP);
        let third = (self.time - begins) / 3;
        let maximum = |from: Duration, to: Duration| {
            ResourceUse::maximum(self.samples.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, usage)| *usage))
        };
        let (first, last) = (maximum(begins, begins + third), maximum(self.time - third, Duration::MAX));
        eprintln!("{} samples; maximum after the warm-up {first}; in the end {last}", self.samples.len());
        eprintln!("maximum of the restarted instances: {}; {}", self.others, describe_disk(testbed));
        check_flat(first, last);
    }
}

fn check_flat(first: ResourceUse, last: ResourceUse) {
    for (place, name) in NAMES.iter().enumerate() {
        let (first, last) = (first.0[place], last.0[place]);
        assert!(first > 0.0, "{name}: no sample");
        assert!(last <= first * FACTOR + SLACK[place], "{name} grew from {first} to {last}");
    }
}

/// Describes the space used on the disk.
fn describe_disk(testbed: &TestBed) -> String {
    format!("{:.1} MB in its directory", size_of(testbed.bench.directory.path()) as f64 / 1e6)
}

fn size_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    // A file deleted meanwhile has no size.
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Truncates a log at its size limit; its writer appends, so that it continues at the start.
fn truncate_log(log: &Path) {
    if fs::metadata(log).is_ok_and(|found| found.len() > LOG_BYTES) {
        fs::copy(log, log.with_extension("log.1")).unwrap();
        File::options().write(true).open(log).unwrap().set_len(0).unwrap();
    }
}

/// Entry of `make soak`.
#[test]
#[ignore = "takes as long as SOAK_SECONDS says"]
fn a_long_soak() {
    let time = Duration::from_secs(env_number("SOAK_SECONDS", 3_600));
    let settings = TortureSettings {
        time,
        rate: env_number("RATE", 50),
        seed: env_seed(),
        is_first_spared: true,
        protocol: GroupProtocol::Classic,
        brokers: 1,
    };
    let Some(mut kafka) = start_brokers(settings.brokers) else { return };
    match std::env::var("STORE").as_deref() {
        Ok("aerospike") => on_aerospike(&mut kafka, settings),
        _ => on_fjall(&mut kafka, settings),
    }
}

#[test]
fn a_growing_process_is_detected() {
    let first = ResourceUse([100e6, 50.0, 20.0]);
    check_flat(first, ResourceUse([150e6, 70.0, 30.0]));
    for grown in [[160e6, 50.0, 20.0], [100e6, 80.0, 20.0], [100e6, 50.0, 40.0]] {
        assert!(std::panic::catch_unwind(|| check_flat(first, ResourceUse(grown))).is_err(), "{grown:?}");
    }
    let own = ResourceUse::of(std::process::id()).unwrap();
    assert!(own.0.iter().all(|number| *number > 0.0) && own.0[0] > 1e6, "{own}");
}
