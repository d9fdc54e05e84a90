//! The simulation beside the measurement, and the simulation of deployments that one machine cannot show.

use std::collections::BTreeSet;

use crate::{
    measure::env_number,
    simulation::{Costs, Fleet, Load, Simulated, simulate},
    steady::Steady,
};

/// Cores of each simulated machine, as of the machine that the costs are measured on.
const CORES: usize = 2;
/// Numbers of instances, each on a machine of its own.
const INSTANCES: [usize; 4] = [1, 8, 32, 128];
/// Brokers and nodes are so many that their cores are busy for at most this share of the time at full load.
const MOST_BUSY: f64 = 0.7;
/// Simulated time, seconds: the queues of the start are gone after the first half, which does not count.
const ON_ONE_MACHINE: f64 = 20.0;
const ON_MANY: f64 = 4.0;
/// Share of the full load at which latencies are simulated.
const LOAD: f64 = 0.8;

/// Costs that this bench does not measure, in tenths of µs; `benches/README.md` names their sources.
fn assumed(variable: &str, default: u64) -> f64 {
    env_number(variable, default) as f64 / 10.0
}

/// Prints what the simulation computes for the measured deployment: the same costs, the cores of one machine.
pub fn compare(measured: &[Steady], partitions: i32) {
    let Some(first) = measured.first() else { return };
    // The measured load has no blocks.
    let costs = Costs { mined: 0.0, ..costs_of(first) };
    println!("\nSimulated with the costs of one instance, all processes on one machine of {CORES} cores:");
    println!("{:>9} {:>18} {:>18} {:>7}", "instances", "measured tx/s", "simulated tx/s", "ratio");
    for steady in measured {
        let fleet = Fleet {
            instances: steady.members,
            partitions: partitions as usize,
            brokers: 1,
            nodes: usize::from(first.database_us > 0.0),
            copies: 1,
            cores: CORES,
            is_one_machine: true,
        };
        let simulated = simulate(&costs, &fleet, Load::Backlog, 0.0, ON_ONE_MACHINE);
        println!(
            "{:>9} {:>18.0} {:>18.0} {:>7.2}",
            steady.members,
            steady.rate,
            simulated.rate,
            steady.rate / simulated.rate
        );
    }
}

/// Prints what the simulation computes for many machines.
pub fn forecast(measured: &Steady) {
    let costs = costs_of(measured);
    println!("\nSimulated: each process on a machine of {CORES} cores; two copies; costs in µs: {costs:?}");
    println!(
        "{:>9} {:>10} {:>7} {:>5} {:>8} {:>11} {:>9} {:>18} {:>9} {:>8} {:>8} {:>8}",
        "instances",
        "partitions",
        "brokers",
        "nodes",
        "contests",
        "full tx/s",
        "of linear",
        "p50, p99 at 0.8 ms",
        "instances",
        "brokers",
        "nodes",
        "chain"
    );
    let mut single = None;
    for instances in INSTANCES {
        for partitions in BTreeSet::from([24, 4 * instances.max(6)]) {
            for double_spends in [0.0, 0.01] {
                let fleet = fleet(&costs, instances, partitions);
                let full = simulate(&costs, &fleet, Load::Backlog, double_spends, ON_MANY);
                let single = *single.get_or_insert(full.rate);
                let part = simulate(&costs, &fleet, Load::Rate(LOAD * full.rate), double_spends, ON_MANY);
                print(&fleet, double_spends, &full, &part, full.rate / single / instances as f64);
            }
        }
    }
    println!("The one sequencer is the limit of all instances together, where blocks list what becomes live:");
    for double_spends in [0.0, 0.001, 0.01] {
        let limit = 1e6 / (costs.mined + double_spends * costs.contest);
        println!("{limit:>9.0} transactions a second with {:.1} % of double spends", double_spends * 100.0);
    }
}

fn costs_of(steady: &Steady) -> Costs {
    let (request, network) = (assumed("SCALE_REQUEST_US_10", 100), assumed("SCALE_NETWORK_US_10", 1_000));
    let (contest, mined) = (assumed("SCALE_CONTEST_US_10", 750), assumed("SCALE_MINED_US_10", 115));
    // The measured cost of a node includes its two requests a batch.
    let requests = 2.0 * request / 256.0;
    let database = (steady.database_us - requests).max(0.0);
    let (instance, broker) = (steady.members_us, steady.broker_us);
    Costs { instance, broker, database, request, contest, mined, network }
}

/// Returns instances with as many brokers and nodes as they need.
fn fleet(costs: &Costs, instances: usize, partitions: usize) -> Fleet {
    let rate = (instances.min(partitions) * CORES) as f64 / costs.instance;
    let needed = |cost: f64| (rate * cost / CORES as f64 / MOST_BUSY).ceil() as usize;
    let copies = 2;
    // More nodes cost more requests, which need more nodes.
    let mut nodes = 3;
    for _ in 0..16 {
        let requests = 2.0 * nodes.min(256) as f64 * costs.request / 256.0;
        nodes = needed(copies as f64 * (costs.database + requests)).max(3);
    }
    // Each of three copies of a message is written.
    let brokers = needed(3.0 * costs.broker).max(3);
    Fleet { instances, partitions, brokers, nodes, copies, cores: CORES, is_one_machine: false }
}

fn print(fleet: &Fleet, double_spends: f64, full: &Simulated, part: &Simulated, of_linear: f64) {
    println!(
        "{:>9} {:>10} {:>7} {:>5} {:>6.1} % {:>11.0} {of_linear:>9.2} {:>18} {:>9.2} {:>8.2} {:>8.2} {:>8.2}{}",
        fleet.instances,
        fleet.partitions,
        fleet.brokers,
        fleet.nodes,
        double_spends * 100.0,
        full.rate,
        format!("{:.1}, {:.1}", part.latency_ms.0, part.latency_ms.1),
        part.instances,
        part.brokers,
        part.nodes,
        part.chain,
        if part.chain > 0.999 { "; the sequencer falls behind" } else { "" },
    );
}
