//! Commands, reorgs and pruning in hand-written logs.

use utxo_store::event::{CommandResult, Reorg};

use super::*;

impl LogWriter {
    /// Writes a command with its result.
    pub fn command(&mut self, id: u8, txid: Txid, action: CommandAction<'_>, result: CommandResult) {
        let id = [id; 16];
        let offset = self.write(|logs| &mut logs.chain, &txid.0, Command { id, action }.encode());
        let done = DecisionBody::CommandDone { id, executed_at: offset, result: result.clone() };
        self.decide(offset, &[done]);
        self.publish_outcome(offset, txid, OutcomeKind::Command { id, result });
    }

    /// Writes a reorg that replaces the last block by one with other contents.
    pub fn replace_tip(&mut self, listed: &[&Made]) -> (u64, Made) {
        let old = self.logs.chain.last().expect("a block").message.payload.clone();
        let Ok(Event::BlockMined(left)) = Event::decode(&old) else { panic!("no block") };
        self.sequence += 1;
        let coinbase = coinbase(77);
        let txids: Vec<u8> = listed.iter().flat_map(|made| made.txid.0).collect();
        let subtrees = vec![Subtree { count: listed.len() as u64, transactions: SubtreeTransactions::Inline(&txids) }];
        let new = Block { block_id: 77, hash: [77; 32], coinbase: &coinbase.extended, subtrees, ..left.block.clone() };
        let reorg = Reorg { sequence: self.sequence, disconnected: vec![left.block], connected: vec![new] };
        let payload = reorg.encode();
        let source = self.write(|logs| &mut logs.reorgs, b"", payload.clone());
        let offset = self.write(|logs| &mut logs.chain, b"", payload);
        let header = ("utxo-source-offset".to_owned(), Bytes::from(source.to_string()));
        self.logs.chain[offset as usize].message.headers.push(header);
        (offset, coinbase)
    }
}

pub fn refused(code: &str) -> CommandResult {
    CommandResult::Refused { code: code.into(), message: String::new() }
}

#[test]
fn an_output_is_frozen_reassigned_and_unspendable_until_its_height() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 2);
    let spender = spend(&[seed.coin(1)], 1, 1);
    log.validate(&spender);
    let (txid, outpoint) = (seed.txid, seed.coin(0).outpoint);
    log.command(1, txid, CommandAction::Freeze { outpoint }, CommandResult::Applied);
    assert!(matches!(log.expected().txs[&txid].slots[0].slot, Slot::Frozen(_)));
    log.command(2, txid, CommandAction::Freeze { outpoint }, refused("ALREADY_FROZEN"));
    log.command(3, txid, CommandAction::Freeze { outpoint: seed.coin(1).outpoint }, refused("SPENT"));
    let hash = |coin: &Coin| utxo_store::tx::utxo_hash(&txid, coin.outpoint.vout, &coin.script, coin.satoshis);
    let (utxo_hash, new_script) = (hash(&seed.coin(0)), [0x51, 0x99]);
    let action = CommandAction::Reassign {
        outpoint,
        utxo_hash,
        new_script: &new_script,
        satoshis: 7,
        height: 50,
        spendable_after: 1_000,
    };
    log.command(4, txid, action, CommandResult::Applied);
    let slot = log.expected().txs[&txid].slots[0].clone();
    assert_eq!(slot.spendable_from, Some(1_050));
    assert_eq!(slot.slot, Slot::Unspent(utxo_store::tx::utxo_hash(&txid, 0, &new_script, 7)));
    assert_eq!(slot.reassignments.len(), 1);
    log.command(5, txid, CommandAction::Unfreeze { outpoint }, CommandResult::Applied);
    log.assert_complaint("must be Some(Refused(\"NOT_FROZEN\"))");
}

#[test]
fn lock_preserve_and_delete_change_the_expected_state() {
    let mut log = LogWriter::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    log.command(1, seed.txid, CommandAction::Lock { txid: seed.txid }, CommandResult::Applied);
    log.command(2, seed.txid, CommandAction::Preserve { txid: seed.txid, until: 9 }, CommandResult::Applied);
    log.command(3, seed.txid, CommandAction::Preserve { txid: seed.txid, until: 8 }, CommandResult::AlreadyApplied);
    log.command(4, winner.txid, CommandAction::Delete { txid: winner.txid }, refused("INVALID_SPEND"));
    log.command(5, loser.txid, CommandAction::Delete { txid: loser.txid }, CommandResult::Applied);
    let expected = log.expected();
    assert_eq!((expected.txs[&seed.txid].locked, expected.txs[&seed.txid].preserve_until), (true, Some(9)));
    assert!(!expected.txs.contains_key(&loser.txid), "a deleted transaction is in no digest");
}

#[test]
fn a_reorg_replaces_one_block_by_another() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 2);
    let (stays_mined, becomes_unmined) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1)], 1, 2));
    log.validate(&stays_mined);
    log.validate(&becomes_unmined);
    let (_, old) = log.mine(&[&stays_mined, &becomes_unmined]);
    let (reorg, new) = log.replace_tip(&[&stays_mined]);
    let gone = DecisionBody::Conflicting { txid: old.txid, reason: Reason::Disconnected, height: 101, live: true };
    log.decide(reorg, &[gone, descendants_end(101)]);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &old), Some(Verdict::Conflicting(Reason::Disconnected)));
    assert!(!expected.txs[&new.txid].conflicting);
    assert_eq!(expected.txs[&stays_mined.txid].mined, [MinedIn { block_id: 77, height: 101, subtree: 0 }].into());
    assert_eq!(
        (expected.txs[&stays_mined.txid].unmined_since, expected.txs[&becomes_unmined.txid].unmined_since),
        (None, Some(101))
    );
    assert!(expected.txs[&becomes_unmined.txid].mined.is_empty());
}

#[test]
fn a_transaction_spent_by_mined_ones_is_pruned_after_the_retention() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    log.validate(&parent);
    log.validate(&child);
    log.mine(&[&parent]);
    log.mine(&[&child]);
    let at =
        |height| Model::replay(&log.logs, &Rules { pruned_to: Some(height), ..RULES }).expect("nothing to complain of");
    assert!(at(388).txs.contains_key(&seed.txid));
    assert!(!at(389).txs.contains_key(&seed.txid), "its spender was mined at 101, retention is 288");
    assert!(at(389).txs.contains_key(&parent.txid));
    assert!(!at(390).txs.contains_key(&parent.txid));
    assert!(at(390).txs.contains_key(&child.txid), "one output is unspent");
}

/// The number of pages does not matter here: the child of the last output conflicts with its parent.
#[test]
fn the_child_of_the_last_page_conflicts_with_its_paged_parent() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 4, 2));
    let child = spend(&[loser.coin(3)], 1, 3);
    for made in [&winner, &loser, &child] {
        log.validate(made);
    }
    let contest = log.contest(&loser, lost_to(&winner));
    log.decide(
        contest,
        &[
            conflicting(&loser, lost_to(&winner), 200),
            descendants(&[(&child, &loser, false)], 200),
            descendants_end(200),
        ],
    );
    let again = log.contest(&child, Reason::Found);
    log.decide(again, &[DecisionBody::PassedOver { txid: child.txid }]);
    let expected = log.expected();
    let expected_verdict = Verdict::Conflicting(Reason::ConflictingParent { parent: loser.txid });
    assert_eq!((verdict(&expected, &child), holder(&expected, &loser, 3)), (Some(expected_verdict), None));
}
