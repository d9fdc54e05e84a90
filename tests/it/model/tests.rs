//! The model on its own: small logs written by hand, and a complaint for every kind of lie.

mod later;
mod pending;

use bytes::Bytes;
use utxo_store::{
    broker::Message,
    event::{
        Action, Block, BlockMined, Command, ConeMember, Contest, DeadLetter, DeadLetterClass, DecidedInput, Decision,
        DecisionBody, Event, OutcomeEvent, OutcomeKind, Position, Seeded, SeededOutput, Subtree, SubtreeTransactions,
        Validated,
    },
    record::{Body, MinedIn, Reason, Slot, SpendingData, StoredOutput, Verdict},
    sequencer::SequencerTopics,
    tx::{Network, Txid, UtxoHash},
};

use super::{
    Complaint, Expected, Logged, Logs, Model, Rules,
    expected::{LogicalSlot, LogicalTx},
};
use crate::world::{Coin, Made, coinbase, spend};

const RULES: Rules = Rules {
    network: Network::Regtest,
    partitions: 0,
    utxo_batch_size: 100,
    retention: 288,
    forgetful: false,
    slow: false,
    pruned_to: None,
};

/// Logs that are being written, a millisecond a message.
struct Log {
    logs: Logs,
    now_ms: i64,
    sequence: u64,
}

impl Log {
    fn new() -> Self {
        let topics = SequencerTopics {
            block_mined: "mined".into(),
            reorgs: "reorgs".into(),
            chain: "chain".into(),
            decisions: "decisions".into(),
            outcomes: "outcomes".into(),
            dead_letters: "dead".into(),
        };
        Log {
            logs: Logs { validated_topic: "txs".into(), topics: Some(topics), ..Logs::default() },
            now_ms: 1_000,
            sequence: 0,
        }
    }

    fn write(&mut self, topic: fn(&mut Logs) -> &mut Vec<Logged>, key: &[u8], payload: Vec<u8>) -> u64 {
        self.now_ms += 1;
        let messages = topic(&mut self.logs);
        let offset = messages.len() as u64;
        let key = Bytes::copy_from_slice(key);
        let message = Message { offset, timestamp_ms: self.now_ms, key, payload: payload.into(), headers: vec![] };
        messages.push(Logged { partition: 0, message });
        offset
    }

    fn validate(&mut self, made: &Made) -> u64 {
        let event = Validated { tx: &made.extended, height: 200, locked: false };
        self.write(|logs| &mut logs.validated, &made.txid.0, event.encode())
    }

    /// A partial transaction with `count` outputs.
    fn seed(&mut self, tag: u8, count: u8) -> Made {
        let outputs: Vec<_> = (0..count).map(|vout| (1_000_000, vec![0x52, tag, vout])).collect();
        let made = Made { txid: Txid([tag; 32]), extended: Bytes::new(), outputs };
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| SeededOutput { vout, satoshis: *satoshis, script });
        let event = Seeded { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
        self.write(|logs| &mut logs.validated, &made.txid.0, event.encode());
        made
    }

    /// A contest that names the first event of the transaction.
    fn contest(&mut self, made: &Made, reason: Reason) -> u64 {
        let event = self.logs.validated.iter().find(|logged| logged.message.key == made.txid.0.as_slice());
        let message = &event.expect("its event is there").message;
        let position =
            Position { topic: "txs".into(), partition: 0, offset: message.offset, timestamp_ms: message.timestamp_ms };
        let body = *blake3::hash(&made.extended).as_bytes();
        let event = Contest { txid: made.txid, position, body, reason };
        self.write(|logs| &mut logs.chain, &made.txid.0, event.encode())
    }

    fn reconsider(&mut self, made: &Made) -> u64 {
        let event = Command { id: [0; 16], action: Action::Reconsider { txid: made.txid } };
        self.write(|logs| &mut logs.chain, &made.txid.0, event.encode())
    }

