//! Which kinds of events and faults a seed turns on. Each is off in most histories: what always happens together hides
//! what happens alone.

use std::{collections::BTreeMap, collections::BTreeSet, time::Duration};

use super::plan::ONE_PAGE;
use utxo_store::{blob::fault as blob, broker::memory::MemoryFaults, engine::fault::Faults, seeded::Seeded};

/// Kinds of events.
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

/// Kinds of events that were thought of later. They have dice of their own, so that the others are as they were.
pub const LATER_EVENTS: &[&str] = &["children of losers"];

/// Faults by chance, with the greatest probability each.
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

/// Faults that were thought of later, with the greatest probability each and the part of the histories that have it. They have
/// dice of their own, too.
pub const LATER_FAULTS: &[(&str, f64, f64)] = &[
    (FORGETS, 0.05, 0.2),
    ("blob-lost-request", 0.1, 0.3),
    ("blob-lost-reply", 0.1, 0.3),
    ("blob-slow", 0.3, 0.3),
    ("blob-cut-short", 0.1, 0.3),
    ("blob-denied", 0.1, 0.3),
    ("blob-damaged-before", 0.2, 0.3),
];

/// A node restarts and forgets what it acknowledged last.
pub const FORGETS: &str = "node-forgets";
/// A store whose nodes restart all the time commits nothing.
const FORGETS_AT_MOST: u64 = 3;

/// Slots a page: in some histories so few that most transactions have several pages, in all of them with `SIM_PAGES=1`. Of dice of
/// their own: all else stays as it is.
pub fn page_size(seed: u64) -> u32 {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"of pages"));
    let all = std::env::var("SIM_PAGES").is_ok_and(|text| text == "1");
    if dice.below(5) < 2 || all { *dice.pick(&[1, 2, 2, 3]) } else { ONE_PAGE }
}

/// From which size on bodies go to a blob store, in some of the histories, or in all with `SIM_BLOBS=1`: every one, or only the
/// larger ones. Of dice of its own, too.
pub fn inline_limit(seed: u64) -> Option<u64> {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"of blobs"));
    let all = std::env::var("SIM_BLOBS").is_ok_and(|text| text == "1");
    (dice.below(5) < 2 || all).then(|| *dice.pick(&[0, 100, 200, 1_000_000]))
}

/// The longest body that the engine takes, in some of the histories: it refuses many of those that would go there. Of dice of its own, too.
pub fn longest_body(seed: u64) -> Option<u64> {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"too big!"));
    (dice.below(2) == 0).then(|| *dice.pick(&[20, 90, 120, 160]))
}

/// What is not simulated yet.
pub const PENDING: &[&str] = &["reasons of decisions that are about who is live, once a node has forgotten"];

/// The kinds of events that are on. `SIM_WITHOUT="lie,poison"` leaves those out of every history.
pub fn events(dice: &mut Seeded) -> BTreeSet<&'static str> {
    let share = *dice.pick(&[0.15, 0.35, 0.6]);
    EVENTS.iter().copied().filter(|_| dice.chance(share)).filter(|kind| !is_out(kind)).collect()
}

/// The same of the kinds that have dice of their own.
pub fn later_events(dice: &mut Seeded) -> BTreeSet<&'static str> {
    LATER_EVENTS.iter().copied().filter(|_| dice.chance(0.3)).filter(|kind| !is_out(kind)).collect()
}

/// Whether this kind of event is left out of every history.
pub fn is_out(kind: &str) -> bool {
    is_among("SIM_WITHOUT", kind)
}

fn is_wanted(kind: &str) -> bool {
    is_among("SIM_WITH", kind)
}

fn is_among(variable: &str, kind: &str) -> bool {
    std::env::var(variable).is_ok_and(|kinds| kinds.split(',').any(|named| named == kind))
}

/// The faults that are on.
pub fn faults(dice: &mut Seeded) -> BTreeMap<&'static str, f64> {
    let share = *dice.pick(&[0.0, 0.15, 0.35, 0.6]);
    let mut on = BTreeMap::new();
    for (name, most) in FAULTS {
        if dice.chance(share) {
            on.insert(*name, rate(dice, *most));
        }
    }
    on
}

/// The same of the faults that have dice of their own. `SIM_WITH="node-forgets"` turns those on in every history.
pub fn later_faults(dice: &mut Seeded) -> BTreeMap<&'static str, f64> {
    let mut on = BTreeMap::new();
    for (name, most, share) in LATER_FAULTS {
        let (chosen, rate) = (dice.chance(*share), rate(dice, *most));
        if (chosen || is_wanted(name)) && !is_out(name) {
            on.insert(*name, rate);
        }
    }
    on
}

/// Rounded, so that a printed plan is the plan.
fn rate(dice: &mut Seeded, most: f64) -> f64 {
    let rate = most * (1 + dice.below(10)) as f64 / 10.0;
    (rate * 10_000.0).round() / 10_000.0
}

/// The fault that a plan names.
pub fn fault_named(name: &str) -> Option<&'static str> {
    let later = LATER_FAULTS.iter().map(|(fault, ..)| *fault);
    FAULTS.iter().map(|(fault, _)| *fault).chain(later).find(|fault| *fault == name)
}

/// What the store can forget. A plan lasts a second or so: much less than that, so that offsets are committed, too.
pub fn may_forget(on: &BTreeMap<&'static str, f64>) -> Duration {
    if on.contains_key(FORGETS) { Duration::from_millis(100) } else { Duration::ZERO }
}

/// What goes wrong between the instances and the store.
pub fn engine_faults(on: &BTreeMap<&'static str, f64>, dice: u64) -> Faults {
    let rate = |name| on.get(name).copied().unwrap_or(0.0);
    Faults {
        lost_request: rate("lost-request"),
        lost_reply: rate("lost-reply"),
        late: rate("late"),
        // In half of the histories long after whoever sent them was proven wrong.
        late_within_calls: if dice.is_multiple_of(2) { 300 } else { 3_000 },
        half_applied: rate("half-applied"),
        key_busy: rate("key-busy"),
        repeated: rate("repeated"),
        forgets: rate(FORGETS),
        forgets_at_most: FORGETS_AT_MOST,
        failed_read: rate("failed-read"),
        delayed: rate("delayed"),
        delay_within: Duration::from_millis(50),
        longest_body: None,
    }
}

/// What goes wrong between the instances and the blob store. Never other bytes: they are read twice, and then a halt is right.
pub fn blob_faults(on: &BTreeMap<&'static str, f64>) -> blob::Faults {
    let rate = |name| on.get(name).copied().unwrap_or(0.0);
    blob::Faults {
        lost_request: rate("blob-lost-request"),
        lost_reply: rate("blob-lost-reply"),
        slow: rate("blob-slow"),
        slow_within: Duration::from_millis(200),
        cut_short: rate("blob-cut-short"),
        denied: rate("blob-denied"),
        damaged_before: rate("blob-damaged-before"),
        ..blob::Faults::default()
    }
}

/// What goes wrong with the log.
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
