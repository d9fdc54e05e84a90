//! Tests of the model alone: small logs written by hand, and one finding for every kind of fault.

mod commands;
mod regressions;

use bytes::Bytes;
use utxo_store::{
    broker::{Message, partitioner::partition_of},
    event::{
        Block, BlockMined, Command, CommandAction, CommandResult, Contest, DeadLetter, DeadLetterClass, DecidedInput,
        Decision, DecisionBody, Descendant, Event, EventPosition, OutcomeBatch, OutcomeChange, OutcomeEvent,
        OutcomeKind, OutcomeSource, PartialOutput, PartialTxEvent, Subtree, SubtreeTransactions, TxidList, Validated,
    },
    record::{Body, MinedIn, Reason, Slot, SpendingData, StoredOutput, Verdict},
    sequencer::SequencerTopics,
    tx::{Network, Txid, UtxoHash},
};

use super::{
    Complaint, Expected, Logged, Logs, Model, Rules,
    expected::{LogicalSlot, LogicalTx},
};
use crate::harness::{Coin, Made, coinbase, spend};

const RULES: Rules = Rules {
    network: Network::Regtest,
    partitions: 0,
    live_outcomes: false,
    mined_outcomes: false,
    utxo_batch_size: 100,
    retention: 288,
    forgetful: false,
    slow: false,
    pruned_to: None,
};

/// Writer of logs; each message is a millisecond later.
struct LogWriter {
    logs: Logs,
    now_ms: i64,
    sequence: u64,
}