    /// Feeds a block.
    fn mine(&mut self, listed: &[&Made]) -> (u64, Made) {
        self.sequence += 1;
        let sequence = self.sequence;
        let coinbase = coinbase(sequence as u32);
        let txids: Vec<u8> = listed.iter().flat_map(|made| made.txid.0).collect();
        let block = Block {
            block_id: sequence as u32,
            hash: [sequence as u8; 32],
            previous: [sequence as u8 - 1; 32],
            height: 100 + sequence as u32,
            time: 0,
            longest_chain: true,
            coinbase: &coinbase.extended,
            subtrees: vec![Subtree { count: listed.len() as u64, transactions: SubtreeTransactions::Inline(&txids) }],
        };
        let payload = BlockMined { sequence, block }.encode();
        let source = self.write(|logs| &mut logs.block_mined, b"", payload.clone());
        let offset = self.write(|logs| &mut logs.chain, b"", payload);
        let header = ("utxo-source-offset".to_owned(), Bytes::from(source.to_string()));
        self.logs.chain[offset as usize].message.headers.push(header);
        (offset, coinbase)
    }

    /// Decides on an event, closes it, and tells everybody what became of whom.
    fn decide(&mut self, chain_offset: u64, bodies: &[DecisionBody]) {
        for (body, step) in bodies.iter().chain([&DecisionBody::Closed]).zip(0..) {
            self.decision(chain_offset, step, body.clone());
            match body {
                DecisionBody::Accepted { txid, losers, inputs, .. } => {
                    self.tell(chain_offset, *txid, OutcomeKind::Accepted);
                    for loser in losers {
                        let held = inputs.iter().filter_map(|input| input.holder).find(|held| held.txid == *loser);
                        let input = held.expect("a loser holds something").input;
                        let reason = Reason::DoubleSpend { input, winner: *txid };
                        self.tell(chain_offset, *loser, OutcomeKind::Conflicting { reason });
                    }
                }
                DecisionBody::Conflicting { txid, reason, .. } => {
                    self.tell(chain_offset, *txid, OutcomeKind::Conflicting { reason: *reason });
                }
                DecisionBody::Cone { members, .. } => {
                    for member in members {
                        let reason = Reason::ConflictingParent { parent: member.parent };
                        self.tell(chain_offset, member.txid, OutcomeKind::Conflicting { reason });
                    }
                }
                _ => {}
            }
        }
    }

    fn decision(&mut self, chain_offset: u64, step: u32, body: DecisionBody) {
        self.write(|logs| &mut logs.decisions, b"", Decision { chain_offset, step, body }.encode());
    }

    fn tell(&mut self, chain_offset: u64, txid: Txid, kind: OutcomeKind) {
        self.write(|logs| &mut logs.outcomes, &txid.0, OutcomeEvent { txid, chain_offset, kind }.encode());
    }

    fn bury(&mut self, offset: u64, class: DeadLetterClass) {
        let source = self.logs.validated[offset as usize].message.clone();
        let letter = DeadLetter {
            topic: "txs".into(),
            partition: 0,
            offset,
            stage: "test".into(),
            class,
            message: "test".into(),
            timestamp_ms: source.timestamp_ms,
        };
        let place = self.write(|logs| &mut logs.dead_letters, &source.key, source.payload.to_vec());
        self.logs.dead_letters[place as usize].message.headers = letter.to_headers();
    }

    fn replay(&self) -> Result<Expected, Vec<Complaint>> {
        Model::replay(&self.logs, &RULES)
    }

    #[track_caller]
    fn expected(&self) -> Expected {
        self.replay().unwrap_or_else(|complaints| panic!("{complaints:#?}"))
    }

    /// Fails unless one complaint says this.
    #[track_caller]
    fn complains(&self, what: &str) {
        let complaints = self.replay().err().unwrap_or_default();
        assert!(complaints.iter().any(|complaint| complaint.to_string().contains(what)), "{what}: {complaints:#?}");
    }
}

fn by(made: &Made, input: u32) -> SpendingData {
    SpendingData { txid: made.txid, input }
}

fn lost_to(winner: &Made) -> Reason {
    Reason::DoubleSpend { input: 0, winner: winner.txid }
}

