//! Decisions that are larger than a message may be: an `Accepted` names every input, whoever held it, and goes into the log
//! in parts. Pure.
//!
//! It is decided once its last part counts: before that nothing of it is applied, so what was begun by somebody who died,
//! or was written by two at once, is simply void.

use crate::event::{Decision, DecisionBody, Event};

/// What a decision can be split by.
pub fn entries(body: &DecisionBody) -> usize {
    match body {
        DecisionBody::Accepted { inputs, losers, .. } => inputs.len().max(losers.len()),
        DecisionBody::Cone { members, .. } => members.len(),
        _ => 0,
    }
}

/// A decision as records of at most `limit` entries. A chunk of a cone is cut short: the rest stands in the next one.
pub fn records(body: &DecisionBody, limit: usize) -> Vec<DecisionBody> {
    if entries(body) <= limit {
        return vec![body.clone()];
    }
    match body {
        DecisionBody::Accepted { txid, height, inputs, losers, by_block } => {
            let parts = entries(body).div_ceil(limit);
            let whole = identity(body);
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

/// The first decision in these records, its parts joined, and how many of the records it takes (with what is void before
/// it).
pub fn next_whole(records: &[DecisionBody]) -> Option<(DecisionBody, u32)> {
    let mut joined = None;
    for (record, taken) in records.iter().zip(1..) {
        let DecisionBody::AcceptedPart { whole, part, parts, .. } = record else {
            return Some((record.clone(), taken));
        };
        joined = Joined::with(joined, record);
        if let Some(Joined { body, .. }) = joined.take_if(|_| part + 1 == *parts)
            && identity(&body) == *whole
        {
            return Some((body, taken));
        }
    }
    None
}

/// The parts so far of one decision.
struct Joined {
    whole: [u8; 16],
    parts: u32,
    next: u32,
    body: DecisionBody,
}

impl Joined {
    /// One more part; `None`: it does not follow.
    fn with(joined: Option<Self>, record: &DecisionBody) -> Option<Self> {
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
            return Some(Joined { whole, parts, next: 1, body });
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

fn identity(body: &DecisionBody) -> [u8; 16] {
    let event = Event::Decision(Decision { chain_offset: 0, step: 0, body: body.clone() });
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::hash(&event.encode()).as_bytes()[..16]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{ConeMember, DecidedInput},
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
    fn what_is_split_is_joined_again() {
        for (inputs, losers, limit, parts) in [(7, 0, 7, 1), (7, 3, 3, 3), (7, 7, 2, 4), (7, 1, 1, 7), (1, 0, 1, 1)] {
            let body = accepted(1, inputs, losers);
            let mut records = records(&body, limit);
            assert_eq!(records.len(), parts, "{inputs} inputs by {limit}");
            assert!(records.iter().all(|record| entries(record) <= limit));
            records.push(DecisionBody::Closed);
            assert_eq!(next_whole(&records), Some((body, parts as u32)));
            assert_eq!(next_whole(&records[parts..]), Some((DecisionBody::Closed, 1)));
        }
    }

    #[test]
    fn nothing_is_decided_before_the_last_part_counts() {
        let records = records(&accepted(1, 6, 0), 2);
        for end in 0..3 {
            assert_eq!(next_whole(&records[..end]), None, "{end} of 3 parts");
        }
    }

    #[test]
    fn what_was_begun_is_void_when_anything_else_follows() {
        let (mine, other) = (records(&accepted(1, 6, 0), 2), records(&accepted(2, 6, 0), 2));
        let again = records(&accepted(1, 6, 0), 3);
        let log = |parts: &[&[DecisionBody]]| parts.concat();
        let whole = |body, taken| Some((body, taken));

        assert_eq!(next_whole(&log(&[&mine[..2], &mine])), whole(accepted(1, 6, 0), 5), "begun again");
        assert_eq!(next_whole(&log(&[&mine[..2], &other])), whole(accepted(2, 6, 0), 5), "decided otherwise");
        assert_eq!(next_whole(&log(&[&mine[..2], &again])), whole(accepted(1, 6, 0), 4), "in larger parts");
        assert_eq!(next_whole(&log(&[&mine[..2], &[accepted(3, 1, 0)]])), whole(accepted(3, 1, 0), 3));
        assert_eq!(next_whole(&log(&[&mine[..1], &other[1..2], &mine[2..]])), None, "two at once");
        assert_eq!(next_whole(&log(&[&mine[..1], &mine[2..]])), None, "a part left out");
        assert_eq!(next_whole(&mine[1..]), None, "without its beginning");
    }

    #[test]
    fn parts_that_do_not_make_what_they_claim_decide_nothing() {
        let mut records = records(&accepted(1, 4, 0), 2);
        let DecisionBody::AcceptedPart { inputs, .. } = &mut records[1] else { panic!() };
        inputs.pop();
        assert_eq!(next_whole(&records), None);
    }

    #[test]
    fn a_chunk_of_a_cone_is_cut_short() {
        let member = |tag| ConeMember { txid: Txid([tag; 32]), parent: Txid([0; 32]), live: true };
        let cone = |count| DecisionBody::Cone { members: (1..=count).map(member).collect(), height: 5 };
        assert_eq!(records(&cone(5), 3), [cone(3)]);
        assert_eq!(records(&cone(5), 5), [cone(5)]);
    }
}