impl LogWriter {
    fn new() -> Self {
        let topics = SequencerTopics {
            block_mined: "mined".into(),
            reorgs: "reorgs".into(),
            chain: "chain".into(),
            decisions: "decisions".into(),
            outcomes: "outcomes".into(),
            dead_letters: "dead".into(),
        };
        LogWriter {
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

    /// Writes a partial transaction with `count` outputs.
    fn seed(&mut self, tag: u8, count: u8) -> Made {
        let outputs: Vec<_> = (0..count).map(|vout| (1_000_000, vec![0x52, tag, vout])).collect();
        let made = Made { txid: Txid([tag; 32]), extended: Bytes::new(), outputs };
        let outputs = made.outputs.iter().zip(0..);
        let outputs = outputs.map(|((satoshis, script), vout)| PartialOutput { vout, satoshis: *satoshis, script });
        let event = PartialTxEvent { txid: made.txid, coinbase: false, height: 1, outputs: outputs.collect() };
        self.write(|logs| &mut logs.validated, &made.txid.0, event.encode());
        made
    }

    /// Writes a contest that names the first event of the transaction.
    fn contest(&mut self, made: &Made, reason: Reason) -> u64 {
        let event = self.logs.validated.iter().find(|logged| logged.message.key == made.txid.0.as_slice());
        let message = &event.expect("the event is in the log").message;
        let position = EventPosition {
            topic: "txs".into(),
            partition: 0,
            offset: message.offset,
            timestamp_ms: message.timestamp_ms,
        };
        let body = *blake3::hash(&made.extended).as_bytes();
        let event = Contest { txid: made.txid, position, body, reason };
        self.write(|logs| &mut logs.chain, &made.txid.0, event.encode())
    }

    fn reconsider(&mut self, made: &Made) -> u64 {
        let event = Command { id: [0; 16], action: CommandAction::Reconsider { txid: made.txid } };
        self.write(|logs| &mut logs.chain, &made.txid.0, event.encode())
    }

    /// Writes a block to its topic and to the chain.
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

    /// Writes the decisions on an event with `Closed`, and the outcomes.
    fn decide(&mut self, chain_offset: u64, bodies: &[DecisionBody]) {
        for (body, step) in bodies.iter().chain([&DecisionBody::Closed]).zip(0..) {
            self.decision(chain_offset, step, body.clone());
            match body {
                DecisionBody::Accepted { txid, losers, inputs, .. } => {
                    self.publish_outcome(chain_offset, *txid, OutcomeKind::Accepted);
                    for loser in losers {
                        let held = inputs.iter().filter_map(|input| input.holder).find(|held| held.txid == *loser);
                        let input = held.expect("a loser holds a slot").input;
                        let reason = Reason::DoubleSpend { input, winner: *txid };
                        self.publish_outcome(chain_offset, *loser, OutcomeKind::Conflicting { reason });
                    }
                }
                DecisionBody::Conflicting { txid, reason, .. } => {
                    self.publish_outcome(chain_offset, *txid, OutcomeKind::Conflicting { reason: *reason });
                }
                DecisionBody::Cone { members, .. } => {
                    for member in members {
                        let reason = Reason::ConflictingParent { parent: member.parent };
                        self.publish_outcome(chain_offset, member.txid, OutcomeKind::Conflicting { reason });
                    }
                }
                _ => {}
            }
        }
    }

    fn decision(&mut self, chain_offset: u64, step: u32, body: DecisionBody) {
        self.write(|logs| &mut logs.decisions, b"", Decision { chain_offset, step, body }.encode());
    }

    fn publish_outcome(&mut self, chain_offset: u64, txid: Txid, kind: OutcomeKind) {
        self.write(
            |logs| &mut logs.outcomes,
            &txid.0,
            OutcomeEvent { txid, source: OutcomeSource::Chain { offset: chain_offset }, kind }.encode(),
        );
    }

    fn publish_dead_letter(&mut self, offset: u64, class: DeadLetterClass) {
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

    /// Writes the outcome of a dead letter whose event names this transaction.
    fn publish_refusal(&mut self, offset: u64, txid: Txid, class: DeadLetterClass) {
        let source = OutcomeSource::Validated { partition: 0, offset };
        let kind = OutcomeKind::refused(class, "test").expect("a class of the pipeline");
        self.write(|logs| &mut logs.outcomes, &txid.0, OutcomeEvent { txid, source, kind }.encode());
    }

    /// Writes a batch of outcomes.
    fn publish_batch(&mut self, change: OutcomeChange, txids: &[Txid]) {
        let txids: Vec<u8> = txids.iter().flat_map(|txid| txid.0).collect();
        let batch = OutcomeBatch { change, txids: TxidList::new(&txids).expect("whole txids") };
        self.write(|logs| &mut logs.outcomes, b"", batch.encode());
    }

    fn replay(&self) -> Result<Expected, Vec<Complaint>> {
        Model::replay(&self.logs, &RULES)
    }

    #[track_caller]
    fn expected(&self) -> Expected {
        self.replay().unwrap_or_else(|complaints| panic!("{complaints:#?}"))
    }

    /// Fails unless one complaint contains `what`.
    #[track_caller]
    fn assert_complaint(&self, what: &str) {
        let complaints = self.replay().err().unwrap_or_default();
        assert!(complaints.iter().any(|complaint| complaint.to_string().contains(what)), "{what}: {complaints:#?}");
    }
}

fn spent_by(made: &Made, input: u32) -> SpendingData {
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

fn descendants(members: &[(&Made, &Made, bool)], height: u32) -> DecisionBody {
    let members =
        members.iter().map(|(made, parent, live)| Descendant { txid: made.txid, parent: parent.txid, live: *live });
    DecisionBody::Cone { members: members.collect(), height }
}

fn descendants_end(height: u32) -> DecisionBody {
    descendants(&[], height)
}

fn verdict(expected: &Expected, made: &Made) -> Option<Verdict> {
    expected.txs[&made.txid].verdict
}

fn holder(expected: &Expected, made: &Made, vout: usize) -> Option<SpendingData> {
    expected.txs[&made.txid].slots[vout].slot.spender()
}

#[test]
fn a_plain_chain_is_live_spent_and_mined() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 2);
    let parent = spend(&[seed.coin(0)], 2, 1);
    let child = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
    log.validate(&parent);
    log.validate(&child);
    let (_, coinbase) = log.mine(&[&parent]);
    let expected = log.expected();
    assert_eq!(expected.txs.len(), 4);
    assert_eq!(holder(&expected, &seed, 1), Some(spent_by(&child, 1)));
    assert_eq!(holder(&expected, &parent, 0), Some(spent_by(&child, 0)));
    assert_eq!(holder(&expected, &parent, 1), None);
    let mined = |subtree| [MinedIn { block_id: 1, height: 101, subtree }].into();
    assert_eq!((expected.txs[&parent.txid].unmined_since, &expected.txs[&parent.txid].mined), (None, &mined(0)));
    assert_eq!(expected.txs[&child.txid].unmined_since, Some(200));
    assert_eq!(expected.txs[&coinbase.txid].spending_height, Some(201));
    assert!(expected.txs.values().all(|tx| tx.verdict.is_none() && !tx.conflicting));
}

/// Writes a seed with a winner and a loser of its first output, and the contest of the loser without a decision.
fn rivals(log: &mut LogWriter) -> (Made, Made, Made, u64) {
    let seed = log.seed(1, 3);
    let (winner, loser) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(0), seed.coin(1)], 2, 2));
    log.validate(&winner);
    log.validate(&loser);
    let contest = log.contest(&loser, lost_to(&winner));
    (seed, winner, loser, contest)
}

