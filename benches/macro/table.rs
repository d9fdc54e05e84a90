//! The rows that are printed.

use crate::{
    raw::Took,
    run::{Case, Outcome},
};

pub fn head() {
    println!(
        "{:<28} {:>12} {:>10} {:>9} {:>9} {:>6} {:>8} {:>10} {:>10} {:>10}  raw",
        "case",
        "transactions",
        "tx/s",
        "user µs",
        "system µs",
        "cores",
        "ops/tx",
        "rows/batch",
        "peak MiB",
        "before MiB"
    );
}

pub fn row(case: &Case, outcome: &Outcome) {
    let per_tx = |count: u64| count as f64 / case.transactions as f64;
    let micros = |seconds: f64| seconds * 1e6 / case.transactions as f64;
    print!(
        "{:<28} {:>12} {:>10.0} {:>9.2} {:>9.2} {:>6.2} {:>8.2} {:>10.0} {:>10} {:>10}",
        case.name(),
        case.transactions,
        case.transactions as f64 / outcome.took.seconds,
        micros(outcome.took.user_seconds),
        micros(outcome.took.system_seconds),
        (outcome.took.user_seconds + outcome.took.system_seconds) / outcome.took.seconds,
        per_tx(outcome.operations),
        outcome.operations as f64 / outcome.batches.max(1) as f64,
        outcome.took.peak_memory >> 20,
        outcome.took.memory_before >> 20,
    );
    match &outcome.raw {
        Some(raw) => {
            let took = |took: &Took| {
                format!(
                    "{:.0} tx/s ({:.0} %), {:.2}+{:.2} µs",
                    case.transactions as f64 / took.seconds,
                    100.0 * took.seconds / outcome.took.seconds,
                    micros(took.user_seconds),
                    micros(took.system_seconds),
                )
            };
            let (as_they_came, sorted) = (took(&raw.as_they_came), took(&raw.sorted));
            let writes = per_tx(raw.writes);
            println!("  {as_they_came}; sorted {sorted}; {} syncs, {writes:.2} writes/tx", raw.syncs);
        }
        None => println!("  -"),
    }
}
