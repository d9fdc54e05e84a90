//! Matches of an event with watched scripts: new outputs, claims, and transactions to ask about. Pure functions.

use super::{
    scripts::ScriptTable,
    types::{OwnerId, ScriptId},
};
use crate::{
    event::{Block, BlockMined, CommandAction, Event, OutcomeEvent, OutcomeKind, Reorg},
    record::{Body, Page, Reassignment},
    tx::{MAX_MONEY, Outpoint, Transaction, Txid},
};

/// An output of a watched script, as an event names the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SeenOutput {
    pub outpoint: Outpoint,
    pub owner: OwnerId,
    pub script: ScriptId,
    pub satoshis: u64,
    /// Every input of the transaction spends an output of the same owner.
    pub own_change: bool,
}

/// A transaction that spends an output of a watched script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub spender: Txid,
    pub outpoint: Outpoint,
}

/// A transaction about whose outputs, and about the outputs that the transaction spends, the store is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Touched {
    pub txid: Txid,
    /// `Some(true)`: the transaction is conflicting or was refused, and will not spend. `Some(false)`: the transaction
    /// was accepted.
    pub is_out: Option<bool>,
}

/// Matches of events with watched scripts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Matches {
    pub outputs: Vec<SeenOutput>,
    pub claims: Vec<Claim>,
    pub touched: Vec<Touched>,
}

impl Matches {
    /// Adds what an event means. An event by reference needs its body: the caller adds the event with its body.
    pub fn add(&mut self, event: &Event<'_>, scripts: &ScriptTable) {
        match event {
            Event::Validated(validated) => self.add_bytes(validated.tx, scripts),
            Event::Seeded(seeded) => {
                for output in &seeded.outputs {
                    let outpoint = Outpoint { txid: seeded.txid, vout: output.vout };
                    self.add_output(scripts, output.script, output.satoshis, || outpoint);
                }
            }
            Event::BlockMined(BlockMined { block, .. }) => self.add_coinbase(block, scripts),
            Event::Reorg(Reorg { connected, .. }) => {
                connected.iter().for_each(|block| self.add_coinbase(block, scripts));
            }
            Event::Command(command) => {
                if let CommandAction::Reassign { outpoint, new_script, satoshis, .. } = &command.action {
                    self.add_output(scripts, new_script, *satoshis, || *outpoint);
                }
            }
            Event::Outcome(outcome) => self.add_outcome(outcome),
            // The store is asked again at each new block about everything that no block lists, and with growing pauses
            // about everything that is open, so that transactions without a contest need no outcome.
            Event::OutcomeBatch(_) => {}
            Event::ValidatedReference(_) | Event::SeededReference(_) => {}
            Event::Contest(_) | Event::Decision(_) | Event::DecisionGroup(_) | Event::DecisionRun(_) => {}
        }
    }

    fn add_coinbase(&mut self, block: &Block<'_>, scripts: &ScriptTable) {
        self.add_bytes(block.coinbase, scripts);
    }

    /// Adds the transaction of a page with its body, and the outputs of the page's new owners. `first`: index of the
    /// first output of the page.
    pub fn add_page(&mut self, page: &Page, first: u32, scripts: &ScriptTable) {
        match page.body() {
            Some(Body::Transaction(bytes)) => self.add_bytes(bytes, scripts),
            Some(Body::Outputs(outputs)) => {
                for (vout, output) in (0..).zip(outputs.iter()) {
                    let Some(output) = output else { continue };
                    self.add_output(scripts, &output.script, output.satoshis, || Outpoint { txid: page.txid, vout });
                }
            }
            Some(Body::External(_)) | None => {}
        }
        for Reassignment { offset, output, .. } in &page.reassignments {
            let outpoint = || Outpoint { txid: page.txid, vout: first.saturating_add(*offset) };
            self.add_output(scripts, &output.script, output.satoshis, outpoint);
        }
    }

    /// Adds a transaction. Bytes that are no transaction become a dead letter of the pipeline, and never an output.
    fn add_bytes(&mut self, bytes: &[u8], scripts: &ScriptTable) {
        if scripts.scripts.is_empty() {
            return;
        }
        if let Ok(transaction) = Transaction::parse(bytes) {
            self.add_transaction(&transaction, scripts);
        }
    }

