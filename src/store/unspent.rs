//! The UTXO set of the longest chain: outputs of mined transactions that no mined transaction spends.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    engine::{EngineError, Set},
    record::{Page, Record, Slot, StoredOutput, TxState},
    tx::Txid,
};

use super::{
    StateStore,
    body::{BodyError, ParsedBody},
    canonical::SideBlocks,
    pages::ExtraPages,
    scan::SetScan,
};

/// Reasons why the UTXO set cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum UnspentError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("page {page} of {txid} is missing; run `utxo-store verify`")]
    MissingPage { txid: Txid, page: u32 },
    #[error("output {vout} of {txid} has a slot and is not in the body; run `utxo-store verify`")]
    MissingOutput { txid: Txid, vout: u32 },
}

/// A mined transaction with its outputs that no mined transaction spends, ascending by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnspentTx {
    /// Id of the transaction.
    pub txid: Txid,
    /// Height of the block that lists the transaction.
    pub height: u32,
    /// The transaction is a coinbase.
    pub coinbase: bool,
    /// Outputs with their indexes; of a reassigned output those of the new owner.
    pub outputs: Vec<(u32, StoredOutput)>,
}

/// The blocks of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChainBlocks {
    side: SideBlocks,
    /// Hash of each block of the longest chain with the hash of the block before, by height.
    longest: BTreeMap<u32, ([u8; 32], [u8; 32])>,
}

impl ChainBlocks {
    /// Reads the records of all blocks.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals.
    pub async fn read(store: &StateStore) -> Result<Self, EngineError> {
        let mut blocks = ChainBlocks::default();
        let mut scan = SetScan::new(store, Set::Blocks);
        while let Some(records) = scan.next().await? {
            for (_, record) in records {
                let Record::Block(block) = record else { continue };
                if block.longest_chain {
                    blocks.longest.insert(block.height, (block.hash, block.previous));
                } else {
                    blocks.side.0.insert(block.block_id);
                }
            }
        }
        Ok(blocks)
    }

    /// Returns the height and the hash of the highest block of the longest chain, and the hash of the block before.
    pub fn highest(&self) -> Option<(u32, [u8; 32], [u8; 32])> {
        self.longest.last_key_value().map(|(height, (hash, previous))| (*height, *hash, *previous))
    }

    /// Returns the height at which the longest chain lists a transaction; `None`: no block of it does.
    fn mined_height(&self, page: &Page) -> Option<u32> {
        let mined = &page.master.as_deref()?.mined;
        self.side.on_longest_chain(mined).into_iter().next().map(|mined| mined.height)
    }
}

/// Calls `each` for every transaction of the UTXO set, in the order of the scan, until `each` returns an error.
///
/// The set is that of one block only if the store does not change meanwhile. Memory holds a batch of records, and one
/// transaction whole.
///
/// # Errors
/// [`UnspentError`], or the error of `each`.
pub async fn read_unspent<E: From<UnspentError>>(
    store: &StateStore,
    blocks: &ChainBlocks,
    mut each: impl FnMut(UnspentTx) -> Result<(), E>,
) -> Result<(), E> {
    let mut scan = SetScan::new(store, Set::Transactions);
    while let Some(masters) = scan.next_masters().await.map_err(UnspentError::from)? {
        let mined = masters.filter(|master| matches!(master.state(), TxState::Live | TxState::Creating));
        let mined: Vec<_> = mined.filter_map(|master| Some((blocks.mined_height(&master)?, master))).collect();
        let spenders = mined.iter().flat_map(|(_, master)| spenders_of(master)).collect();
        let spending = find_mined(store, blocks, spenders).await.map_err(UnspentError::from)?;
        for (height, master) in mined {
            let mut outputs = Vec::new();
            collect_unspent(&master, 0, &spending, &mut outputs);
            let mut pages = ExtraPages::of(store, &master);
            while let Some((number, page)) = pages.next().await.map_err(UnspentError::from)? {
                let page = page.ok_or(UnspentError::MissingPage { txid: master.txid, page: number })?;
                let spending = find_mined(store, blocks, spenders_of(&page).collect()).await;
                let first = number.saturating_mul(store.settings.utxo_batch_size);
                collect_unspent(&page, first, &spending.map_err(UnspentError::from)?, &mut outputs);
            }
            if !outputs.is_empty() {
                each(with_outputs(store, &master, height, outputs).await?)?;
            }
        }
    }
    Ok(())
}

/// Unspent slots: the index of the output, and the output of a new owner.
type UnspentSlots = Vec<(u32, Option<StoredOutput>)>;

/// Adds the outputs of a page that no mined transaction spends. `first`: index of the first output of the page.
fn collect_unspent(page: &Page, first: u32, spending: &BTreeSet<Txid>, outputs: &mut UnspentSlots) {
    for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
        let is_unspent = match slot {
            Slot::Nil => false,
            Slot::Unspent(_) | Slot::Frozen(_) => true,
            // A spender was pruned only once it was mined.
            Slot::Spent(_, spender) => !page.pruned_spenders.contains(&offset) && !spending.contains(&spender.txid),
        };
        if is_unspent {
            let reassigned = page.reassignments.iter().rev().find(|entry| entry.offset == offset);
            outputs.push((first + offset, reassigned.map(|entry| entry.output.clone())));
        }
    }
}

fn spenders_of(page: &Page) -> impl Iterator<Item = Txid> {
    page.utxos.iter().flatten().filter_map(|slot| slot.spender().map(|spender| spender.txid))
}

/// Returns those of the transactions that are mined on the longest chain; a pruned one was.
async fn find_mined(
    store: &StateStore,
    blocks: &ChainBlocks,
    txids: BTreeSet<Txid>,
) -> Result<BTreeSet<Txid>, EngineError> {
    let txids = Vec::from_iter(txids);
    let masters = store.masters(&txids).await?;
    let is_mined = |master: &Page| match master.state() {
        TxState::Pruned(_) => !master.conflicting,
        TxState::Live | TxState::Creating => blocks.mined_height(master).is_some(),
        TxState::Stub(_) | TxState::Conflicting(_) => false,
    };
    let mined = txids.into_iter().zip(masters).filter(|(_, master)| master.as_deref().is_some_and(is_mined));
    Ok(mined.map(|(txid, _)| txid).collect())
}

/// Adds amounts and scripts from the body.
async fn with_outputs(
    store: &StateStore,
    master: &Page,
    height: u32,
    slots: UnspentSlots,
) -> Result<UnspentTx, UnspentError> {
    let txid = master.txid;
    let body = store.body(master).await?;
    let parsed = ParsedBody::parse(txid, &body)?;
    let (mut stored, mut next) = (parsed.outputs(), 0);
    let mut outputs = Vec::with_capacity(slots.len());
    for (vout, reassigned) in slots {
        // The slots ascend, so that the body is walked once.
        let output = stored.nth((vout - next) as usize).flatten();
        next = vout + 1;
        let output = match (reassigned, output) {
            (Some(reassigned), _) => reassigned,
            (None, Some(output)) => {
                StoredOutput { satoshis: output.satoshis, script: bytes::Bytes::copy_from_slice(output.script) }
            }
            (None, None) => return Err(UnspentError::MissingOutput { txid, vout }),
        };
        outputs.push((vout, output));
    }
    Ok(UnspentTx { txid, height, coinbase: master.is_coinbase, outputs })
}
