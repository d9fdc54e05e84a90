//! The transactions that a block lists, a chunk at a time. The txids are in the event, or in objects that are read as
//! streams, so that a block of any size takes little memory.

use crate::{
    blob::objects::{AnnouncedObject, ObjectError, Objects, TxidStream},
    engine::Row,
    event::{Block, Subtree, SubtreeTransactions},
    record::{Key, MinedIn, Phase, Sequenced},
    sequencer::{SequencerError, context::HandlerContext, waiting::ReportedWait},
    text::hex_reversed,
    tx::Txid,
};

/// A transaction that a block lists, with the index of its subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedTx {
    pub txid: Txid,
    pub subtree: u32,
}

impl ListedTx {
    /// Returns the entry of the transaction for a block that lists it.
    pub fn mined_in(&self, block: &Block<'_>) -> MinedIn {
        MinedIn { block_id: block.block_id, height: block.height, subtree: self.subtree }
    }

    /// Returns the row that applies an operation with that entry to the master.
    pub fn row(&self, cx: &HandlerContext<'_>, block: &Block<'_>, operation: impl Fn(MinedIn) -> Sequenced) -> Row {
        cx.row(Phase::Apply, Key::master(self.txid), operation(self.mined_in(block)))
    }
}

/// Reads the transactions of a block in their order, without the coinbase.
pub struct ListedTxReader<'b> {
    block: &'b Block<'b>,
    /// The index of the subtree that is read.
    subtree: usize,
    /// The number of txids of that subtree that have been returned.
    returned: u64,
    object: Option<TxidStream<'b>>,
    /// Txids read from the object and not returned.
    read: Vec<Txid>,
}

/// Txids in a chunk; few in unit tests.
pub const CHUNK: usize = if cfg!(test) { 4 } else { 65_536 };

/// Returns the number of transactions that a block lists, without the coinbase.
pub fn count_transactions(block: &Block<'_>) -> u64 {
    block.subtrees.iter().fold(0, |sum: u64, subtree| sum.saturating_add(subtree.count))
}

impl<'b> ListedTxReader<'b> {
    /// Starts at the first listed transaction.
    pub fn new(block: &'b Block<'b>) -> Self {
        ListedTxReader { block, subtree: 0, returned: 0, object: None, read: Vec::new() }
    }

    /// Reads the next chunk of the block's transactions; empty after the last one.
    pub async fn read_next(&mut self, cx: &HandlerContext<'_>) -> Result<Vec<ListedTx>, SequencerError> {
        while let Some(subtree) = self.block.subtrees.get(self.subtree) {
            let txids = match announced_object(subtree) {
                None => {
                    let all = subtree.transactions.inline().into_iter().flatten();
                    all.skip(usize::try_from(self.returned).unwrap_or(usize::MAX)).take(CHUNK).collect()
                }
                Some(announced) => self.read_next_from_object(cx, announced).await?,
            };
            if txids.is_empty() {
                (self.subtree, self.returned, self.object) = (self.subtree + 1, 0, None);
                continue;
            }
            self.returned += txids.len() as u64;
            let subtree = self.subtree as u32;
            return Ok(txids.into_iter().map(|txid| ListedTx { txid, subtree }).collect());
        }
        Ok(Vec::new())
    }

    async fn read_next_from_object(
        &mut self,
        cx: &HandlerContext<'_>,
        announced: AnnouncedObject<'b>,
    ) -> Result<Vec<Txid>, SequencerError> {
        let objects = objects(cx, self.block)?;
        let mut waiting = start_object_wait(cx, self.block);
        loop {
            match waiting.run_short(self.read(objects, announced)).await {
                Ok(txids) => return Ok(txids),
                Err(error) => wait_or_halt(&mut waiting, error).await?,
            }
        }
    }