    fn add_transaction(&mut self, transaction: &Transaction<'_>, scripts: &ScriptTable) {
        let owner_of = |script: &[u8]| scripts.scripts.get(script).copied();
        let mut txid = None;
        let (mut only_owner, mut is_first_input) = (None, true);
        for input in transaction.inputs() {
            let previous = input.previous.filter(|previous| previous.satoshis <= MAX_MONEY);
            let previous = previous.and_then(|previous| Some((previous, owner_of(previous.script)?)));
            let owner = previous.map(|(_, (owner, _))| owner);
            only_owner = if is_first_input { owner } else { only_owner.filter(|only| Some(*only) == owner) };
            is_first_input = false;
            if let Some((previous, (owner, script))) = previous {
                let (satoshis, outpoint) = (previous.satoshis, input.outpoint);
                let spender = *txid.get_or_insert_with(|| transaction.txid());
                self.outputs.push(SeenOutput { outpoint, owner, script, satoshis, own_change: false });
                self.claims.push(Claim { spender, outpoint });
            }
        }
        let created = self.outputs.len();
        for (vout, output) in (0..).zip(transaction.outputs()) {
            let outpoint = || Outpoint { txid: *txid.get_or_insert_with(|| transaction.txid()), vout };
            self.add_output(scripts, output.script, output.satoshis, outpoint);
        }
        for output in &mut self.outputs[created..] {
            output.own_change = Some(output.owner) == only_owner;
        }
    }

    fn add_output(&mut self, scripts: &ScriptTable, script: &[u8], satoshis: u64, outpoint: impl FnOnce() -> Outpoint) {
        // No live output has more than all coins that will exist.
        if satoshis > MAX_MONEY {
            return;
        }
        if let Some((owner, script)) = scripts.scripts.get(script).copied() {
            self.outputs.push(SeenOutput { outpoint: outpoint(), owner, script, satoshis, own_change: false });
        }
    }

    fn add_outcome(&mut self, outcome: &OutcomeEvent) {
        let is_out = match &outcome.kind {
            OutcomeKind::Accepted => Some(false),
            OutcomeKind::Conflicting { .. } | OutcomeKind::Refused { .. } => Some(true),
            OutcomeKind::Command { .. } => None,
        };
        self.touched.push(Touched { txid: outcome.txid, is_out });
    }

