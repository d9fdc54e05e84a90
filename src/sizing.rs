//! Sizes of a deployment: what a rate and a number of outputs need. `docs/operating/sizing.md`, "Formulas", has the
//! constants with their sources, and every formula. Pure.

/// Load and content of a deployment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizingInput {
    /// Transactions that arrive in a second.
    pub rate: f64,
    /// Unspent outputs of the store.
    pub outputs: f64,
    /// The layout of Aerospike is `teranode`, not `compact`.
    pub teranode: bool,
    /// Copies of a record in Aerospike.
    pub copies: f64,
    /// Unspent outputs of a record that has any.
    pub unspent_per_record: f64,
    /// Share of the transactions that are contested.
    pub contested: f64,
    /// Days of names, or of records that are not pruned, above the window of spent transactions.
    pub days: f64,
}

impl Default for SizingInput {
    fn default() -> Self {
        SizingInput {
            rate: 0.0,
            outputs: 0.0,
            teranode: false,
            copies: 2.0,
            unspent_per_record: 1.0,
            contested: 0.001,
            days: 0.0,
        }
    }
}

/// Sizes. Rates are a second; sizes are bytes; busy cores are an average.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[allow(missing_docs, reason = "the document names each figure")]
pub struct Sizing {
    pub partitions: u64,
    pub instances: u64,
    pub instance_busy_cores: f64,
    pub sequencer_busy_cores: f64,
    pub chain_busy: f64,
    pub chain_limit: f64,
    pub pruned: f64,
    pub prune_keeps_up_to: f64,
    pub node_busy_cores: f64,
    pub broker_busy_cores: f64,
    pub brokers: u64,
    pub log_bytes_a_day: f64,
    pub kafka_in: f64,
    pub kafka_between: f64,
    pub kafka_out: f64,
    pub node_requests: f64,
    pub node_between: f64,
    pub device_writes: f64,
    pub records: f64,
    pub index_memory: f64,
    pub data: f64,
    pub devices: f64,
    pub nodes: u64,
}

/// Nodes of a cluster that Community Edition allows.
pub const COMMUNITY_NODES: u64 = 8;

const TX_BYTES: f64 = 266.0;
const EVENT_OVERHEAD: f64 = 58.0;
const LISTING_BYTES: f64 = 32.0;
const OUTCOME_BYTES: f64 = 32.0;
const LOG_COPIES: f64 = 3.0;
const BROKER_US: f64 = 9.8;
const CONTEST_US: f64 = 114.0;
const PRUNE_US: f64 = 62.6;
const PRUNE_NODE_WRITES: f64 = 3.0;
const CHAIN_MINED_US: f64 = 11.5;
const CHAIN_CONTEST_US: f64 = 75.0;
const PRUNE_LIMIT: f64 = 11_394.0;
const BUSY: f64 = 0.7;
const INSTANCE_CORES: f64 = 2.0;
const BROKER_CORES: f64 = 4.0;
const NODE_CORES: f64 = 16.0;
const INDEX_ENTRY: f64 = 64.0;
const SINDEX_ENTRY: f64 = 14.0 / 0.69;
const SINDEX_NODE: f64 = 67_108_864.0;
const DEVICE_SHARE: f64 = 0.5;
const NODE_MEMORY: f64 = 0.8 * 274_877_906_944.0;
const NODE_DEVICE: f64 = 1_374_389_534_720.0;
const NODE_RECORDS: f64 = 4_294_967_296.0;
const BLOCK_S: f64 = 600.0;
const RETENTION: f64 = 288.0;
const DAY_S: f64 = 86_400.0;

/// Constants that differ between the layouts.
struct LayoutCosts {
    instance_us: f64,
    node_us: f64,
    mined_us: f64,
    mined_node_us: f64,
    record_unmined: f64,
    record_live: f64,
    record_due: f64,
    record_name: f64,
    create_request: f64,
    other_requests: f64,
}

const COMPACT: LayoutCosts = LayoutCosts {
    instance_us: 36.9,
    node_us: 20.9,
    mined_us: 6.0,
    mined_node_us: 7.0,
    record_unmined: 512.0,
    record_live: 576.0,
    record_due: 624.0,
    record_name: 144.0,
    create_request: 559.0,
    other_requests: 900.0,
};

