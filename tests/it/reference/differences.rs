//! Intended differences from the records of the reference system.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use super::Bins;

/// An intended difference.
pub struct Difference {
    /// Name in `schemas/records.md`.
    pub name: &'static str,
    /// Bins that may show the difference.
    bins: &'static [&'static str],
    /// Whether a pair of values (the reference's, ours) shows this difference; `None` stands for an absent bin.
    is_this: fn(Option<&Json>, Option<&Json>) -> bool,
}

const fn difference(
    name: &'static str,
    bins: &'static [&'static str],
    is_this: fn(Option<&Json>, Option<&Json>) -> bool,
) -> Difference {
    Difference { name, bins, is_this }
}

fn only_ours(theirs: Option<&Json>, ours: Option<&Json>) -> bool {
    theirs.is_none() && ours.is_some()
}

fn only_theirs(theirs: Option<&Json>, ours: Option<&Json>) -> bool {
    theirs.is_some() && ours.is_none()
}

fn is_false(bin: Option<&Json>) -> bool {
    bin == Some(&json!({ "bool": false }))
}

fn number(bin: Option<&Json>) -> Option<u64> {
    bin?["int"].as_u64()
}

/// Difference that occurs only when the engine continues with records of the reference.
pub const COUNTED_AGAIN: &str = "counted-again";
/// Difference of the pages other than the master.
const IN_MASTER: &str = "delete-at-height-in-master";
/// Difference of a whole record.
pub const NOT_DELETED: &str = "not-deleted";

/// Every intended difference.
pub const ALL: &[Difference] = &[
    difference("false-is-absent", &["locked", "conflicting"], |theirs, ours| is_false(theirs) && ours.is_none()),
    difference("page-number", &["pageNumber"], only_ours),
    difference("amount-sizes", &["amountSizes"], only_ours),
    difference("blob-hash", &["blobHash"], only_ours),
    difference("slot-height", &["slotHeight"], only_ours),
    difference("created-by", &["createdBy"], only_ours),
    difference("stamp", &["chainPos"], only_ours),
    difference("history", &["contested"], only_ours),
    difference("verdict", &["verdict", "reason"], only_ours),
    difference("all-spent-pages", &["spentPages"], only_ours),
    difference("last-spent-state", &["lastSpentState"], only_theirs),
    difference("maturity", &["spendingHeight"], |theirs, ours| {
        number(theirs).zip(number(ours)).is_some_and(|(theirs, ours)| theirs + 99 == ours)
    }),
    difference("new-owner-output", &["reassignments"], |theirs, ours| match (theirs, ours) {
        (Some(theirs), Some(ours)) => without_output(ours) == *theirs,
        _ => false,
    }),
    difference("delete-at-height", &["deleteAtHeight"], |theirs, ours| {
        (number(theirs), number(ours)) == (Some(1_010), Some(1_011))
    }),
    difference(IN_MASTER, &["deleteAtHeight"], only_theirs),
    difference("unmined-since", &["unminedSince"], |theirs, ours| {
        matches!((number(theirs), number(ours)), (None | Some(1_000), Some(1_001)))
    }),
    difference(COUNTED_AGAIN, &["spentExtraRecs", "deleteAtHeight"], |theirs, ours| {
        matches!((number(theirs), number(ours)), (Some(2), Some(1)) | (Some(1_010), None))
    }),
    difference("off-the-longest-chain", &["blockIDs", "blockHeights", "subtreeIdxs"], |theirs, ours| {
        theirs.is_some() && ours == Some(&json!({ "list": [] }))
    }),
    difference(NOT_DELETED, &[], |_, _| false),
];

/// Returns a list of reassignments without the fields of this store.
fn without_output(reassignments: &Json) -> Json {
    let mut all = reassignments.clone();
    for entry in all["list"].as_array_mut().into_iter().flatten() {
        if let Some(pairs) = entry["map"].as_array_mut() {
            pairs.retain(|pair| !["satoshis", "lockingScript"].contains(&pair["key"]["string"].as_str().unwrap()));
        }
    }
    all
}

/// Returns the names of the differences between two records; panics at any other difference.
pub fn compare(place: &str, theirs: Option<&Bins>, ours: Option<&Bins>) -> BTreeSet<&'static str> {
    let (theirs, ours) = match (theirs, ours) {
        (Some(theirs), Some(ours)) => (theirs, ours),
        (None, Some(_)) => return [NOT_DELETED].into(),
        (_, None) => panic!("{place}: the record is absent; the reference has {theirs:?}"),
    };
    let is_master = !ours.contains_key("pageNumber");
    let bins: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    let mut met = BTreeSet::new();
    for bin in bins {
        let (theirs, ours) = (theirs.get(bin), ours.get(bin));
        if theirs == ours || is_a_time(bin, theirs, ours) {
            continue;
        }
        let named = ALL.iter().find(|it| {
            it.bins.contains(&bin.as_str()) && (it.is_this)(theirs, ours) && !(is_master && it.name == IN_MASTER)
        });
        let Some(named) = named else {
            panic!("{place}, {bin}: the reference has {theirs:?}, this store has {ours:?}")
        };
        met.insert(named.name);
    }
    met
}

/// Whether the bin is a creation time, of which the file gives only the unit.
fn is_a_time(bin: &str, theirs: Option<&Json>, ours: Option<&Json>) -> bool {
    bin == "createdAt"
        && theirs == Some(&json!({ "int": "milliseconds" }))
        && number(ours).is_some_and(|now| now > 1_600_000_000_000)
}