#[test]
fn of_two_rivals_the_loser_holds_nothing() {
    let mut log = LogWriter::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &loser), Some(Verdict::Conflicting(lost_to(&winner))));
    assert_eq!((holder(&expected, &seed, 0), holder(&expected, &seed, 1)), (Some(spent_by(&winner, 0)), None));
    assert_ne!(expected.digest(), Expected::default().digest());
}

#[test]
fn a_listed_loser_wins_and_rivals_of_conflicting_descendants_are_reconsidered() {
    let mut log = LogWriter::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    let child = spend(&[winner.coin(0), seed.coin(2)], 1, 3);
    let grandchild = spend(&[child.coin(0)], 1, 4);
    let late = spend(&[seed.coin(2)], 1, 5);
    for made in [&child, &grandchild, &late] {
        log.validate(made);
    }
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let contest = log.contest(&late, lost_to(&child));
    log.decide(contest, &[conflicting(&late, lost_to(&child), 200), descendants_end(200)]);
    let (block, _) = log.mine(&[&loser]);
    let coins = [(seed.coin(0), spent_by(&winner, 0)), (seed.coin(1), spent_by(&loser, 1))];
    let wins = by_block(accepted(&loser, &coins, 101), &[&winner]);
    let first = descendants(&[(&child, &winner, true)], 101);
    log.decide(block, &[wins, first, descendants(&[(&grandchild, &child, true)], 101), descendants_end(101)]);
    log.assert_complaint("deserves a second chance");
    let again = log.reconsider(&late);
    log.decide(again, &[accepted(&late, &[(seed.coin(2), spent_by(&late, 0))], 101)]);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &loser), Some(Verdict::Accepted));
    assert_eq!(verdict(&expected, &winner), Some(Verdict::Conflicting(lost_to(&loser))));
    let expected_verdict = Verdict::Conflicting(Reason::ConflictingParent { parent: child.txid });
    assert_eq!(verdict(&expected, &grandchild), Some(expected_verdict));
    assert_eq!(
        (holder(&expected, &seed, 0), holder(&expected, &seed, 2)),
        (Some(spent_by(&loser, 0)), Some(spent_by(&late, 0)))
    );
    assert_eq!(holder(&expected, &winner, 0), None);
}

