//! Histories of `tests/it/regressions`, as logs written by hand.

use utxo_store::event::{CommandResult, Reorg};

use super::{commands::refused, *};

/// Returns the block that a message of the chain connects.
fn block_in(payload: &[u8]) -> Block<'_> {
    match Event::decode(payload) {
        Ok(Event::BlockMined(mined)) => mined.block,
        Ok(Event::Reorg(reorg)) => reorg.connected[0].clone(),
        other => panic!("no block: {other:?}"),
    }
}

impl LogWriter {
    fn validate_at(&mut self, made: &Made, height: u32) {
        let event = Validated { tx: &made.extended, height, locked: false };
        self.write(|logs| &mut logs.validated, &made.txid.0, event.encode());
    }

    /// Writes a reorg that disconnects the block of the chain event at `disconnected_at` and connects the block of the
    /// event at `connected_at` again.
    fn replace_block(&mut self, disconnected_at: u64, connected_at: u64) -> u64 {
        self.sequence += 1;
        let payload = |offset: u64| self.logs.chain[offset as usize].message.payload.clone();
        let (old, new) = (payload(disconnected_at), payload(connected_at));
        let (disconnected, connected) = (vec![block_in(&old)], vec![block_in(&new)]);
        let payload = Reorg { sequence: self.sequence, disconnected, connected }.encode();
        let source = self.write(|logs| &mut logs.reorgs, b"", payload.clone());
        let offset = self.write(|logs| &mut logs.chain, b"", payload);
        let header = ("utxo-source-offset".to_owned(), Bytes::from(source.to_string()));
        self.logs.chain[offset as usize].message.headers.push(header);
        offset
    }
}

/// Decision on the coinbase of a disconnected block.
fn disconnected(coinbase: &Made) -> DecisionBody {
    DecisionBody::Conflicting { txid: coinbase.txid, reason: Reason::Disconnected, height: 101, live: true }
}

/// A set-mined in flight when its block is disconnected must change nothing.
#[test]
fn a_transaction_of_a_disconnected_block_is_unmined() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let listed = spend(&[seed.coin(0)], 1, 1);
    log.validate(&listed);
    let (_, old) = log.mine(&[&listed]);
    let (reorg, _) = log.replace_tip(&[]);
    log.decide(reorg, &[disconnected(&old), descendants_end(101)]);
    let expected = log.expected();
    assert!(expected.txs[&listed.txid].mined.is_empty());
    assert_eq!(expected.txs[&listed.txid].unmined_since, Some(101));
}

/// D spends coinbase c, whose block is disconnected and connected again; D is produced before, between or after.
#[test]
fn the_spender_of_a_disconnected_coinbase_is_accepted_again_when_it_returns() {
    for moment in ["before", "between", "after"] {
        let mut log = LogWriter::new();
        let (first, c) = log.mine(&[]);
        let d = spend(&[c.coin(0)], 1, 1);
        if moment == "before" {
            log.validate_at(&d, 300);
        }
        let (second, other) = log.replace_tip(&[]);
        let orphaned = Reason::ConflictingParent { parent: c.txid };
        match moment {
            "before" => {
                log.decide(second, &[disconnected(&c), descendants(&[(&d, &c, true)], 101), descendants_end(101)])
            }
            _ => log.decide(second, &[disconnected(&c), descendants_end(101)]),
        }
        if moment == "between" {
            log.validate_at(&d, 300);
            let contest = log.contest(&d, orphaned);
            log.decide(contest, &[conflicting(&d, orphaned, 101), descendants_end(101)]);
        }
        if moment != "after" {
            assert_eq!(verdict(&log.expected(), &d), Some(Verdict::Conflicting(orphaned)), "{moment}");
        }
        let third = log.replace_block(second, first);
        log.decide(third, &[disconnected(&other), descendants_end(101), by_block(accepted(&c, &[], 101), &[])]);
        if moment == "after" {
            log.validate_at(&d, 300);
        } else {
            log.assert_complaint("deserves a second chance");
            let again = log.reconsider(&d);
            log.decide(again, &[accepted(&d, &[(c.coin(0), spent_by(&d, 0))], 101)]);
        }
        let expected = log.expected();
        assert_eq!(holder(&expected, &c, 0), Some(spent_by(&d, 0)), "{moment}");
        assert!(!expected.txs[&c.txid].conflicting && expected.txs[&other.txid].conflicting, "{moment}");
    }
}

#[test]
fn a_block_needs_no_unlock_command_for_a_listed_transaction() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    log.validate(&parent);
    log.command(1, parent.txid, CommandAction::Lock { txid: parent.txid }, CommandResult::Applied);
    log.validate(&child);
    let barred = Reason::Locked { parent: parent.txid };
    let contest = log.contest(&child, barred);
    log.decide(contest, &[conflicting(&child, barred, 200), descendants_end(200)]);
    let (block, _) = log.mine(&[&parent, &child]);
    log.decide(block, &[by_block(accepted(&child, &[(parent.coin(0), spent_by(&child, 0))], 101), &[])]);
    log.command(2, parent.txid, CommandAction::Unlock { txid: parent.txid }, CommandResult::AlreadyApplied);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &child), Some(Verdict::Accepted));
    assert!(!expected.txs[&parent.txid].locked);
}

/// A rebuild must not let the lock and the freeze bar transactions that won before.
#[test]
fn a_lock_and_a_freeze_after_a_spend_do_not_affect_the_spender() {
    let mut log = LogWriter::new();
    let seed = log.seed(1, 2);
    let honest = spend(&[seed.coin(0)], 1, 1);
    log.validate(&honest);
    log.command(1, seed.txid, CommandAction::Lock { txid: seed.txid }, CommandResult::Applied);
    let frozen = seed.coin(1).outpoint;
    log.command(2, seed.txid, CommandAction::Freeze { outpoint: seed.coin(0).outpoint }, refused("SPENT"));
    log.command(3, seed.txid, CommandAction::Freeze { outpoint: frozen }, CommandResult::Applied);
    let expected = log.expected();
    assert_eq!(holder(&expected, &seed, 0), Some(spent_by(&honest, 0)));
    assert!(expected.txs[&seed.txid].locked && !expected.txs[&honest.txid].conflicting);
}

/// A live holder keeps the slot; a loser has released its slot already.
#[test]
fn unspend_is_refused_for_a_live_spender_and_changes_nothing_for_a_loser() {
    let mut log = LogWriter::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), descendants_end(200)]);
    let unspend = |spender: &Made, vout| CommandAction::Unspend {
        outpoint: seed.coin(vout).outpoint,
        spender: spender.txid,
        input: 0,
    };
    log.command(1, seed.txid, unspend(&winner, 0), refused("INVALID_SPEND"));
    log.command(2, seed.txid, unspend(&loser, 1), CommandResult::AlreadyApplied);
    let expected = log.expected();
    assert_eq!((holder(&expected, &seed, 0), holder(&expected, &seed, 1)), (Some(spent_by(&winner, 0)), None));
}
