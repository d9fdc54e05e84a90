//! `utxo-store inspect blob`: reads and checks the blobs of a transaction.

use std::{
    io::{self, Write},
    sync::Arc,
};

use clap::Args;
use serde::Serialize;

use super::super::{CliResult, ConfigArgs, Failure, opening, output};
use crate::{
    blob::{BlobName, BlobStore, BlobUrl, Intent, Reuse},
    record::Blob,
    telemetry::Metrics,
    tx::Txid,
};

const AFTER_HELP: &str = "\
Reads each blob in pieces, and checks its transaction id. `verify` also checks the hash of the
content, which only the record has. Writes nothing.

Example: utxo-store inspect blob --config deploy/utxo-store.toml \\
    0e3e2357e806b6cdb1f70b54c3a3a17b6714ee1f0e68bebb44a74b1efd512098";

/// Arguments of the command `inspect blob`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct BlobArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Blob store instead of the configured one, such as http://host/prefix
    #[arg(long, value_name = "URL")]
    blobs: Option<BlobUrl>,
    /// Id of the transaction
    txid: Txid,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A blob as `inspect blob` prints it.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct BlobView {
    name: String,
    /// Number of known outputs of a partial transaction.
    outputs: Option<usize>,
    /// Height of the block of a partial transaction.
    height: Option<u32>,
}

impl BlobArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CliResult {
        let config = self.config.load_store()?;
        let metrics = Arc::new(Metrics::new());
        let none = || Failure::new("no blob store is configured: set store.blobs.url, or give --blobs");
        let store = match &self.blobs {
            Some(url) => opening::open_blobs_at(&config, url, Intent::Read, &metrics).await?,
            None => opening::open_blobs(&config, Intent::Read, &metrics).await?.ok_or_else(none)?,
        };
        let found = find(&store, self.txid).await?;
        match self.json {
            true => output::write_json(&found, out)?,
            false => write_blobs(&found, out)?,
        }
        let missing = || Failure::new(format!("the blob store has no blob of {}", self.txid));
        if found.is_empty() { Err(missing()) } else { Ok(()) }
    }
}

async fn find(store: &BlobStore, txid: Txid) -> Result<Vec<BlobView>, Failure> {
    let mut found = Vec::new();
    if store.load_tx_outputs(txid, Blob::First(None), &[], Reuse::Unlikely).await?.is_some() {
        found.push(BlobView { name: BlobName::tx(txid).to_string(), outputs: None, height: None });
    }
    if let Some(partial) = store.load_outputs(txid, Blob::First(None)).await? {
        let (outputs, height) = (Some(partial.outputs.len()), Some(partial.height));
        found.push(BlobView { name: BlobName::outputs(txid).to_string(), outputs, height });
    }
    Ok(found)
}

fn write_blobs(found: &[BlobView], out: &mut impl Write) -> io::Result<()> {
    for blob in found {
        let what = match (blob.outputs, blob.height) {
            (Some(outputs), Some(height)) => format!("{outputs} outputs of a partial transaction at height {height}"),
            _ => "the whole transaction, which matches its id".to_owned(),
        };
        writeln!(out, "{}: {what}", blob.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blob::conformance::transaction;

    #[tokio::test]
    async fn the_blobs_of_a_transaction_are_printed() {
        let store = BlobStore::memory();
        let (txid, bytes) = transaction(1, 5, 30, 1);
        assert_eq!(find(&store, txid).await.unwrap(), []);
        store.put_tx(txid, bytes).await.unwrap();
        let found = find(&store, txid).await.unwrap();
        let mut text = Vec::new();
        write_blobs(&found, &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            format!("{}: the whole transaction, which matches its id\n", BlobName::tx(txid))
        );
    }
}