#[test]
fn a_later_event_reopens_the_verdict_of_a_missing_parent() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let event = log.validate(&child);
    let missing = Reason::MissingParent { parent: parent.txid };
    let contest = log.contest(&child, missing);
    log.decide(contest, &[conflicting(&child, missing, 200), descendants_end(200)]);
    log.assert_complaint("must have one");
    log.publish_dead_letter(event, DeadLetterClass::MissingParent);
    assert_eq!(verdict(&log.expected(), &child), Some(Verdict::Conflicting(missing)));
    log.validate(&parent);
    log.validate(&child);
    let again = log.contest(&child, Reason::Found);
    log.decide(again, &[accepted(&child, &[(parent.coin(0), spent_by(&child, 0))], 200)]);
    assert_eq!(verdict(&log.expected(), &child), Some(Verdict::Accepted));
}

#[test]
fn a_duplicate_changes_nothing_and_poison_is_a_dead_letter() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let once = spend(&[seed.coin(0)], 1, 1);
    log.validate(&once);
    let digest = log.expected().digest();
    log.validate(&once);
    log.seed(1, 1);
    let poison = log.write(|logs| &mut logs.validated, &once.txid.0, vec![1, 2, 3]);
    log.assert_complaint("must have one");
    log.publish_dead_letter(poison, DeadLetterClass::Decode);
    log.assert_complaint("has no outcome for its event");
    log.publish_refusal(poison, once.txid, DeadLetterClass::Decode);
    assert_eq!(log.expected().digest(), digest);
    log.publish_dead_letter(0, DeadLetterClass::Decode);
    log.assert_complaint("is not explained");
}

/// The writer publishes an outcome only where a test says so: each rule is off in the other tests.
#[test]
fn outcomes_that_are_missing_unexpected_or_misplaced_are_found() {
    let complaints = |log: &LogWriter, rules: Rules| {
        let complaints = Model::replay(&log.logs, &rules).err().unwrap_or_default();
        complaints.iter().map(Complaint::to_string).collect::<Vec<_>>().join("\n")
    };
    let (live, mined) = (Rules { live_outcomes: true, ..RULES }, Rules { mined_outcomes: true, ..RULES });
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    assert!(complaints(&log, live).contains("is live and has no outcome"));
    log.publish_batch(OutcomeChange::Live, &[seed.txid]);
    assert_eq!(complaints(&log, live), "");
    assert!(complaints(&log, RULES).contains("reports an unexpected outcome"), "switched off");
    let own = partition_of(&seed.txid.0, 2).unwrap();
    let misplaced = complaints(&log, Rules { partitions: 2, ..live }).contains("is not in the partition of");
    assert_eq!(misplaced, own != 0);

    let mut log = LogWriter::new();
    let (chain_offset, coinbase) = log.mine(&[]);
    let change = OutcomeChange::Mined { chain_offset, block_id: 1, height: 101, hash: [1; 32] };
    assert!(complaints(&log, mined).contains("has no outcome Mined"));
    log.publish_batch(change, &[coinbase.txid]);
    assert_eq!(complaints(&log, mined), "");
    log.publish_batch(OutcomeChange::Live, &[coinbase.txid]);
    assert!(complaints(&log, Rules { live_outcomes: true, ..mined }).contains("unexpected"), "a coinbase has no event");
}

#[test]
fn a_crossing_double_spend_is_decided_by_the_first_contest() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 2);
    let (first, second) = (spend(&[seed.coin(0), seed.coin(1)], 1, 1), spend(&[seed.coin(1), seed.coin(0)], 1, 2));
    log.validate(&first);
    log.validate(&second);
    let one = log.contest(&first, Reason::DoubleSpend { input: 1, winner: second.txid });
    log.decide(
        one,
        &[accepted(&first, &[(seed.coin(0), spent_by(&first, 0)), (seed.coin(1), spent_by(&second, 0))], 200)],
    );
    let two = log.contest(&second, Reason::DoubleSpend { input: 1, winner: first.txid });
    log.decide(two, &[conflicting(&second, lost_to(&first), 200), descendants_end(200)]);
    let three = log.contest(&second, Reason::History { input: 0 });
    log.decide(three, &[DecisionBody::PassedOver { txid: second.txid }]);
    assert_eq!(holder(&log.expected(), &seed, 1), Some(spent_by(&first, 1)));
}

