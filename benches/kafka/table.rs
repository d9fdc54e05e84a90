//! Table of the rounds' medians, and their goals.

use crate::{
    case::{BARE, BARE_PREPARE, Case, FEED_MEMORY, KAFKA_AEROSPIKE, KAFKA_MEMORY, KAFKA_NULL, LOG_MEMORY, LOG_NULL},
    pipeline::Measurement,
    topic::BenchTopic,
};

/// A case with the measurement of each round.
pub struct Rounds {
    pub case: Case,
    pub bench_topic: BenchTopic,
    pub measurements: Vec<Measurement>,
}

impl Rounds {
    /// Returns the median of a figure.
    fn median(&self, figure: impl Fn(&Measurement) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.measurements.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    }

    pub fn transactions_a_second(&self) -> f64 {
        self.median(|measurement| measurement.transactions as f64 / measurement.seconds)
    }

    /// Returns the median of a time, µs per transaction.
    fn micros(&self, seconds: impl Fn(&Measurement) -> f64) -> f64 {
        self.median(|measurement| micros(measurement, seconds(measurement)))
    }

    /// Returns the median of user and system time, µs per transaction.
    fn cpu(&self) -> f64 {
        self.micros(cpu_seconds)
    }

    fn row(&self) {
        let cpus = || self.measurements.iter().map(|measurement| micros(measurement, cpu_seconds(measurement)));
        println!(
            "{:<20} {:>12} {:>10.0} {:>9.2} {:>9.2} {:>9.2} {:>15} {:>6.2} {:>10.0} {:>10.0}",
            self.case.name(),
            self.measurements[0].transactions,
            self.transactions_a_second(),
            self.micros(|measurement| measurement.user_seconds),
            self.micros(|measurement| measurement.system_seconds),
            self.cpu(),
            format!("{:.2} to {:.2}", cpus().fold(f64::MAX, f64::min), cpus().fold(0.0, f64::max)),
            self.median(|measurement| cpu_seconds(measurement) / measurement.seconds),
            self.median(|measurement| (measurement.memory_before >> 20) as f64),
            self.median(|measurement| (measurement.peak_memory >> 20) as f64),
        );
    }
}

fn cpu_seconds(measurement: &Measurement) -> f64 {
    measurement.user_seconds + measurement.system_seconds
}

fn micros(measurement: &Measurement, seconds: f64) -> f64 {
    seconds * 1e6 / measurement.transactions as f64
}

/// Compared cases (CPU of the first divided by that of the second), with the goal if there is one.
const RATIOS: [(Case, Case, Option<f64>); 5] = [
    (KAFKA_NULL, BARE, Some(1.3)),
    (KAFKA_NULL, BARE_PREPARE, None),
    (KAFKA_NULL, LOG_NULL, None),
    (KAFKA_MEMORY, LOG_MEMORY, Some(1.2)),
    (KAFKA_MEMORY, FEED_MEMORY, None),
];
/// Goal for the client's CPU on Aerospike, µs per transaction.
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
            let goal = goal.map_or("no goal".to_owned(), |goal| goal_result(cpu / other, goal));
            println!("  {:<16} in {:<18} {:>6.2} ({goal})", case.name(), beside.name(), cpu / other);
        }
    }
    if let Some(cpu) = of(KAFKA_AEROSPIKE) {
        println!("  {:<38} {cpu:>6.2} µs ({})", KAFKA_AEROSPIKE.name(), goal_result(cpu, AEROSPIKE_GOAL));
    }
}

fn goal_result(figure: f64, goal: f64) -> String {
    format!("goal {goal}: {}", if figure <= goal { "reached" } else { "not reached" })
}
