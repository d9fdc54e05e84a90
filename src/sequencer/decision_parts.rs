//! Decisions larger than a message, split into parts and joined again. An `Accepted` names every input and its holder,
//! and can exceed the size of a message. Pure.
//!
//! A decision in parts counts with its last part. No part is applied before, so that parts which a crash has
//! interrupted, or which two sequencers have written at once, are void.

use crate::event::{Decision, DecisionBody, Event};

/// Returns the number of entries by which a decision can be split; 0 for a decision that cannot be split.
pub fn count_entries(body: &DecisionBody) -> usize {
    match body {
        DecisionBody::Accepted { inputs, losers, .. } => inputs.len().max(losers.len()),
        DecisionBody::Cone { members, .. } => members.len(),
        _ => 0,
    }
}

/// Splits a decision into records of at most `limit` entries each. A chunk of descendants is cut short instead: the
/// next decision has the rest.
pub fn split(body: &DecisionBody, limit: usize) -> Vec<DecisionBody> {
    if count_entries(body) <= limit {
        return vec![body.clone()];
    }
    match body {
        DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
            let parts = count_entries(body).div_ceil(limit);
            let whole = hash_of(body);
            let mut chunks = (inputs.chunks(limit), losers.chunks(limit));
            let part = |part| DecisionBody::AcceptedPart {
                whole,
                part,
                parts: parts as u32,
                txid: *txid,
                height: *height,
                inputs: chunks.0.next().unwrap_or_default().to_vec(),
                losers: chunks.1.next().unwrap_or_default().to_vec(),
                by_block: *by_block,
            };
            (0..parts as u32).map(part).collect()
        }
        DecisionBody::Cone { members, height } => {
            vec![DecisionBody::Cone { members: members[..limit].to_vec(), height: *height }]
        }
        other => vec![other.clone()],
    }
}

/// Returns the first decision of these records with its parts joined, and the number of records up to its end, void
/// parts before it included. An operator's `Lifted` voids the parts before it.
pub fn join_next<'a>(records: impl IntoIterator<Item = &'a DecisionBody>) -> Option<(DecisionBody, u32)> {
    let mut joined = None;
    for (record, taken) in records.into_iter().zip(1..) {
        if is_whole(record) {
            return Some((record.clone(), taken));
        }
        joined = PartialDecision::append(joined, record);
        if let Some(PartialDecision { body, whole, .. }) = joined.take_if(|open| open.next == open.parts)
            && hash_of(&body) == whole
        {
            return Some((body, taken));
        }
    }
    None
}

/// Returns whether a record is a decision by itself: neither a part of one, nor an operator's `Lifted`, which is no
/// step of the sequencer.
pub fn is_whole(record: &DecisionBody) -> bool {
    !matches!(record, DecisionBody::AcceptedPart { .. } | DecisionBody::Lifted { .. })
}

/// The joined parts of a decision whose last part has not been read.
struct PartialDecision {
    whole: [u8; 16],
    parts: u32,
    next: u32,
    body: DecisionBody,
}

impl PartialDecision {
    /// Appends one part. Returns `None` when the part does not follow.
    fn append(joined: Option<Self>, record: &DecisionBody) -> Option<Self> {
        let DecisionBody::AcceptedPart { whole, part, parts, txid, height, inputs, losers, by_block } = record else {
            return None;
        };
        let (whole, parts) = (*whole, *parts);
        if *part == 0 {
            let body = DecisionBody::Accepted {
                txid: *txid,
                height: *height,
                inputs: inputs.clone(),
                losers: losers.clone(),
                by_block: *by_block,
            };
            return Some(PartialDecision { whole, parts, next: 1, body });
        }
        let mut joined = joined.filter(|open| (open.whole, open.parts, open.next) == (whole, parts, *part))?;
        if let DecisionBody::Accepted { inputs: all_inputs, losers: all_losers, .. } = &mut joined.body {
            all_inputs.extend_from_slice(inputs);
            all_losers.extend_from_slice(losers);
        }
        joined.next += 1;
        Some(joined)
    }
}