    /// Reads the next txids of an object. After an error the object is read from its beginning, and the txids that were
    /// returned before are skipped.
    async fn read(&mut self, objects: &Objects, announced: AnnouncedObject<'b>) -> Result<Vec<Txid>, ObjectError> {
        let mut skip = 0;
        let mut object = match self.object.take() {
            Some(object) => object,
            None => {
                self.read.clear();
                skip = self.returned;
                objects.txids(announced).await?
            }
        };
        while self.read.len() < CHUNK {
            let next = object.next().await?;
            if next.is_empty() {
                break;
            }
            let skipped = skip.min(next.len() as u64);
            skip -= skipped;
            self.read.extend_from_slice(&next[skipped as usize..]);
        }
        self.object = Some(object);
        let rest = self.read.split_off(self.read.len().min(CHUNK));
        Ok(std::mem::replace(&mut self.read, rest))
    }

    /// Skips the next `count` transactions.
    pub fn skip(mut self, mut count: u64) -> Self {
        while let Some(subtree) = self.block.subtrees.get(self.subtree).filter(|subtree| subtree.count <= count) {
            count -= subtree.count;
            self.subtree += 1;
        }
        self.returned = count;
        self
    }
}

/// Checks all objects that a block refers to, before the first write of the block: each object exists, and has the
/// announced size and SHA-256. An absent object is waited for.
pub async fn check_objects(cx: &HandlerContext<'_>, block: &Block<'_>) -> Result<(), SequencerError> {
    for announced in block.subtrees.iter().filter_map(announced_object) {
        let objects = objects(cx, block)?;
        let mut waiting = start_object_wait(cx, block);
        // A wrong object is read once more: the transfer can have damaged its bytes.
        let mut read_again = true;
        loop {
            match waiting.run_short(read_all(objects, announced)).await {
                Ok(()) => break,
                Err(ObjectError::Wrong { .. }) if std::mem::take(&mut read_again) => {}
                Err(error) => wait_or_halt(&mut waiting, error).await?,
            }
        }
    }
    Ok(())
}

fn objects<'a>(cx: &HandlerContext<'a>, block: &Block<'_>) -> Result<&'a Objects, SequencerError> {
    let why = "refers to objects, and no object store is configured; set objects.url or sequencer.objects_url";
    let objects = cx.parts.store.objects.as_ref();
    objects.ok_or_else(|| SequencerError::Halt(format!("block {} {why}", hex_reversed(&block.hash))))
}

fn start_object_wait<'a>(cx: &HandlerContext<'a>, block: &Block<'_>) -> ReportedWait<'a> {
    cx.start_wait(format_args!("block {}", hex_reversed(&block.hash)))
}

/// Waits for an object store that does not answer, and for an absent object, by name. A wrong object halts the chain.
async fn wait_or_halt(waiting: &mut ReportedWait<'_>, error: ObjectError) -> Result<(), SequencerError> {
    let is_temporary = match &error {
        ObjectError::Missing(_) => true,
        ObjectError::Failed(_, error) => error.may_be_retried(),
        ObjectError::Wrong { .. } => false,
    };
    if !is_temporary {
        return Err(SequencerError::Halt(format!("{}: {error}", waiting.about())));
    }
    waiting.pause_for(&error.to_string()).await;
    Ok(())
}

/// Returns the object that holds the txids of a subtree; `None`: the txids are in the event.
pub fn announced_object<'b>(subtree: &'b Subtree<'_>) -> Option<AnnouncedObject<'b>> {
    match &subtree.transactions {
        SubtreeTransactions::Inline(_) => None,
        SubtreeTransactions::Object { key, sha256 } => {
            Some(AnnouncedObject { key, count: subtree.count, sha256: *sha256 })
        }
    }
}

async fn read_all(objects: &Objects, announced: AnnouncedObject<'_>) -> Result<(), ObjectError> {
    let mut txids = objects.txids(announced).await?;
    while !txids.next().await?.is_empty() {}
    Ok(())
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