fn conflicting(made: &Made, reason: Reason, height: u32) -> DecisionBody {
    DecisionBody::Conflicting { txid: made.txid, reason, height, live: false }
}

fn accepted(made: &Made, coins: &[(Coin, SpendingData)], height: u32) -> DecisionBody {
    let inputs = coins.iter().zip(0..).map(|((coin, holder), input)| DecidedInput {
        input,
        outpoint: coin.outpoint,
        holder: Some(*holder),
    });
    DecisionBody::Accepted { txid: made.txid, height, inputs: inputs.collect(), losers: vec![], by_block: false }
}

fn by_block(body: DecisionBody, beaten: &[&Made]) -> DecisionBody {
    let DecisionBody::Accepted { txid, height, inputs, .. } = body else { panic!("{body:?}") };
    DecisionBody::Accepted {
        txid,
        height,
        inputs,
        losers: beaten.iter().map(|made| made.txid).collect(),
        by_block: true,
    }
}

fn cone(members: &[(&Made, &Made, bool)], height: u32) -> DecisionBody {
    let members =
        members.iter().map(|(made, parent, live)| ConeMember { txid: made.txid, parent: parent.txid, live: *live });
    DecisionBody::Cone { members: members.collect(), height }
}

fn end(height: u32) -> DecisionBody {
    cone(&[], height)
}

fn verdict(expected: &Expected, made: &Made) -> Option<Verdict> {
    expected.txs[&made.txid].verdict
}

fn holder(expected: &Expected, made: &Made, vout: usize) -> Option<SpendingData> {
    expected.txs[&made.txid].slots[vout].slot.spender()
}

#[test]
fn a_plain_chain_is_live_spent_and_mined() {
    let mut log = Log::new();
    let seed = log.seed(1, 2);
    let parent = spend(&[seed.coin(0)], 2, 1);
    let child = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
    log.validate(&parent);
    log.validate(&child);
    let (_, coinbase) = log.mine(&[&parent]);
    let expected = log.expected();
    assert_eq!(expected.txs.len(), 4);
    assert_eq!(holder(&expected, &seed, 1), Some(by(&child, 1)));
    assert_eq!(holder(&expected, &parent, 0), Some(by(&child, 0)));
    assert_eq!(holder(&expected, &parent, 1), None);
    let mined = |subtree| [MinedIn { block_id: 1, height: 101, subtree }].into();
    assert_eq!((expected.txs[&parent.txid].unmined_since, &expected.txs[&parent.txid].mined), (None, &mined(0)));
    assert_eq!(expected.txs[&child.txid].unmined_since, Some(200));
    assert_eq!(expected.txs[&coinbase.txid].spending_height, Some(201));
    assert!(expected.txs.values().all(|tx| tx.verdict.is_none() && !tx.conflicting));
}

/// A seed with a winner and a loser of its first output, as the log has them; what decided is still to be written.
fn rivals(log: &mut Log) -> (Made, Made, Made, u64) {
    let seed = log.seed(1, 3);
    let (winner, loser) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(0), seed.coin(1)], 2, 2));
    log.validate(&winner);
    log.validate(&loser);
    let contest = log.contest(&loser, lost_to(&winner));
    (seed, winner, loser, contest)
}

#[test]
fn of_two_rivals_the_loser_holds_nothing() {
    let mut log = Log::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &loser), Some(Verdict::Conflicting(lost_to(&winner))));
    assert_eq!((holder(&expected, &seed, 0), holder(&expected, &seed, 1)), (Some(by(&winner, 0)), None));
    assert_ne!(expected.digest(), Expected::default().digest());
}

