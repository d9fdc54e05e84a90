//! `utxo-store dump`: what the digest covers, in words.

use std::io::{self, BufWriter, Write};

use clap::Args;

use super::{CommandResult, Failure, block_on, offline::StoreArgs, output};
use crate::store::{Store, digest::SurveyError};

const AFTER_HELP: &str = "\
One JSON object a transaction and a line each, with everything that the digest covers (schemas/digest.md): where two
stores have different digests, the difference of their dumps says where. The lines are ordered by txid (by its bytes in
internal order, not by its text) where the store scans in that order, as fjall and memory do; pipe those of other stores
through sort.

Example: utxo-store dump --config deploy/utxo-store.toml > state.jsonl";

/// Arguments of `dump`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DumpArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// Why a dump ended early.
enum Stop {
    Reading(SurveyError),
    Writing(io::Error),
}

impl From<SurveyError> for Stop {
    fn from(error: SurveyError) -> Self {
        Stop::Reading(error)
    }
}

impl DumpArgs {
    pub(super) fn run(self) -> CommandResult {
        block_on(async {
            let (store, _) = self.store.open().await?;
            show(&store, &mut BufWriter::new(io::stdout().lock())).await
        })
    }
}

async fn show(store: &Store, out: &mut impl Write) -> CommandResult {
    let dumped = store
        .dump(|transaction| {
            serde_json::to_writer(&mut *out, &transaction).map_err(io::Error::from).map_err(Stop::Writing)?;
            out.write_all(b"\n").map_err(Stop::Writing)
        })
        .await;
    match dumped.and_then(|()| out.flush().map_err(Stop::Writing)) {
        Ok(()) => Ok(()),
        Err(Stop::Reading(error)) => Err(error.into()),
        // A dump changes nothing, so the rest of the scan is saved.
        Err(Stop::Writing(error)) if output::is_closed(&error) => Ok(()),
        Err(Stop::Writing(error)) => Err(Failure::new(format!("the dump cannot be written: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{
        offline::tests::{opened, text},
        output::tests::Failing,
    };

    #[tokio::test]
    async fn a_line_a_transaction() {
        let (store, _) = opened().await;
        let mut out = Vec::new();
        show(&store, &mut out).await.unwrap();
        let text = text(out);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line["state"] == "live"));
    }

    #[tokio::test]
    async fn a_reader_that_leaves_is_no_failure_but_a_full_disk_is() {
        let (store, _) = opened().await;
        show(&store, &mut Failing { kind: io::ErrorKind::BrokenPipe, after: 0 }).await.unwrap();
        let failure = show(&store, &mut Failing { kind: io::ErrorKind::StorageFull, after: 0 }).await.unwrap_err();
        assert!(failure.to_string().contains("cannot be written"), "{failure}");
    }
}