    /// Leaves each output, claim and transaction once. Of a transaction the last verdict counts.
    pub fn merge_repeats(&mut self) {
        self.outputs.sort_unstable();
        // `own_change` sorts last, so that the repeat that knows the inputs comes after the one that does not.
        self.outputs.dedup_by(|later, kept| {
            let same = later.outpoint == kept.outpoint;
            kept.own_change |= same && later.own_change;
            same
        });
        self.claims.sort_unstable();
        self.claims.dedup();
        self.touched.reverse();
        self.touched.sort_by_key(|touched| touched.txid);
        self.touched.dedup_by(|later, kept| {
            let same = later.txid == kept.txid;
            kept.is_out = if same { kept.is_out.or(later.is_out) } else { kept.is_out };
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        event::{OutcomeSource, Validated},
        record::{Master, PartialOutputs, Reason, StoredOutput},
        tx::{Output, TransactionBuilder, UtxoHash},
    };

    const ALICE: &[u8] = &[0x51];
    const BOB: &[u8] = &[0x52];
    const OTHER: &[u8] = &[0x53];

    fn table() -> ScriptTable {
        let watched = [(ALICE, (1, 11)), (BOB, (2, 22))];
        let scripts = watched.map(|(script, ids)| (Bytes::from_static(script), ids)).into_iter().collect();
        ScriptTable { version: 1, scripts }
    }

    fn parent(byte: u8) -> Outpoint {
        Outpoint { txid: Txid([byte; 32]), vout: 0 }
    }

    fn matches_of(inputs: &[(u8, &[u8])], outputs: &[&[u8]]) -> (Matches, Txid) {
        let mut builder = TransactionBuilder::default();
        for (byte, script) in inputs {
            builder = builder.input(parent(*byte), &[], 0, Some(Output { satoshis: 100, script }));
        }
        for script in outputs {
            builder = builder.output(40, script);
        }
        let bytes = builder.extended();
        let txid = Transaction::parse(&bytes).unwrap().txid();
        let mut matches = Matches::default();
        matches.add(&Event::Validated(Validated { tx: &bytes, height: 5, locked: false }), &table());
        (matches, txid)
    }

    #[test]
    fn a_page_has_its_outputs_and_those_of_its_new_owners() {
        let output = |script: &'static [u8]| StoredOutput { satoshis: 70, script: Bytes::from_static(script) };
        let mut page = Page::empty(Txid([4; 32]));
        let known = vec![(0, output(OTHER)), (3, output(ALICE))];
        page.master =
            Some(Box::new(Master { body: Some(Body::Outputs(PartialOutputs::new(known))), ..Master::default() }));
        let mut matches = Matches::default();
        matches.add_page(&page, 0, &table());
        let seen = |vout, owner, script| {
            let outpoint = Outpoint { txid: page.txid, vout };
            SeenOutput { outpoint, owner, script, satoshis: 70, own_change: false }
        };
        assert_eq!(matches.outputs, [seen(3, 1, 11)]);
        let hash = UtxoHash([1; 32]);
        let reassigned = |offset| Reassignment {
            offset,
            utxo_hash: hash,
            new_utxo_hash: hash,
            block_height: 9,
            output: output(BOB),
        };
        let further = Page { number: 2, reassignments: vec![reassigned(5)], ..Page::empty(page.txid) };
        let mut matches = Matches::default();
        matches.add_page(&further, 2 * 100, &table());
        assert_eq!(matches.outputs, [seen(205, 2, 22)]);
    }

    #[test]
    fn a_payment_claims_its_inputs_and_makes_outputs() {
        let (matches, txid) = matches_of(&[(7, ALICE)], &[BOB, OTHER, ALICE]);
        let seen = |outpoint, owner, script, satoshis, own_change| SeenOutput {
            outpoint,
            owner,
            script,
            satoshis,
            own_change,
        };
        let expected = [
            seen(parent(7), 1, 11, 100, false),
            seen(Outpoint { txid, vout: 0 }, 2, 22, 40, false),
            seen(Outpoint { txid, vout: 2 }, 1, 11, 40, true),
        ];
        assert_eq!(matches.outputs, expected);
        assert_eq!(matches.claims, [Claim { spender: txid, outpoint: parent(7) }]);
    }

    #[test]
    fn change_is_own_only_if_every_input_is() {
        for (inputs, own) in [
            (vec![(7, ALICE), (8, ALICE)], true),
            (vec![(7, ALICE), (8, BOB)], false),
            (vec![(7, OTHER), (8, ALICE)], false),
            (vec![(7, ALICE), (8, OTHER)], false),
        ] {
            let (matches, _) = matches_of(&inputs, &[ALICE]);
            assert_eq!(matches.outputs.last().unwrap().own_change, own, "{inputs:?}");
        }
    }

    #[test]
    fn the_last_verdict_of_a_transaction_counts() {
        let outcome = |kind| {
            Event::Outcome(OutcomeEvent { txid: Txid([9; 32]), source: OutcomeSource::Chain { offset: 1 }, kind })
        };
        let mut matches = Matches::default();
        let reason = Reason::DoubleSpend { input: 0, winner: Txid([1; 32]) };
        for kind in [OutcomeKind::Accepted, OutcomeKind::Conflicting { reason }] {
            matches.add(&outcome(kind), &table());
        }
        matches.merge_repeats();
        assert_eq!(matches.touched, [Touched { txid: Txid([9; 32]), is_out: Some(true) }]);
    }

    #[test]
    fn an_output_that_a_child_names_first_keeps_its_owner() {
        let mut matches = Matches::default();
        let seen = |own_change| SeenOutput { outpoint: parent(1), owner: 1, script: 11, satoshis: 5, own_change };
        matches.outputs = vec![seen(true), seen(false)];
        matches.merge_repeats();
        assert_eq!(matches.outputs, [seen(true)]);
    }
}