#[test]
fn a_listed_loser_wins_its_rival_falls_with_its_cone_and_who_was_beaten_by_it_gets_a_second_chance() {
    let mut log = Log::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    let child = spend(&[winner.coin(0), seed.coin(2)], 1, 3);
    let grandchild = spend(&[child.coin(0)], 1, 4);
    let late = spend(&[seed.coin(2)], 1, 5);
    for made in [&child, &grandchild, &late] {
        log.validate(made);
    }
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    let contest = log.contest(&late, lost_to(&child));
    log.decide(contest, &[conflicting(&late, lost_to(&child), 200), end(200)]);
    let (block, _) = log.mine(&[&loser]);
    let coins = [(seed.coin(0), by(&winner, 0)), (seed.coin(1), by(&loser, 1))];
    let wins = by_block(accepted(&loser, &coins, 101), &[&winner]);
    let first = cone(&[(&child, &winner, true)], 101);
    log.decide(block, &[wins, first, cone(&[(&grandchild, &child, true)], 101), end(101)]);
    log.complains("deserves a second chance");
    let again = log.reconsider(&late);
    log.decide(again, &[accepted(&late, &[(seed.coin(2), by(&late, 0))], 101)]);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &loser), Some(Verdict::Accepted));
    assert_eq!(verdict(&expected, &winner), Some(Verdict::Conflicting(lost_to(&loser))));
    let fell = Verdict::Conflicting(Reason::ConflictingParent { parent: child.txid });
    assert_eq!(verdict(&expected, &grandchild), Some(fell));
    assert_eq!((holder(&expected, &seed, 0), holder(&expected, &seed, 2)), (Some(by(&loser, 0)), Some(by(&late, 0))));
    assert_eq!(holder(&expected, &winner, 0), None);
}

#[test]
fn a_parent_that_never_came_is_missing_and_a_later_event_opens_that_again() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let event = log.validate(&child);
    let missing = Reason::MissingParent { parent: parent.txid };
    let contest = log.contest(&child, missing);
    log.decide(contest, &[conflicting(&child, missing, 200), end(200)]);
    log.complains("must have one");
    log.bury(event, DeadLetterClass::MissingParent);
    assert_eq!(verdict(&log.expected(), &child), Some(Verdict::Conflicting(missing)));
    log.validate(&parent);
    log.validate(&child);
    let again = log.contest(&child, Reason::Found);
    log.decide(again, &[accepted(&child, &[(parent.coin(0), by(&child, 0))], 200)]);
    assert_eq!(verdict(&log.expected(), &child), Some(Verdict::Accepted));
}

#[test]
fn a_duplicate_changes_nothing_and_poison_is_a_dead_letter() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let once = spend(&[seed.coin(0)], 1, 1);
    log.validate(&once);
    let digest = log.expected().digest();
    log.validate(&once);
    log.seed(1, 1);
    let poison = log.write(|logs| &mut logs.validated, &once.txid.0, vec![1, 2, 3]);
    log.complains("must have one");
    log.bury(poison, DeadLetterClass::Decode);
    assert_eq!(log.expected().digest(), digest);
    log.bury(0, DeadLetterClass::Decode);
    log.complains("is not explained");
}

