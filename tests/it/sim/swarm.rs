//! Selection of the kinds of events and faults of a seed. Each kind is off in most histories, since kinds that always
//! occur together hide faults of one kind alone.

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use super::plan::ONE_PAGE;
use utxo_store::{blob::fault as blob, broker::memory::MemoryFaults, engine::fault::EngineFaults, rng::SplitMix64};

/// Kinds of events, each enabled by chance.
pub const EVENTS: &[&str] = &[
    "fan-out",
    "double spend",
    "triple spend",
    "crossing",
    "descendants",
    "duplicate",
    "lie",
    "child first",
    "missing parent",
    "late parent",
    "poison",
    "block",
    "loser in block",
    "early block",
    "locked",
    "coinbase spend",
    "immature",
    "reconsider",
    "crash",
    "stop",
    "pause",
    "zombie",
    "deaf zombie",
    "rebalance",
    "lose assignments",
    "deliver late",
];

/// Kinds of events that were added later. A separate generator keeps the plans of older seeds as they were.
pub const LATER_EVENTS: &[&str] = &["children of losers"];

/// Injected faults, each with its greatest probability.
pub const FAULTS: &[(&str, f64)] = &[
    ("lost-request", 0.05),
    ("lost-reply", 0.05),
    ("late", 0.05),
    ("half-applied", 0.05),
    ("key-busy", 0.05),
    ("repeated", 0.05),
    ("failed-read", 0.05),
    ("delayed", 0.3),
    ("delivery-repeated", 0.1),
    ("delivery-delayed", 0.2),
    ("rebalance", 0.02),
    ("lost-assignment", 0.02),
    ("produce-refused", 0.5),
    ("produce-unacknowledged", 0.1),
];

/// Faults that were added later: greatest probability, and share of the histories. They have a separate generator, too.
pub const LATER_FAULTS: &[(&str, f64, f64)] = &[
    (NODE_FORGETS, 0.05, 0.2),
    ("blob-lost-request", 0.1, 0.3),
    ("blob-lost-reply", 0.1, 0.3),
    ("blob-slow", 0.3, 0.3),
    ("blob-cut-short", 0.1, 0.3),
    ("blob-denied", 0.1, 0.3),
    ("blob-damaged-before", 0.2, 0.3),
];

/// A node restarts and loses its last acknowledged writes.
pub const NODE_FORGETS: &str = "node-forgets";
/// Maximum restarts of nodes in one run: with restarts all the time no offset is ever committed.
const MAX_NODE_RESTARTS: u64 = 3;

/// Returns the slots per page: in some histories (all with `SIM_PAGES=1`) so few that most transactions have several
/// pages. A separate generator keeps the rest of the plan as it was.
pub fn page_size(seed: u64) -> u32 {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"of pages"));
    let all = std::env::var("SIM_PAGES").is_ok_and(|text| text == "1");
    if rng.below(5) < 2 || all { *rng.pick(&[1, 2, 2, 3]) } else { ONE_PAGE }
}

/// Returns the size, in bytes, above which bodies go to a blob store: in some of the histories (all with
/// `SIM_BLOBS=1`), for all bodies or only the larger ones. A separate generator keeps the rest of the plan as it was.
pub fn inline_limit(seed: u64) -> Option<u64> {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"of blobs"));
    let all = std::env::var("SIM_BLOBS").is_ok_and(|text| text == "1");
    (rng.below(5) < 2 || all).then(|| *rng.pick(&[0, 100, 200, 1_000_000]))
}

/// Returns the longest inline body, in bytes, that the engine accepts in some of the histories; longer ones go to the
/// blob store. A separate generator keeps the rest of the plan as it was.
pub fn longest_body(seed: u64) -> Option<u64> {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"too big!"));
    (rng.below(2) == 0).then(|| *rng.pick(&[20, 90, 120, 160]))
}

/// Properties that the simulator does not check yet.
pub const NOT_SIMULATED: &[&str] = &["reasons of decisions that are about who is live, once a node has forgotten"];

/// Returns the enabled kinds of events. `SIM_WITHOUT="lie,poison"` excludes these from every history.
pub fn events(rng: &mut SplitMix64) -> BTreeSet<&'static str> {
    let share = *rng.pick(&[0.15, 0.35, 0.6]);
    EVENTS.iter().copied().filter(|_| rng.chance(share)).filter(|kind| !is_excluded(kind)).collect()
}

/// Returns the enabled kinds of the events that were added later.
pub fn later_events(rng: &mut SplitMix64) -> BTreeSet<&'static str> {
    LATER_EVENTS.iter().copied().filter(|_| rng.chance(0.3)).filter(|kind| !is_excluded(kind)).collect()
}

