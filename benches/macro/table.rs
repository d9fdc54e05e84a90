//! The rows that are printed.

use crate::run::{Case, Outcome};

pub fn head() {
    println!(
        "{:<28} {:>12} {:>10} {:>9} {:>6} {:>8} {:>10} {:>10} {:>10}  raw",
        "case", "transactions", "tx/s", "CPU µs/tx", "cores", "ops/tx", "rows/batch", "peak MiB", "before MiB"
    );
}

pub fn row(case: &Case, outcome: &Outcome) {
    let per_tx = |count: u64| count as f64 / case.transactions as f64;
    print!(
        "{:<28} {:>12} {:>10.0} {:>9.2} {:>6.2} {:>8.2} {:>10.0} {:>10} {:>10}",
        case.name(),
        case.transactions,
        case.transactions as f64 / outcome.seconds,
        outcome.cpu_seconds * 1e6 / case.transactions as f64,
        outcome.cpu_seconds / outcome.seconds,
        per_tx(outcome.operations),
        outcome.operations as f64 / outcome.batches.max(1) as f64,
        outcome.peak_memory >> 20,
        outcome.memory_before >> 20,
    );
    match &outcome.raw {
        Some(raw) => println!(
            "  {:.0} tx/s, {:.2} CPU µs/tx; pipeline is {:.0} % of it; {} syncs, {:.2} writes/tx",
            case.transactions as f64 / raw.seconds,
            raw.cpu_seconds * 1e6 / case.transactions as f64,
            100.0 * raw.seconds / outcome.seconds,
            raw.syncs,
            per_tx(raw.writes),
        ),
        None => println!("  -"),
    }
}