#[test]
fn a_crossing_double_spend_is_decided_by_the_first_contest() {
    let mut log = Log::new();
    let seed = log.seed(1, 2);
    let (first, second) = (spend(&[seed.coin(0), seed.coin(1)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 1, 2));
    log.validate(&first);
    log.validate(&second);
    let one = log.contest(&first, Reason::DoubleSpend { input: 1, winner: second.txid });
    log.decide(one, &[accepted(&first, &[(seed.coin(0), by(&first, 0)), (seed.coin(1), by(&second, 0))], 200)]);
    let two = log.contest(&second, Reason::DoubleSpend { input: 1, winner: first.txid });
    log.decide(two, &[conflicting(&second, lost_to(&first), 200), end(200)]);
    let three = log.contest(&second, Reason::History { input: 0 });
    log.decide(three, &[DecisionBody::PassedOver { txid: second.txid }]);
    assert_eq!(holder(&log.expected(), &seed, 1), Some(by(&first, 1)));
}

#[test]
fn a_loser_needs_a_winner() {
    let mut log = Log::new();
    let (_, _, loser, contest) = rivals(&mut log);
    let stranger = log.seed(9, 1);
    log.decide(contest, &[conflicting(&loser, lost_to(&stranger), 200), end(200)]);
    log.complains("is conflicting because of DoubleSpend");
}

#[test]
fn nobody_is_accepted_over_a_live_holder_nor_with_inputs_that_are_not_its_own() {
    let mut log = Log::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    let mut other = Log { logs: log.logs.clone(), ..log };
    other.decide(contest, &[accepted(&loser, &[(seed.coin(0), by(&loser, 0)), (seed.coin(1), by(&loser, 1))], 200)]);
    other.complains("are live");
    other.complains("is live, though DoubleSpend");
    let mut log = Log { logs: Logs::default(), now_ms: 0, sequence: 0 };
    std::mem::swap(&mut log.logs, &mut Log::new().logs);
    let (seed, _, loser, contest) = rivals(&mut log);
    log.decide(contest, &[accepted(&loser, &[(seed.coin(1), by(&winner, 0))], 200)]);
    log.complains("inputs that are not its own");
    log.complains("which it does not spend so");
}

#[test]
fn a_cone_holds_only_real_descendants_and_all_live_ones() {
    let fallen = |members: &dyn Fn(&Made, &Made, &Made) -> DecisionBody| {
        let mut log = Log::new();
        let (seed, winner, loser, contest) = rivals(&mut log);
        let (child, stranger) = (spend(&[winner.coin(0)], 1, 3), spend(&[seed.coin(2)], 1, 4));
        log.validate(&child);
        log.validate(&stranger);
        log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
        log.mine(&[]);
        // Something needs the child live: whoever fells its parent must have seen it.
        let rival = spend(&[winner.coin(0)], 1, 5);
        log.validate(&rival);
        let contest = log.contest(&rival, lost_to(&child));
        log.decide(contest, &[conflicting(&rival, lost_to(&child), 101), end(101)]);
        let (block, _) = log.mine(&[&loser]);
        let coins = [(seed.coin(0), by(&winner, 0)), (seed.coin(1), by(&loser, 1))];
        let wins = by_block(accepted(&loser, &coins, 102), &[&winner]);
        log.decide(block, &[wins, members(&child, &winner, &stranger), end(102)]);
        let again = log.reconsider(&rival);
        log.decide(again, &[DecisionBody::PassedOver { txid: rival.txid }]);
        log
    };
    fallen(&|child, winner, _| cone(&[(child, winner, true)], 102)).expected();
    fallen(&|_, _, _| end(102)).complains("leaves out");
    fallen(&|child, winner, stranger| cone(&[(child, winner, true), (stranger, winner, true)], 102))
        .complains("which it does not spend");
    fallen(&|child, winner, _| cone(&[(child, winner, false)], 102)).complains("as not live, and it was");
    fallen(&|child, winner, _| cone(&[(child, winner, true)], 101)).complains("its verdict at 102");
}

#[test]
fn steps_are_contiguous_the_first_counts_and_closed_is_the_last() {
    let mut log = Log::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    log.complains("asks for a verdict");
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    log.decision(contest, 0, DecisionBody::PassedOver { txid: loser.txid });
    log.expected();
    log.decision(contest, 3, DecisionBody::PassedOver { txid: loser.txid });
    log.complains("comes behind `Closed`");
    log.decision(contest, 9, DecisionBody::Closed);
    log.complains("skips step 4");
    log.decision(77, 0, DecisionBody::Closed);
    log.complains("is decided on, and is not there");
}

#[test]
fn a_verdict_holds_and_a_first_one_is_due() {
    let mut log = Log::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    let mut lazy = Log { logs: log.logs.clone(), now_ms: 2_000, sequence: 0 };
    lazy.decide(contest, &[DecisionBody::PassedOver { txid: loser.txid }]);
    lazy.complains("is live, though DoubleSpend");
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    let again = log.contest(&loser, lost_to(&winner));
    log.decide(again, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    log.complains("a verdict that holds");
}

#[test]
fn a_missing_parent_was_never_produced_before_it() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    log.validate(&parent);
    let event = log.validate(&child);
    let missing = Reason::MissingParent { parent: parent.txid };
    let contest = log.contest(&child, missing);
    log.decide(contest, &[conflicting(&child, missing, 200), end(200)]);
    log.bury(event, DeadLetterClass::MissingParent);
    log.complains("is conflicting because of MissingParent");
    log.complains("which the history does not know");
}

#[test]
fn immature_means_the_height_of_the_coinbase_and_a_hundred() {
    let lost = |height: u32| {
        let mut log = Log::new();
        let (_, coinbase) = log.mine(&[]);
        let young = spend(&[coinbase.coin(0)], 1, 1);
        let event = Validated { tx: &young.extended, height, locked: false };
        log.write(|logs| &mut logs.validated, &young.txid.0, event.encode());
        let contest = log.contest(&young, Reason::Immature { input: 0 });
        log.decide(contest, &[conflicting(&young, Reason::Immature { input: 0 }, 101), end(101)]);
        log
    };
    lost(200).expected();
    lost(201).complains("is conflicting because of Immature");
}

#[test]
fn contests_outcomes_and_blocks_are_explained() {
    let mut log = Log::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    let idle = log.contest(&winner, Reason::Frozen { input: 0 });
    log.decide(idle, &[DecisionBody::PassedOver { txid: winner.txid }]);
    log.expected();
    let idle = log.contest(&winner, Reason::Immature { input: 0 });
    log.decide(idle, &[DecisionBody::PassedOver { txid: winner.txid }]);
    log.complains("because of Immature { input: 0 }, which the history does not know");
    log.tell(contest, winner.txid, OutcomeKind::Accepted);
    log.complains("tells what never became of it");
    let mut silent = Log::new();
    let (_, winner, loser, contest) = rivals(&mut silent);
    silent.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    silent.logs.outcomes.clear();
    silent.complains("nobody is told");
    let mut odd = Log::new();
    let (block, _) = odd.mine(&[&winner]);
    odd.complains("which is not live");
    odd.logs.chain[block as usize].message.headers.clear();
    odd.complains("holds what no topic was fed from");
}

#[test]
fn what_differs_in_a_store_is_named() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let complaints = log.expected().compare([]);
    assert_eq!(complaints.len(), 1);
    assert_eq!(complaints[0].to_string(), format!("{}: is missing in the store", seed.txid));
}