/// Whether `SIM_WITHOUT` excludes this kind from every history.
pub fn is_excluded(kind: &str) -> bool {
    is_listed_in("SIM_WITHOUT", kind)
}

fn is_forced(kind: &str) -> bool {
    is_listed_in("SIM_WITH", kind)
}

fn is_listed_in(variable: &str, kind: &str) -> bool {
    std::env::var(variable).is_ok_and(|kinds| kinds.split(',').any(|named| named == kind))
}

/// Returns the enabled faults with their probabilities.
pub fn faults(rng: &mut SplitMix64) -> BTreeMap<&'static str, f64> {
    let share = *rng.pick(&[0.0, 0.15, 0.35, 0.6]);
    let mut on = BTreeMap::new();
    for (name, most) in FAULTS {
        if rng.chance(share) {
            on.insert(*name, rate(rng, *most));
        }
    }
    on
}

/// Returns the enabled ones of the faults that were added later. `SIM_WITH="node-forgets"` enables that fault in every
/// history.
pub fn later_faults(rng: &mut SplitMix64) -> BTreeMap<&'static str, f64> {
    let mut on = BTreeMap::new();
    for (name, most, share) in LATER_FAULTS {
        let (chosen, rate) = (rng.chance(*share), rate(rng, *most));
        if (chosen || is_forced(name)) && !is_excluded(name) {
            on.insert(*name, rate);
        }
    }
    on
}

/// Returns a rounded probability, so that a printed plan parses to the same plan.
fn rate(rng: &mut SplitMix64, most: f64) -> f64 {
    let rate = most * (1 + rng.below(10)) as f64 / 10.0;
    (rate * 10_000.0).round() / 10_000.0
}

/// Returns the fault of this name.
pub fn find_fault(name: &str) -> Option<&'static str> {
    let later = LATER_FAULTS.iter().map(|(fault, ..)| *fault);
    FAULTS.iter().map(|(fault, _)| *fault).chain(later).find(|fault| *fault == name)
}

/// Returns the loss window of the store. A plan lasts about a second: the window is much shorter, so that offsets are
/// committed.
pub fn loss_window(on: &BTreeMap<&'static str, f64>) -> Duration {
    if on.contains_key(NODE_FORGETS) { Duration::from_millis(100) } else { Duration::ZERO }
}

/// Returns the faults between the instances and the engine.
pub fn engine_faults(on: &BTreeMap<&'static str, f64>, rng_seed: u64) -> EngineFaults {
    let rate = |name| on.get(name).copied().unwrap_or(0.0);
    EngineFaults {
        lost_request: rate("lost-request"),
        lost_reply: rate("lost-reply"),
        late: rate("late"),
        // In half of the histories a write arrives long after its sender has lost the partition.
        late_within_calls: if rng_seed.is_multiple_of(2) { 300 } else { 3_000 },
        half_applied: rate("half-applied"),
        key_busy: rate("key-busy"),
        repeated: rate("repeated"),
        node_restart: rate(NODE_FORGETS),
        max_node_restarts: MAX_NODE_RESTARTS,
        failed_read: rate("failed-read"),
        delayed: rate("delayed"),
        delay_within: Duration::from_millis(50),
        longest_body: None,
    }
}

/// Returns the faults between the instances and the blob store. Damaged bytes are not among them: after two such reads
/// a halt is correct.
pub fn blob_faults(on: &BTreeMap<&'static str, f64>) -> blob::BlobFaults {
    let rate = |name| on.get(name).copied().unwrap_or(0.0);
    blob::BlobFaults {
        lost_request: rate("blob-lost-request"),
        lost_reply: rate("blob-lost-reply"),
        slow: rate("blob-slow"),
        slow_within: Duration::from_millis(200),
        cut_short: rate("blob-cut-short"),
        denied: rate("blob-denied"),
        damaged_before: rate("blob-damaged-before"),
        ..blob::BlobFaults::default()
    }
}

/// Returns the faults of the log.
pub fn log_faults(on: &BTreeMap<&'static str, f64>, seed: u64) -> MemoryFaults {
    let rate = |name| on.get(name).copied().unwrap_or(0.0);
    MemoryFaults {
        seed,
        duplicate: rate("delivery-repeated"),
        delay: rate("delivery-delayed"),
        delay_max: Duration::from_millis(200),
        rebalance: rate("rebalance"),
        lost_assignment: rate("lost-assignment"),
        produce_refused: rate("produce-refused"),
        produce_unacknowledged: rate("produce-unacknowledged"),
    }
}