const TERANODE: LayoutCosts = LayoutCosts {
    instance_us: 45.8,
    node_us: 38.7,
    mined_us: 7.63,
    mined_node_us: 10.9,
    record_unmined: 672.0,
    record_live: 720.0,
    record_due: 784.0,
    record_name: 144.0,
    create_request: 834.0,
    other_requests: 1_500.0,
};

impl Sizing {
    /// Computes the sizes of a deployment.
    pub fn of(input: &SizingInput) -> Self {
        let SizingInput { rate, outputs, teranode, copies, unspent_per_record, contested, days } = *input;
        let costs = if teranode { TERANODE } else { COMPACT };
        let instance_busy = rate * costs.instance_us / 1e6;
        let instances = (instance_busy / (INSTANCE_CORES * BUSY)).ceil().max(2.0);

        let chain_us = CHAIN_MINED_US + contested * CHAIN_CONTEST_US;
        let (chain_busy, chain_limit) = (rate * chain_us / 1e6, 1e6 / chain_us);
        let listed = rate.min(chain_limit);
        let pruned = rate.min(PRUNE_LIMIT * (1.0 - chain_busy).max(0.0));
        let sequencer_busy = (listed * (costs.mined_us + contested * CONTEST_US) + pruned * PRUNE_US) / 1e6;
        let node_writes = (listed + PRUNE_NODE_WRITES * pruned) * costs.mined_node_us;
        let node_busy = copies * (rate * costs.node_us + node_writes) / 1e6;
        let broker_busy = LOG_COPIES * rate * BROKER_US / 1e6;

        let ids = 2.0 * LISTING_BYTES;
        let log_bytes = TX_BYTES + EVENT_OVERHEAD + ids + 2.0 * OUTCOME_BYTES;
        let write_bytes = costs.record_unmined + 2.0 * costs.record_live + 2.0 * costs.record_name;

        let live = outputs / unspent_per_record;
        let (unmined, window) = (rate * BLOCK_S, rate * RETENTION * BLOCK_S);
        let (names, kept) = (pruned * DAY_S * days, (rate - pruned) * DAY_S * days);
        let records = copies * (live + unmined + window + names + kept);
        let primary = records * INDEX_ENTRY;
        let secondary = copies * (unmined + window + kept) * SINDEX_ENTRY;
        let data = live * costs.record_live
            + unmined * costs.record_unmined
            + (window + kept) * costs.record_due
            + names * costs.record_name;
        let devices = copies * data / DEVICE_SHARE;
        let needed = [
            2.0,
            (node_busy / (NODE_CORES * BUSY)).ceil(),
            ((primary + secondary) / (NODE_MEMORY - SINDEX_NODE)).ceil(),
            (devices / (NODE_DEVICE * copies)).ceil(),
            (records / NODE_RECORDS).ceil(),
        ];
        let nodes = needed.into_iter().fold(0.0, f64::max) + 1.0;
        Sizing {
            partitions: (4.0 * instances.max(6.0)) as u64,
            instances: instances as u64,
            instance_busy_cores: instance_busy,
            sequencer_busy_cores: sequencer_busy,
            chain_busy,
            chain_limit,
            pruned,
            prune_keeps_up_to: PRUNE_LIMIT / (1.0 + PRUNE_LIMIT / chain_limit),
            node_busy_cores: node_busy,
            broker_busy_cores: broker_busy,
            brokers: (broker_busy / (BROKER_CORES * BUSY)).ceil().max(3.0) as u64,
            log_bytes_a_day: rate * log_bytes * DAY_S * LOG_COPIES,
            kafka_in: rate * log_bytes,
            kafka_between: rate * log_bytes * (LOG_COPIES - 1.0),
            kafka_out: rate * (TX_BYTES + EVENT_OVERHEAD + ids + 2.0 * OUTCOME_BYTES * instances),
            node_requests: rate * (costs.create_request + costs.other_requests),
            node_between: rate * (copies - 1.0) * write_bytes,
            device_writes: rate * copies * write_bytes / DEVICE_SHARE,
            records,
            index_memory: primary + secondary + nodes * SINDEX_NODE,
            data: copies * data,
            devices,
            nodes: nodes as u64,
        }
    }

