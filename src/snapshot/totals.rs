//! Counts of the records of a snapshot.

use std::{fmt, ops::AddAssign};

use serde::{Deserialize, Serialize};

use crate::{
    record::{Page, Record, Slot, TxState},
    store::body::ParsedBody,
};

/// Counts of records. Sums are over the outputs on first pages: only the first page has the amounts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Records of every kind.
    pub records: u64,
    /// First pages of live and half-created transactions.
    pub transactions: u64,
    /// First pages of conflicting transactions, decided or not, and stubs.
    pub conflicting: u64,
    /// First pages of pruned transactions.
    pub pruned: u64,
    /// Pages besides the first ones.
    pub further_pages: u64,
    /// Number of block records.
    pub blocks: u64,
    /// Number of results of commands.
    pub commands: u64,
    /// Unspent and frozen outputs on first pages of transactions that are not conflicting.
    pub unspent_outputs: u64,
    /// Sum of these outputs, satoshis.
    pub unspent_satoshis: u64,
    /// Unspent and frozen outputs on further pages.
    pub unspent_on_further_pages: u64,
}

impl Totals {
    /// Counts one record, whose body is inline.
    pub fn of(record: &Record) -> Self {
        let mut totals = Totals { records: 1, ..Totals::default() };
        match record {
            Record::Page(page) => totals.count_page(page),
            Record::Block(_) => totals.blocks = 1,
            Record::Command(_) => totals.commands = 1,
            Record::LockRecord(_) | Record::Meta(_) | Record::Sentinel(_) => {}
        }
        totals
    }

    fn count_page(&mut self, page: &Page) {
        let unspent = page.utxos.iter().flatten().zip(0..).filter(|(slot, _)| is_unspent(slot));
        if page.master.is_none() {
            self.further_pages = 1;
            self.unspent_on_further_pages = if page.conflicting { 0 } else { unspent.count() as u64 };
            return;
        }
        match page.state() {
            TxState::Pruned(_) => self.pruned = 1,
            TxState::Stub(_) | TxState::Conflicting(_) => self.conflicting = 1,
            TxState::Live | TxState::Creating => {
                self.transactions = 1;
                let body = page.body().and_then(|body| ParsedBody::parse(page.txid, body).ok());
                let outputs: Vec<u64> = body.iter().flat_map(ParsedBody::outputs).map(satoshis_of).collect();
                for (_, offset) in unspent {
                    self.unspent_outputs += 1;
                    let reassigned = page.reassignments.iter().rev().find(|entry| entry.offset == offset);
                    let own = outputs.get(offset as usize).copied().unwrap_or(0);
                    let satoshis = reassigned.map_or(own, |entry| entry.output.satoshis);
                    self.unspent_satoshis = self.unspent_satoshis.saturating_add(satoshis);
                }
            }
        }
    }
}

fn satoshis_of(output: Option<crate::tx::Output<'_>>) -> u64 {
    output.map_or(0, |output| output.satoshis)
}

fn is_unspent(slot: &Slot) -> bool {
    matches!(slot, Slot::Unspent(_) | Slot::Frozen(_))
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        let Totals {
            records,
            transactions,
            conflicting,
            pruned,
            further_pages,
            blocks,
            commands,
            unspent_outputs,
            unspent_satoshis,
            unspent_on_further_pages,
        } = other;
        for (total, added) in [
            (&mut self.records, records),
            (&mut self.transactions, transactions),
            (&mut self.conflicting, conflicting),
            (&mut self.pruned, pruned),
            (&mut self.further_pages, further_pages),
            (&mut self.blocks, blocks),
            (&mut self.commands, commands),
            (&mut self.unspent_outputs, unspent_outputs),
            (&mut self.unspent_satoshis, unspent_satoshis),
            (&mut self.unspent_on_further_pages, unspent_on_further_pages),
        ] {
            *total = total.saturating_add(added);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { records, transactions, unspent_outputs, unspent_satoshis, unspent_on_further_pages, .. } = self;
        write!(
            f,
            "{records} records, {transactions} transactions, {unspent_outputs} unspent outputs of {unspent_satoshis} \
             satoshis and {unspent_on_further_pages} on further pages"
        )
    }
}