/// The samples of `schemas/digest.md`.
#[test]
fn the_digest_is_the_one_that_is_written_down() {
    let plain = |slot| LogicalSlot { slot, spendable_from: None, reassignments: vec![] };
    let output = |last: u8| StoredOutput { satoshis: 1_000, script: Bytes::from(vec![0x51, last]) };
    let txid = Txid([7; 32]);
    let hash = |last: u8, vout| utxo_store::tx::utxo_hash(&txid, vout, &[0x51, last], 1_000);
    let reassigned = utxo_store::record::Reassignment {
        offset: 0,
        utxo_hash: UtxoHash([3; 32]),
        new_utxo_hash: UtxoHash([4; 32]),
        block_height: 9,
        output: StoredOutput { satoshis: 5, script: Bytes::from_static(&[0x52]) },
    };
    let first = Slot::Unspent(hash(0, 0));
    let tx = LogicalTx {
        body: Some(Body::Outputs((0..3).map(|last| Some(output(last))).collect())),
        coinbase: true,
        locked: false,
        frozen: false,
        conflicting: true,
        spending_height: Some(200),
        unmined_since: Some(100),
        preserve_until: Some(500),
        verdict: Some(Verdict::Conflicting(Reason::DoubleSpend { input: 1, winner: Txid([6; 32]) })),
        mined: [MinedIn { block_id: 0, height: 100, subtree: 0 }].into(),
        slots: vec![
            LogicalSlot { slot: first, spendable_from: Some(1_100), reassignments: vec![reassigned] },
            plain(Slot::Spent(hash(1, 1), SpendingData { txid: Txid([9; 32]), input: 2 })),
            plain(Slot::Frozen(hash(2, 2))),
        ],
    };
    let expected = Expected { txs: [(txid, tx)].into(), ..Expected::default() };
    let digest = "209c5b589a2b50ced697065e3de4f64e16a97f3f93d46739821fc8f48296b3f9";
    assert_eq!(expected.digest().to_string(), digest);
}
