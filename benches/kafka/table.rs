//! What several rounds come to, and what they are held to.

use crate::{
    case::{
        BARE, BARE_PREPARE, Case, FEED_MEMORY, KAFKA_AEROSPIKE, KAFKA_MEMORY, KAFKA_NULL, LOG_MEMORY, LOG_NULL, Place,
    },
    pipeline::Took,
};

/// A case, and what each of its rounds took.
pub struct Rounds {
    pub case: Case,
    pub place: Place,
    pub took: Vec<Took>,
}

impl Rounds {
    /// The middle one of a figure.
    fn median(&self, figure: impl Fn(&Took) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.took.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    }

    pub fn transactions_a_second(&self) -> f64 {
        self.median(|took| took.transactions as f64 / took.seconds)
    }

    /// The middle one of a time, µs a transaction.
    fn micros(&self, seconds: impl Fn(&Took) -> f64) -> f64 {
        self.median(|took| micros(took, seconds(took)))
    }

    /// User and system time a transaction, µs.
    fn cpu(&self) -> f64 {
        self.micros(cpu_seconds)
    }

    fn row(&self) {
        let cpus = || self.took.iter().map(|took| micros(took, cpu_seconds(took)));
        println!(
            "{:<20} {:>12} {:>10.0} {:>9.2} {:>9.2} {:>9.2} {:>15} {:>6.2} {:>10.0} {:>10.0}",
            self.case.name(),
            self.took[0].transactions,
            self.transactions_a_second(),
            self.micros(|took| took.user_seconds),
            self.micros(|took| took.system_seconds),
            self.cpu(),
            format!("{:.2} to {:.2}", cpus().fold(f64::MAX, f64::min), cpus().fold(0.0, f64::max)),
            self.median(|took| cpu_seconds(took) / took.seconds),
            self.median(|took| (took.memory_before >> 20) as f64),
            self.median(|took| (took.peak_memory >> 20) as f64),
        );
    }
}

fn cpu_seconds(took: &Took) -> f64 {
    took.user_seconds + took.system_seconds
}

fn micros(took: &Took, seconds: f64) -> f64 {
    seconds * 1e6 / took.transactions as f64
}

/// CPU of one case in that of another; where there is a goal, the most that it may be.
const RATIOS: [(Case, Case, Option<f64>); 5] = [
    (KAFKA_NULL, BARE, Some(1.3)),
    (KAFKA_NULL, BARE_PREPARE, None),
    (KAFKA_NULL, LOG_NULL, None),
    (KAFKA_MEMORY, LOG_MEMORY, Some(1.2)),
    (KAFKA_MEMORY, FEED_MEMORY, None),
];
/// µs of the client's CPU a transaction.
const AEROSPIKE_GOAL: f64 = 13.0;

pub fn print(all: &[Rounds]) {
    println!(
        "\n{:<20} {:>12} {:>10} {:>9} {:>9} {:>9} {:>15} {:>6} {:>10} {:>10}",
        "case",
        "transactions",
        "tx/s",
        "user µs",
        "system µs",
        "CPU µs",
        "least to most",
        "cores",
        "before MiB",
        "peak MiB"
    );
    all.iter().for_each(Rounds::row);
    println!("\nCPU of our process a transaction:");
    let of = |case: Case| all.iter().find(|rounds| rounds.case == case).map(Rounds::cpu);
    for (case, beside, goal) in RATIOS {
        if let (Some(cpu), Some(other)) = (of(case), of(beside)) {
            let goal = goal.map_or("no goal".to_owned(), |goal| told(cpu / other, goal));
            println!("  {:<16} in {:<18} {:>6.2} ({goal})", case.name(), beside.name(), cpu / other);
        }
    }
    if let Some(cpu) = of(KAFKA_AEROSPIKE) {
        println!("  {:<38} {cpu:>6.2} µs ({})", KAFKA_AEROSPIKE.name(), told(cpu, AEROSPIKE_GOAL));
    }
}

fn told(figure: f64, goal: f64) -> String {
    format!("goal {goal}: {}", if figure <= goal { "reached" } else { "not reached" })
}