fn hash_of(body: &DecisionBody) -> [u8; 16] {
    let event = Event::Decision(Decision { chain_offset: 0, step: 0, body: body.clone() });
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::hash(&event.encode()).as_bytes()[..16]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{DecidedInput, Descendant},
        tx::{Outpoint, Txid},
    };

    fn accepted(tag: u8, inputs: u32, losers: u8) -> DecisionBody {
        let input =
            |input| DecidedInput { input, outpoint: Outpoint { txid: Txid([9; 32]), vout: input }, holder: None };
        DecisionBody::Accepted {
            txid: Txid([tag; 32]),
            height: 5,
            inputs: (0..inputs).map(input).collect(),
            losers: (0..losers).map(|loser| Txid([100 + loser; 32])).collect(),
            by_block: losers > 0,
        }
    }

    #[test]
    fn a_decision_of_an_operator_is_passed_over_and_voids_the_parts_before_it() {
        let lifted = DecisionBody::Lifted { txid: Txid([9; 32]), outputs: vec![] };
        let whole = accepted(1, 4, 0);
        let parts = split(&whole, 2);
        assert_eq!(parts.len(), 2);
        let between = std::slice::from_ref(&lifted);
        let records = [between, &parts[..1], between, &parts].concat();
        assert_eq!(join_next(&records), Some((whole, 5)));
        assert_eq!(join_next(&[lifted]), None);
    }

    #[test]
    fn a_split_decision_is_joined_again() {
        for (inputs, losers, limit, parts) in [(7, 0, 7, 1), (7, 3, 3, 3), (7, 7, 2, 4), (7, 1, 1, 7), (1, 0, 1, 1)] {
            let body = accepted(1, inputs, losers);
            let mut records = split(&body, limit);
            assert_eq!(records.len(), parts, "{inputs} inputs by {limit}");
            assert!(records.iter().all(|record| count_entries(record) <= limit));
            records.push(DecisionBody::Closed);
            assert_eq!(join_next(&records), Some((body, parts as u32)));
            assert_eq!(join_next(&records[parts..]), Some((DecisionBody::Closed, 1)));
        }
    }

    #[test]
    fn a_decision_counts_with_its_last_part() {
        let records = split(&accepted(1, 6, 0), 2);
        for end in 0..3 {
            assert_eq!(join_next(&records[..end]), None, "{end} of 3 parts");
        }
    }

    #[test]
    fn interrupted_parts_are_void() {
        let (first, other) = (split(&accepted(1, 6, 0), 2), split(&accepted(2, 6, 0), 2));
        let again = split(&accepted(1, 6, 0), 3);
        let log = |parts: &[&[DecisionBody]]| parts.concat();
        let whole = |body, taken| Some((body, taken));

        assert_eq!(join_next(&log(&[&first[..2], &first])), whole(accepted(1, 6, 0), 5), "begun again");
        assert_eq!(join_next(&log(&[&first[..2], &other])), whole(accepted(2, 6, 0), 5), "decided otherwise");
        assert_eq!(join_next(&log(&[&first[..2], &again])), whole(accepted(1, 6, 0), 4), "in larger parts");
        assert_eq!(join_next(&log(&[&first[..2], &[accepted(3, 1, 0)]])), whole(accepted(3, 1, 0), 3));
        assert_eq!(join_next(&log(&[&first[..1], &other[1..2], &first[2..]])), None, "two at once");
        assert_eq!(join_next(&log(&[&first[..1], &first[2..]])), None, "a part left out");
        assert_eq!(join_next(&first[1..]), None, "without its beginning");
    }

    #[test]
    fn parts_with_another_hash_are_void() {
        let mut records = split(&accepted(1, 4, 0), 2);
        let DecisionBody::AcceptedPart { inputs, .. } = &mut records[1] else { panic!() };
        inputs.pop();
        assert_eq!(join_next(&records), None);
    }

    #[test]
    fn a_chunk_of_descendants_is_cut_short() {
        let member = |tag| Descendant { txid: Txid([tag; 32]), parent: Txid([0; 32]), live: true };
        let cone = |count| DecisionBody::Cone { members: (1..=count).map(member).collect(), height: 5 };
        assert_eq!(split(&cone(5), 3), [cone(3)]);
        assert_eq!(split(&cone(5), 5), [cone(5)]);
    }
}
