//! `utxo-store size`: prints what a rate and a number of outputs need.

use std::io::Write;

use clap::{Args, ValueEnum};
use indicatif::{DecimalBytes, HumanCount};

use super::{CliResult, UsageError, output};
use crate::sizing::{Sizing, SizingInput};

const AFTER_HELP: &str = "\
The figures are computed from measured costs; docs/operating/sizing.md has each formula, and says
what was measured and what was assumed. A figure is for orders of magnitude: measure on your own
machines before you buy.

Example: utxo-store size --rate 10000 --outputs 100000000";

/// Command-line arguments of `utxo-store size`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct SizeArgs {
    /// Transactions that arrive in a second
    #[arg(long, value_name = "N")]
    rate: u64,
    /// Unspent outputs of the store
    #[arg(long, value_name = "N")]
    outputs: u64,
    /// Layout of the pages on Aerospike
    #[arg(long, value_enum, default_value_t = SizedLayout::Compact)]
    layout: SizedLayout,
    /// Copies of a record in Aerospike
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=8))]
    copies: u32,
    /// Share of the transactions that are contested, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.001)]
    contested: f64,
    /// Days for which names of pruned transactions gather
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    days: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Layout of pages, as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SizedLayout {
    Compact,
    Teranode,
}

impl SizeArgs {
    pub(super) fn run(self) -> CliResult {
        if !(0.0..=1.0).contains(&self.contested) {
            return Err(UsageError("--contested is a share from 0 to 1".to_owned()).into());
        }
        let input = SizingInput {
            rate: self.rate as f64,
            outputs: self.outputs as f64,
            teranode: self.layout == SizedLayout::Teranode,
            copies: self.copies.into(),
            contested: self.contested,
            days: self.days.into(),
            ..SizingInput::default()
        };
        let (size, mut out) = (Sizing::of(&input), output::stdout());
        if self.json {
            return Ok(output::write_json(&size, &mut out)?);
        }
        for (name, figure) in rows(&size) {
            writeln!(out, "{name:<44} {figure}")?;
        }
        for limit in size.limits(&input) {
            writeln!(out, "WARNING  {limit}")?;
        }
        Ok(())
    }
}

fn rows(size: &Sizing) -> Vec<(&'static str, String)> {
    let cores = |number: f64| format!("{number:.2}");
    let count = |number: f64| HumanCount(number as u64).to_string();
    let bytes = |number: f64| DecimalBytes(number as u64).to_string();
    let per_second = |number: f64| format!("{}/s", bytes(number));
    vec![
        ("partitions of the validated transactions", size.partitions.to_string()),
        ("instances of two cores", size.instances.to_string()),
        ("busy cores, instances", cores(size.instance_busy_cores)),
        ("busy cores, sequencer", cores(size.sequencer_busy_cores)),
        ("share of time that the chain is busy", cores(size.chain_busy)),
        ("pruned a second, at most", count(size.pruned)),
        ("brokers of four cores", size.brokers.to_string()),
        ("busy cores, brokers, three copies", cores(size.broker_busy_cores)),
        ("Kafka, from producers and instances", per_second(size.kafka_in)),
        ("Kafka, between brokers", per_second(size.kafka_between)),
        ("Kafka, to instances, at most", per_second(size.kafka_out)),
        ("log a day, three copies", bytes(size.log_bytes_a_day)),
        ("Aerospike nodes of 16 cores, one to lose", size.nodes.to_string()),
        ("busy cores, nodes, all copies", cores(size.node_busy_cores)),
        ("records, all copies", count(size.records)),
        ("memory of the indexes, all nodes", bytes(size.index_memory)),
        ("data, all copies", bytes(size.data)),
        ("devices, half full, all nodes", bytes(size.devices)),
        ("Aerospike, requests", per_second(size.node_requests)),
        ("Aerospike, between nodes", per_second(size.node_between)),
        ("Aerospike, written to all devices", per_second(size.device_writes)),
    ]
}
