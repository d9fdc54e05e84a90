//! What a block lists, a chunk at a time: its transaction ids are in the event, or in objects that are read as streams. So a
//! block of any size takes little memory.

use crate::{
    blob::objects::{Announced, ObjectError, Objects, Txids},
    event::{Block, Subtree, SubtreeTransactions},
    sequencer::{
        Stop,
        handler::{At, Handler},
        waiting::Waiting,
    },
    text::hex_reversed,
    tx::Txid,
};

/// A transaction that a block lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) txid: Txid,
    pub(super) subtree: u32,
}

/// The transactions of a block in its order, without the coinbase.
pub(super) struct Listing<'b> {
    block: &'b Block<'b>,
    /// The subtree that is read, and how many of its ids have been handed out.
    subtree: usize,
    handed_out: u64,
    object: Option<Txids<'b>>,
    /// Read of the object and not handed out.
    read: Vec<Txid>,
}

/// Ids of a chunk; few where it is tested.
pub(super) const CHUNK: usize = if cfg!(test) { 4 } else { 65_536 };

/// How many transactions a block lists.
pub(super) fn count(block: &Block<'_>) -> u64 {
    block.subtrees.iter().fold(0, |sum: u64, subtree| sum.saturating_add(subtree.count))
}

impl<'b> Listing<'b> {
    /// From its beginning.
    pub fn of(block: &'b Block<'b>) -> Self {
        Listing { block, subtree: 0, handed_out: 0, object: None, read: Vec::new() }
    }

    /// The next ids of an object. After an error it is read from its beginning, and what was handed out is passed over.
    async fn read(&mut self, objects: &Objects, announced: Announced<'b>) -> Result<Vec<Txid>, ObjectError> {
        let mut skip = 0;
        let mut object = match self.object.take() {
            Some(object) => object,
            None => {
                self.read.clear();
                skip = self.handed_out;
                objects.txids(announced).await?
            }
        };
        while self.read.len() < CHUNK {
            let next = object.next().await?;
            if next.is_empty() {
                break;
            }
            let passed_over = skip.min(next.len() as u64);
            skip -= passed_over;
            self.read.extend_from_slice(&next[passed_over as usize..]);
        }
        self.object = Some(object);
        let rest = self.read.split_off(self.read.len().min(CHUNK));
        Ok(std::mem::replace(&mut self.read, rest))
    }

    /// Leaves out the next so many.
    pub fn pass_over(mut self, mut count: u64) -> Self {
        while let Some(subtree) = self.block.subtrees.get(self.subtree).filter(|subtree| subtree.count <= count) {
            count -= subtree.count;
            self.subtree += 1;
        }
        self.handed_out = count;
        self
    }
}

impl Handler {
    /// Looks at all objects that a block refers to, before anything of it is done: they are there, and what it says they are.
    pub(super) async fn check_objects(&self, at: At, block: &Block<'_>) -> Result<(), Stop> {
        for announced in block.subtrees.iter().filter_map(announced) {
            let objects = self.objects(block)?;
            let mut waiting = self.waiting_for_object(at, &hex_reversed(&block.hash));
            // What is wrong may have been damaged on its way.
            let mut read_again = true;
            loop {
                match waiting.attend(read_all(objects, announced)).await {
                    Ok(()) => break,
                    Err(ObjectError::Wrong { .. }) if std::mem::take(&mut read_again) => {}
                    Err(error) => wait_or_halt(&mut waiting, error).await?,
                }
            }
        }
        Ok(())
    }

    /// The next transactions of a block; none: that was all.
    pub(super) async fn next_listed(&self, at: At, listing: &mut Listing<'_>) -> Result<Vec<Listed>, Stop> {
        while let Some(subtree) = listing.block.subtrees.get(listing.subtree) {
            let txids = match announced(subtree) {
                None => {
                    let all = subtree.transactions.inline().into_iter().flatten();
                    all.skip(usize::try_from(listing.handed_out).unwrap_or(usize::MAX)).take(CHUNK).collect()
                }
                Some(announced) => self.next_of_object(at, listing, announced).await?,
            };
            if txids.is_empty() {
                (listing.subtree, listing.handed_out, listing.object) = (listing.subtree + 1, 0, None);
                continue;
            }
            listing.handed_out += txids.len() as u64;
            let subtree = listing.subtree as u32;
            return Ok(txids.into_iter().map(|txid| Listed { txid, subtree }).collect());
        }
        Ok(Vec::new())
    }

    async fn next_of_object<'b>(
        &self,
        at: At,
        listing: &mut Listing<'b>,
        announced: Announced<'b>,
    ) -> Result<Vec<Txid>, Stop> {
        let objects = self.objects(listing.block)?;
        let mut waiting = self.waiting_for_object(at, &hex_reversed(&listing.block.hash));
        loop {
            match waiting.attend(listing.read(objects, announced)).await {
                Ok(txids) => return Ok(txids),
                Err(error) => wait_or_halt(&mut waiting, error).await?,
            }
        }
    }

    fn objects(&self, block: &Block<'_>) -> Result<&Objects, Stop> {
        let why = "refers to objects for its transactions, and none can be read: set sequencer.objects_url";
        let objects = self.parts.store.objects.as_ref();
        objects.ok_or_else(|| Stop::Halt(format!("block {} {why}", hex_reversed(&block.hash))))
    }

    fn waiting_for_object(&self, at: At, block: &str) -> Waiting<'_> {
        Waiting::new(&self.parts, format!("chain offset {}: block {block}", at.offset))
    }
}

/// A place that does not answer is waited for, and an object that is not there, by name. One that is wrong halts the chain.
async fn wait_or_halt(waiting: &mut Waiting<'_>, error: ObjectError) -> Result<(), Stop> {
    let passes = match &error {
        ObjectError::Missing(_) => true,
        ObjectError::Failed(_, error) => error.may_be_repeated(),
        ObjectError::Wrong { .. } => false,
    };
    if !passes {
        return Err(Stop::Halt(format!("{}: {error}", waiting.about())));
    }
    waiting.look_again(&error.to_string()).await;
    Ok(())
}

fn announced<'b>(subtree: &'b Subtree<'_>) -> Option<Announced<'b>> {
    match &subtree.transactions {
        SubtreeTransactions::Inline(_) => None,
        SubtreeTransactions::Object { key, sha256 } => Some(Announced { key, count: subtree.count, sha256: *sha256 }),
    }
}

async fn read_all(objects: &Objects, announced: Announced<'_>) -> Result<(), ObjectError> {
    let mut txids = objects.txids(announced).await?;
    while !txids.next().await?.is_empty() {}
    Ok(())
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
