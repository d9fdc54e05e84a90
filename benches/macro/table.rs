//! Printed table of the results.

use crate::{
    raw::RawMeasurement,
    run::{Case, Outcome},
};

pub fn print_head() {
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

pub fn print_row(case: &Case, outcome: &Outcome) {
    let per_tx = |count: u64| count as f64 / case.transactions as f64;
    let micros = |seconds: f64| seconds * 1e6 / case.transactions as f64;
    print!(
        "{:<28} {:>12} {:>10.0} {:>9.2} {:>9.2} {:>6.2} {:>8.2} {:>10.0} {:>10} {:>10}",
        case.name(),
        case.transactions,
        case.transactions as f64 / outcome.measurement.seconds,
        micros(outcome.measurement.user_seconds),
        micros(outcome.measurement.system_seconds),
        (outcome.measurement.user_seconds + outcome.measurement.system_seconds) / outcome.measurement.seconds,
        per_tx(outcome.operations),
        outcome.operations as f64 / outcome.batches.max(1) as f64,
        outcome.measurement.peak_memory >> 20,
        outcome.measurement.memory_before >> 20,
    );
    match &outcome.raw {
        Some(raw) => {
            let describe = |raw: &RawMeasurement| {
                format!(
                    "{:.0} tx/s ({:.0} %), {:.2}+{:.2} µs",
                    case.transactions as f64 / raw.seconds,
                    100.0 * raw.seconds / outcome.measurement.seconds,
                    micros(raw.user_seconds),
                    micros(raw.system_seconds),
                )
            };
            let (unsorted, sorted) = (describe(&raw.unsorted), describe(&raw.sorted));
            let writes = per_tx(raw.writes);
            println!("  {unsorted}; sorted {sorted}; {} syncs, {writes:.2} writes/tx", raw.syncs);
        }
        None => println!("  -"),
    }
}
