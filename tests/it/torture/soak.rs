//! The soak: the torture for hours. One instance (on fjall: the process of all) is never killed, and its memory, file descriptors and threads
//! must be flat: what the last third of the time needs at the most is no more than what the first third did, but for a stated factor.
//!
//! `make soak HOURS=8 RATE=50 SEED=7 STORE=fjall|aerospike`; what it costs beside is the log, and the model, which reads all of it in the end.

use std::{
    fmt,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

use utxo_store::broker::kafka::GroupProtocol;

use super::{Ground, INSTANCES, Size, asked, asked_seed, crew::Crew, on_aerospike, on_fjall};
use crate::kafka_server::KafkaServer;

/// The part of the time that is not judged: what fills once is full then.
const WARM_UP: f64 = 0.25;
/// The last third may need so many times what the first third needs …
const FACTOR: f64 = 1.25;
/// … and so much more: bytes, file descriptors, threads. Whoever comes and goes takes some.
const SLACK: [f64; 3] = [32e6, 16.0, 8.0];
const NAMES: [&str; 3] = ["bytes resident", "file descriptors", "threads"];
/// Between two samples.
const EVERY: Duration = Duration::from_secs(2);
/// Between two lines.
const TOLD_EVERY: Duration = Duration::from_secs(60);
/// Logs of instances are begun anew beyond that, and the one before is kept.
const LOG_BYTES: u64 = 64 << 20;

/// What a process needs: as [`NAMES`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct Needs([f64; 3]);

impl Needs {
    /// `None`: it has ended.
    fn of(process: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as f64;
        Some(Needs([number("VmRSS:")? * 1_024.0, files, number("Threads:")?]))
    }

    fn most(of: impl Iterator<Item = Needs>) -> Needs {
        of.fold(Needs([0.0; 3]), |most, needs| Needs(std::array::from_fn(|place| most.0[place].max(needs.0[place]))))
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, files, threads] = self.0;
        write!(f, "{:.1} MB, {files} files, {threads} threads", bytes / 1e6)
    }
}

/// Watches the instances of a soak.
pub struct Watch {
    started: Instant,
    time: Duration,
    sampled: Option<Instant>,
    told: Instant,
    /// Of whoever is never killed, with the time since the start.
    samples: Vec<(Duration, Needs)>,
    /// The most of all others.
    others: Needs,
}

impl Watch {
    pub fn new(time: Duration) -> Self {
        let now = Instant::now();
        Watch { started: now, time, sampled: None, told: now, samples: Vec::new(), others: Needs([0.0; 3]) }
    }

    /// Takes a sample, where it is time for one.
    pub fn look(&mut self, ground: &Ground, crew: &dyn Crew) {
        if self.sampled.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.sampled = Some(Instant::now());
        for slot in 0..INSTANCES {
            let Some(needs) = crew.process(slot).and_then(Needs::of) else { continue };
            match slot {
                0 => self.samples.push((self.started.elapsed(), needs)),
                _ => self.others = Needs::most([self.others, needs].into_iter()),
            }
        }
        for name in ["host", "run-0", "run-1", "run-2"] {
            bound(&ground.bench.path(&format!("{name}.log")));
        }
        if self.told.elapsed() > TOLD_EVERY {
            self.told = Instant::now();
            if let Some((at, needs)) = self.samples.last() {
                eprintln!("{:>6.0} s: {needs}; {}", at.as_secs_f64(), stored(ground));
            }
        }
    }

    /// Fails unless what it needed is flat.
    pub fn judge(&self, ground: &Ground) {
        let begins = self.time.mul_f64(WARM_UP);
        let third = (self.time - begins) / 3;
        let most = |from: Duration, to: Duration| {
            Needs::most(self.samples.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, needs)| *needs))
        };
        let (first, last) = (most(begins, begins + third), most(self.time - third, Duration::MAX));
        eprintln!("{} samples; after the warm-up at the most {first}; in the end {last}", self.samples.len());
        eprintln!("instances that came and went: at the most {}; {}", self.others, stored(ground));
        judge(first, last);
    }
}

fn judge(first: Needs, last: Needs) {
    for (place, name) in NAMES.iter().enumerate() {
        let (first, last) = (first.0[place], last.0[place]);
        assert!(first > 0.0, "{name}: nothing was seen");
        assert!(last <= first * FACTOR + SLACK[place], "{name} grow: from {first} to {last}");
    }
}

/// What lies on the disk.
fn stored(ground: &Ground) -> String {
    format!("{:.1} MB in its directory", size_of(ground.bench.directory.path()) as f64 / 1e6)
}

fn size_of(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    // What is being deleted meanwhile has no size.
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

/// Whoever writes it appends, so it may be cut.
fn bound(log: &Path) {
    if fs::metadata(log).is_ok_and(|found| found.len() > LOG_BYTES) {
        fs::copy(log, log.with_extension("log.1")).unwrap();
        File::options().write(true).open(log).unwrap().set_len(0).unwrap();
    }
}

/// `make soak`.
#[test]
#[ignore = "takes as long as it is told to"]
fn for_long() {
    let time = Duration::from_secs(asked("SOAK_SECONDS", 3_600));
    let size = Size {
        time,
        rate: asked("RATE", 50),
        seed: asked_seed(),
        spares_first: true,
        protocol: GroupProtocol::Classic,
    };
    let Some(mut kafka) = KafkaServer::own() else { return };
    match std::env::var("STORE").as_deref() {
        Ok("aerospike") => on_aerospike(&mut kafka, size),
        _ => on_fjall(&mut kafka, size),
    }
}

#[test]
fn what_grows_is_seen() {
    let first = Needs([100e6, 50.0, 20.0]);
    judge(first, Needs([150e6, 70.0, 30.0]));
    for grown in [[160e6, 50.0, 20.0], [100e6, 80.0, 20.0], [100e6, 50.0, 40.0]] {
        assert!(std::panic::catch_unwind(|| judge(first, Needs(grown))).is_err(), "{grown:?}");
    }
    let own = Needs::of(std::process::id()).unwrap();
    assert!(own.0.iter().all(|number| *number > 0.0) && own.0[0] > 1e6, "{own}");
}