    /// Names what this version, or Community Edition, does not sustain; each is one line.
    pub fn limits(&self, input: &SizingInput) -> Vec<String> {
        let mut limits = Vec::new();
        if self.chain_busy > 1.0 {
            let limit = self.chain_limit;
            limits
                .push(format!("the chain falls behind: one sequencer handles {limit:.0} listed transactions a second"));
        }
        if self.pruned < input.rate {
            let limit = self.prune_keeps_up_to;
            limits.push(format!("pruning falls behind: beside blocks a sequencer keeps up with {limit:.0} a second"));
        }
        if self.nodes > COMMUNITY_NODES {
            let nodes = self.nodes;
            limits.push(format!("{nodes} nodes: Community Edition allows {COMMUNITY_NODES} in a cluster"));
        }
        limits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../docs/operating/sizing.md");

    /// Returns the cells of the row of a table that begins so.
    fn row(name: &str) -> Vec<String> {
        let row =
            DOCUMENT.lines().find(|line| line.starts_with(&format!("| {name} |"))).unwrap_or_else(|| panic!("{name}"));
        row.trim_matches('|').split(" | ").skip(1).map(|cell| cell.trim().to_owned()).collect()
    }

    /// Returns the figure of a cell for one layout: `compact / teranode`, or one for both.
    fn figure(cell: &str, teranode: bool) -> &str {
        let mut parts = cell.split(" / ");
        let first = parts.next().unwrap();
        if teranode { parts.next().unwrap_or(first) } else { first }
    }

    #[test]
    fn the_tables_of_the_document_are_those_of_the_formulas() {
        let whole = |number: u64| number.to_string();
        let cores = |number: f64| {
            if number < 1.0 {
                format!("{number:.2}")
            } else if number < 10.0 {
                format!("{number:.1}")
            } else {
                format!("{number:.0}")
            }
        };
        for teranode in [false, true] {
            for (column, rate) in [10_000.0, 100_000.0, 1_000_000.0].into_iter().enumerate() {
                let size = Sizing::of(&SizingInput { rate, outputs: 1e8, teranode, ..SizingInput::default() });
                for (name, computed) in [
                    ("partitions of the validated transactions", whole(size.partitions)),
                    ("instances of two cores", whole(size.instances)),
                    ("brokers of four cores", whole(size.brokers)),
                    ("nodes", whole(size.nodes)),
                    ("busy cores, sequencer", format!("{:.2}", size.sequencer_busy_cores)),
                    ("busy cores, brokers, three copies", cores(size.broker_busy_cores)),
                ] {
                    let cells = row(name);
                    assert_eq!(
                        figure(&cells[column], teranode).split(' ').next(),
                        Some(&*computed),
                        "{name} at {rate}, {teranode}"
                    );
                }
            }
            for (column, outputs) in [(usize::from(teranode), 1e8), (2 + usize::from(teranode), 5e9)] {
                let size = Sizing::of(&SizingInput { outputs, teranode, ..SizingInput::default() });
                let cells: Vec<Vec<String>> = DOCUMENT
                    .lines()
                    .filter(|line| line.starts_with("| nodes |"))
                    .map(|line| {
                        line.trim_matches('|').split(" | ").skip(1).map(|cell| cell.trim().to_owned()).collect()
                    })
                    .collect();
                assert_eq!(cells[1][column], size.nodes.to_string(), "{outputs}, {teranode}");
            }
        }
    }

    #[test]
    fn limits_are_told_where_a_rate_is_not_sustained() {
        let at = |rate| {
            let input = SizingInput { rate, outputs: 1e8, ..SizingInput::default() };
            Sizing::of(&input).limits(&input).len()
        };
        assert_eq!([at(1_000.0), at(10_067.0), at(100_000.0)], [0, 1, 3]);
    }
}