#[test]
fn a_double_spend_verdict_needs_a_live_winner() {
    let mut log = LogWriter::new();
    let (_, _, loser, contest) = rivals(&mut log);
    let stranger = log.seed(9, 1);
    log.decide(contest, &[conflicting(&loser, lost_to(&stranger), 200), descendants_end(200)]);
    log.assert_complaint("is conflicting because of DoubleSpend");
}

#[test]
fn a_transaction_is_not_accepted_over_a_live_holder_or_with_foreign_inputs() {
    let mut log = LogWriter::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    let mut other = LogWriter { logs: log.logs.clone(), ..log };
    other.decide(
        contest,
        &[accepted(&loser, &[(seed.coin(0), spent_by(&loser, 0)), (seed.coin(1), spent_by(&loser, 1))], 200)],
    );
    other.assert_complaint("are live");
    other.assert_complaint("is live, although DoubleSpend");
    let mut log = LogWriter { logs: Logs::default(), now_ms: 0, sequence: 0 };
    std::mem::swap(&mut log.logs, &mut LogWriter::new().logs);
    let (seed, _, loser, contest) = rivals(&mut log);
    log.decide(contest, &[accepted(&loser, &[(seed.coin(1), spent_by(&winner, 0))], 200)]);
    log.assert_complaint("inputs that are not its own");
    log.assert_complaint("which it does not spend");
}

#[test]
fn descendants_are_real_and_include_every_live_one() {
    let with_descendants = |members: &dyn Fn(&Made, &Made, &Made) -> DecisionBody| {
        let mut log = LogWriter::new();
        let (seed, winner, loser, contest) = rivals(&mut log);
        let (child, stranger) = (spend(&[winner.coin(0)], 1, 3), spend(&[seed.coin(2)], 1, 4));
        log.validate(&child);
        log.validate(&stranger);
        log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
        log.mine(&[]);
        // A contest requires the child to be live, so a verdict on its parent must name the child.
        let rival = spend(&[winner.coin(0)], 1, 5);
        log.validate(&rival);
        let contest = log.contest(&rival, lost_to(&child));
        log.decide(contest, &[conflicting(&rival, lost_to(&child), 101), descendants_end(101)]);
        let (block, _) = log.mine(&[&loser]);
        let coins = [(seed.coin(0), spent_by(&winner, 0)), (seed.coin(1), spent_by(&loser, 1))];
        let wins = by_block(accepted(&loser, &coins, 102), &[&winner]);
        log.decide(block, &[wins, members(&child, &winner, &stranger), descendants_end(102)]);
        let again = log.reconsider(&rival);
        log.decide(again, &[DecisionBody::PassedOver { txid: rival.txid }]);
        let unchanged = OutcomeKind::Command { id: [0; 16], result: CommandResult::AlreadyApplied };
        log.publish_outcome(again, rival.txid, unchanged);
        log
    };
    with_descendants(&|child, winner, _| descendants(&[(child, winner, true)], 102)).expected();
    with_descendants(&|_, _, _| descendants_end(102)).assert_complaint("leave out");
    with_descendants(&|child, winner, stranger| descendants(&[(child, winner, true), (stranger, winner, true)], 102))
        .assert_complaint("which it does not spend");
    with_descendants(&|child, winner, _| descendants(&[(child, winner, false)], 102))
        .assert_complaint("as not live, which it was");
    with_descendants(&|child, winner, _| descendants(&[(child, winner, true)], 101))
        .assert_complaint("its verdict at 102");
}

#[test]
fn decision_steps_are_contiguous_the_first_counts_and_closed_is_last() {
    let mut log = LogWriter::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    log.assert_complaint("asks for a verdict");
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    log.decision(contest, 0, DecisionBody::PassedOver { txid: loser.txid });
    log.expected();
    log.decision(contest, 3, DecisionBody::PassedOver { txid: loser.txid });
    log.assert_complaint("comes after `Closed`");
    log.decision(contest, 9, DecisionBody::Closed);
    log.assert_complaint("skips step 4");
    log.decision(77, 0, DecisionBody::Closed);
    log.assert_complaint("has decisions, but no event");
}

