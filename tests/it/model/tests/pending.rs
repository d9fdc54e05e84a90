//! What must come of histories that were thought of before the store could meet them (`tests/it/regressions`).

use utxo_store::event::{CommandResult, Reorg};

use super::{later::refused, *};

/// The block that a message of the chain brings.
fn block_in(payload: &[u8]) -> Block<'_> {
    match Event::decode(payload) {
        Ok(Event::BlockMined(mined)) => mined.block,
        Ok(Event::Reorg(reorg)) => reorg.connected[0].clone(),
        other => panic!("no block: {other:?}"),
    }
}

impl Log {
    fn validate_at(&mut self, made: &Made, height: u32) {
        let event = Validated { tx: &made.extended, height, locked: false };
        self.write(|logs| &mut logs.validated, &made.txid.0, event.encode());
    }

    /// The block that the chain event at `leaves` brought leaves, and the one of `comes` comes back in its place.
    fn swap(&mut self, leaves: u64, comes: u64) -> u64 {
        self.sequence += 1;
        let payload = |offset: u64| self.logs.chain[offset as usize].message.payload.clone();
        let (leaves, comes) = (payload(leaves), payload(comes));
        let (disconnected, connected) = (vec![block_in(&leaves)], vec![block_in(&comes)]);
        let payload = Reorg { sequence: self.sequence, disconnected, connected }.encode();
        let source = self.write(|logs| &mut logs.reorgs, b"", payload.clone());
        let offset = self.write(|logs| &mut logs.chain, b"", payload);
        let header = ("utxo-source-offset".to_owned(), Bytes::from(source.to_string()));
        self.logs.chain[offset as usize].message.headers.push(header);
        offset
    }
}

/// What a coinbase becomes whose block leaves.
fn disconnected(coinbase: &Made) -> DecisionBody {
    DecisionBody::Conflicting { txid: coinbase.txid, reason: Reason::Disconnected, height: 101, live: true }
}

/// A set-mined that was on its way when its block left must change nothing.
#[test]
fn a_transaction_of_a_block_that_left_is_unmined() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let listed = spend(&[seed.coin(0)], 1, 1);
    log.validate(&listed);
    let (_, old) = log.mine(&[&listed]);
    let (reorg, _) = log.replace_tip(&[]);
    log.decide(reorg, &[disconnected(&old), end(101)]);
    let expected = log.expected();
    assert!(expected.txs[&listed.txid].mined.is_empty());
    assert_eq!(expected.txs[&listed.txid].unmined_since, Some(101));
}

/// D spends coinbase c; c leaves; c returns: with D before, between, and after.
#[test]
fn a_coinbase_leaves_and_returns_and_its_spender_falls_and_wins() {
    for moment in ["before", "between", "after"] {
        let mut log = Log::new();
        let (first, c) = log.mine(&[]);
        let d = spend(&[c.coin(0)], 1, 1);
        if moment == "before" {
            log.validate_at(&d, 300);
        }
        let (second, other) = log.replace_tip(&[]);
        let orphaned = Reason::ConflictingParent { parent: c.txid };
        match moment {
            "before" => log.decide(second, &[disconnected(&c), cone(&[(&d, &c, true)], 101), end(101)]),
            _ => log.decide(second, &[disconnected(&c), end(101)]),
        }
        if moment == "between" {
            log.validate_at(&d, 300);
            let contest = log.contest(&d, orphaned);
            log.decide(contest, &[conflicting(&d, orphaned, 101), end(101)]);
        }
        if moment != "after" {
            assert_eq!(verdict(&log.expected(), &d), Some(Verdict::Conflicting(orphaned)), "{moment}");
        }
        let third = log.swap(second, first);
        log.decide(third, &[disconnected(&other), end(101), by_block(accepted(&c, &[], 101), &[])]);
        if moment == "after" {
            log.validate_at(&d, 300);
        } else {
            log.complains("deserves a second chance");
            let again = log.reconsider(&d);
            log.decide(again, &[accepted(&d, &[(c.coin(0), by(&d, 0))], 101)]);
        }
        let expected = log.expected();
        assert_eq!(holder(&expected, &c, 0), Some(by(&d, 0)), "{moment}");
        assert!(!expected.txs[&c.txid].conflicting && expected.txs[&other.txid].conflicting, "{moment}");
    }
}

#[test]
fn an_unlock_stands_behind_the_block_that_needs_it() {
    let mut log = Log::new();
    let seed = log.seed(1, 1);
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    log.validate(&parent);
    log.command(1, parent.txid, Action::Lock { txid: parent.txid }, CommandResult::Applied);
    log.validate(&child);
    let barred = Reason::Locked { parent: parent.txid };
    let contest = log.contest(&child, barred);
    log.decide(contest, &[conflicting(&child, barred, 200), end(200)]);
    let (block, _) = log.mine(&[&parent, &child]);
    log.decide(block, &[by_block(accepted(&child, &[(parent.coin(0), by(&child, 0))], 101), &[])]);
    log.command(2, parent.txid, Action::Unlock { txid: parent.txid }, CommandResult::AlreadyApplied);
    let expected = log.expected();
    assert_eq!(verdict(&expected, &child), Some(Verdict::Accepted));
    assert!(!expected.txs[&parent.txid].locked);
}

/// A rebuild must not let the lock and the freeze bar who had won before them.
#[test]
fn a_lock_and_a_freeze_behind_an_honest_holder() {
    let mut log = Log::new();
    let seed = log.seed(1, 2);
    let honest = spend(&[seed.coin(0)], 1, 1);
    log.validate(&honest);
    log.command(1, seed.txid, Action::Lock { txid: seed.txid }, CommandResult::Applied);
    let frozen = seed.coin(1).outpoint;
    log.command(2, seed.txid, Action::Freeze { outpoint: seed.coin(0).outpoint }, refused("SPENT"));
    log.command(3, seed.txid, Action::Freeze { outpoint: frozen }, CommandResult::Applied);
    let expected = log.expected();
    assert_eq!(holder(&expected, &seed, 0), Some(by(&honest, 0)));
    assert!(expected.txs[&seed.txid].locked && !expected.txs[&honest.txid].conflicting);
}

/// Whoever holds the slot, live or on the way, keeps it; only what a loser held is given back, and that it gives back anyway.
#[test]
fn an_unspend_of_a_spender_that_is_live_or_not() {
    let mut log = Log::new();
    let (seed, winner, loser, contest) = rivals(&mut log);
    log.decide(contest, &[conflicting(&loser, lost_to(&winner), 200), end(200)]);
    let unspend =
        |spender: &Made, vout| Action::Unspend { outpoint: seed.coin(vout).outpoint, spender: spender.txid, input: 0 };
    log.command(1, seed.txid, unspend(&winner, 0), refused("INVALID_SPEND"));
    log.command(2, seed.txid, unspend(&loser, 1), CommandResult::AlreadyApplied);
    let expected = log.expected();
    assert_eq!((holder(&expected, &seed, 0), holder(&expected, &seed, 1)), (Some(by(&winner, 0)), None));
}
