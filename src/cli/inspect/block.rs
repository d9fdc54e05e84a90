//! `utxo-store inspect block`: prints block records of the store.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use super::{
    super::{CliResult, Failure, offline::StoreArgs, output},
    line,
};
use crate::{
    record::BlockRecord,
    store::{
        StateStore,
        queries::{BlockName, StoreQueries},
    },
    text::hex_reversed,
};

const AFTER_HELP: &str = "\
A block is named by its local id, by its hash as explorers show it, or by its height. A height
names blocks of side chains, too.

Example: utxo-store inspect block --store fjall:///var/lib/utxo-store --height 170";

/// Arguments of the command `inspect block`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BlockArgs {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Local id or hash of the block
    #[arg(required_unless_present = "height", conflicts_with = "height")]
    block: Option<BlockName>,
    /// All blocks of this height
    #[arg(long, value_name = "HEIGHT")]
    height: Option<u32>,
    /// Print one JSON object per block
    #[arg(long)]
    json: bool,
}

/// A block as `inspect block` prints it.
#[derive(Debug, Serialize)]
struct BlockView {
    block_id: u32,
    hash: String,
    previous: String,
    height: u32,
    /// Header time, seconds since the epoch.
    time: u32,
    longest_chain: bool,
    /// Number of listed transactions that are set mined, the coinbase included.
    done: u64,
    /// Chain offset of the event that wrote the record.
    chain_offset: Option<u64>,
}

impl BlockArgs {
    pub(super) async fn show(&self, store: &StateStore, out: &mut impl Write) -> CliResult {
        let name = match (self.block, self.height) {
            (Some(name), _) => name,
            (None, Some(height)) => BlockName::Height(height),
            (None, None) => return Err(Failure::new("name the block: a local id, a hash, or --height")),
        };
        let found = StoreQueries::of(store).find_blocks(name).await?;
        if found.is_empty() {
            return Err(Failure::new(format!("the store has no block {name}")));
        }
        for block in found.iter().map(BlockView::from) {
            match self.json {
                true => output::write_json(&block, out)?,
                false => write(&block, out)?,
            }
        }
        Ok(())
    }
}

impl From<&BlockRecord> for BlockView {
    fn from(record: &BlockRecord) -> Self {
        BlockView {
            block_id: record.block_id,
            hash: hex_reversed(&record.hash),
            previous: hex_reversed(&record.previous),
            height: record.height,
            time: record.time,
            longest_chain: record.longest_chain,
            done: record.progress,
            chain_offset: record.chain_pos.map(|stamp| stamp.chain_offset()),
        }
    }
}

fn write(block: &BlockView, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "block {}", block.hash)?;
    line(out, "local id", block.block_id)?;
    line(out, "height", block.height)?;
    line(out, "previous", &block.previous)?;
    line(out, "time", format!("{} s since the epoch", block.time))?;
    line(out, "chain", if block.longest_chain { "the longest one" } else { "a side chain, or disconnected" })?;
    if block.longest_chain {
        line(out, "done", format!("{} transactions", block.done))?;
    }
    match block.chain_offset {
        Some(offset) => line(out, "by", format!("chain offset {offset}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::{open_sample_store, text},
        record::{Key, Sequenced},
        store::testing,
    };

    async fn shown(store: &StateStore, block: Option<&str>, height: Option<u32>) -> Result<String, String> {
        let mut out = Vec::new();
        let block = block.map(|name| name.parse().unwrap());
        let args = BlockArgs { store: StoreArgs::default(), block, height, json: false };
        args.show(store, &mut out).await.map_err(|failure| failure.to_string())?;
        Ok(text(out))
    }

    #[tokio::test]
    async fn a_block_is_found_by_id_by_hash_and_by_height() {
        let (store, _) = open_sample_store().await;
        for (id, longest_chain) in [(4, true), (5, false)] {
            let record = testing::block(id, longest_chain);
            store.sequenced(Key::Block(id), Sequenced::PutBlock(record)).await;
        }
        let record = testing::block(4, true);
        let by_id = shown(&store, Some("4"), None).await.unwrap();
        assert!(by_id.contains("the longest one") && by_id.contains(&format!("height            {}", record.height)));
        let hash = hex_reversed(&record.hash);
        assert!(shown(&store, Some(&hash), None).await.unwrap().contains("local id          4"));
        let by_height = shown(&store, None, Some(record.height)).await.unwrap();
        assert!(by_height.contains("local id          4"), "{by_height}");
        let missing = shown(&store, Some("77"), None).await.unwrap_err();
        assert!(missing.contains("no block 77"), "{missing}");
        assert!("7x".parse::<BlockName>().is_err() && "+7".parse::<BlockName>().is_err());
    }
}