#[test]
fn a_contest_needs_a_verdict_and_a_verdict_is_final() {
    let mut log = LogWriter::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    let mut undecided = LogWriter { logs: log.logs.clone(), now_ms: 2_000, sequence: 0 };
    undecided.decide(contest, &[DecisionBody::PassedOver { txid: loser.txid }]);
    undecided.assert_complaint("is live, although DoubleSpend");
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let again = log.contest(&loser, lost_to(&winner));
    log.decide(again, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    log.assert_complaint("a final verdict");
}

#[test]
fn a_parent_produced_before_its_child_is_not_missing() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    log.validate(&parent);
    let event = log.validate(&child);
    let missing = Reason::MissingParent { parent: parent.txid };
    let contest = log.contest(&child, missing);
    log.decide(contest, &[conflicting(&child, missing, 200), descendants_end(200)]);
    log.publish_dead_letter(event, DeadLetterClass::MissingParent);
    log.assert_complaint("is conflicting because of MissingParent");
    log.assert_complaint("which the history does not know");
}

#[test]
fn a_coinbase_matures_one_hundred_blocks_after_its_own() {
    let lost = |height: u32| {
        let mut log = LogWriter::new();
        let (_, coinbase) = log.mine(&[]);
        let young = spend(&[coinbase.coin(0)], 1, 1);
        let event = Validated { tx: &young.extended, height, locked: false };
        log.write(|logs| &mut logs.validated, &young.txid.0, event.encode());
        let contest = log.contest(&young, Reason::Immature { input: 0 });
        log.decide(contest, &[conflicting(&young, Reason::Immature { input: 0 }, 101), descendants_end(101)]);
        log
    };
    lost(200).expected();
    lost(201).assert_complaint("is conflicting because of Immature");
}

#[test]
fn every_contest_outcome_and_fed_block_is_explained() {
    let mut log = LogWriter::new();
    let (_, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let passed_over = log.contest(&winner, Reason::Frozen { input: 0 });
    log.decide(passed_over, &[DecisionBody::PassedOver { txid: winner.txid }]);
    log.expected();
    let passed_over = log.contest(&winner, Reason::Immature { input: 0 });
    log.decide(passed_over, &[DecisionBody::PassedOver { txid: winner.txid }]);
    log.assert_complaint("because of Immature { input: 0 }, which the history does not know");
    log.publish_outcome(contest, winner.txid, OutcomeKind::Accepted);
    log.assert_complaint("reports an unexpected outcome");
    let mut again = LogWriter::new();
    let (_, winner, loser, contest) = rivals(&mut again);
    again.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let passed_over = again.contest(&loser, lost_to(&winner));
    again.decide(passed_over, &[DecisionBody::PassedOver { txid: loser.txid }]);
    again.expected();
    again.publish_outcome(passed_over, loser.txid, OutcomeKind::Accepted);
    again.assert_complaint("reports an unexpected outcome");
    let mut without_outcomes = LogWriter::new();
    let (_, winner, loser, contest) = rivals(&mut without_outcomes);
    without_outcomes.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    without_outcomes.logs.outcomes.clear();
    without_outcomes.assert_complaint("has no outcome for chain offset");
    let mut foreign = LogWriter::new();
    let (block, _) = foreign.mine(&[&winner]);
    foreign.assert_complaint("which is not live");
    foreign.logs.chain[block as usize].message.headers.clear();
    foreign.assert_complaint("holds an event that is in no source topic");
}

#[test]
fn a_difference_in_the_store_names_the_transaction() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let complaints = log.expected().compare([]);
    assert_eq!(complaints.len(), 1);
    assert_eq!(complaints[0].to_string(), format!("{}: is missing in the store", seed.txid));
}

/// Samples of `schemas/digest.md`.
#[test]
fn the_digest_equals_the_documented_sample() {
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
