//! `utxo-store dump`: prints the content of the state digest as JSON lines.

use std::io::{self, BufWriter, Write};

use clap::Args;

use super::{CliResult, Failure, block_on, offline::StoreArgs, output};
use crate::store::{StateStore, digest::SurveyError, dump::dump};

const AFTER_HELP: &str = "\
One JSON object per transaction and line, with everything that the digest covers
(schemas/digest.md). If two stores have different digests, a diff of their dumps shows the
transactions. fjall and memory: the lines are ordered by the bytes of the txid in internal order
(not by its text). Pipe the lines of other stores through sort.

Example: utxo-store dump --config deploy/utxo-store.toml > state.jsonl";

/// Command-line arguments of `utxo-store dump`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct DumpArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// Reason why a dump ended early.
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
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let (store, _) = self.store.open().await?;
            print_dump(&store, &mut BufWriter::new(io::stdout().lock())).await
        })
    }
}

async fn print_dump(store: &StateStore, out: &mut impl Write) -> CliResult {
    let print = |transaction| {
        serde_json::to_writer(&mut *out, &transaction).map_err(io::Error::from).map_err(Stop::Writing)?;
        out.write_all(b"\n").map_err(Stop::Writing)
    };
    let dumped = dump(store, print).await;
    match dumped.and_then(|()| out.flush().map_err(Stop::Writing)) {
        Ok(()) => Ok(()),
        Err(Stop::Reading(error)) => Err(error.into()),
        // The reader has closed the pipe. A dump changes nothing, so the rest of the scan is not needed.
        Err(Stop::Writing(error)) if output::is_closed(&error) => Ok(()),
        Err(Stop::Writing(error)) => Err(Failure::new(format!("cannot write the dump: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{
        offline::tests::{open_sample_store, text},
        output::tests::Failing,
    };

    #[tokio::test]
    async fn one_line_per_transaction() {
        let (store, _) = open_sample_store().await;
        let mut out = Vec::new();
        print_dump(&store, &mut out).await.unwrap();
        let text = text(out);
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line["state"] == "live"));
    }

    #[tokio::test]
    async fn a_closed_pipe_is_no_failure_but_a_full_disk_is() {
        let (store, _) = open_sample_store().await;
        print_dump(&store, &mut Failing { kind: io::ErrorKind::BrokenPipe, after: 0 }).await.unwrap();
        let failure =
            print_dump(&store, &mut Failing { kind: io::ErrorKind::StorageFull, after: 0 }).await.unwrap_err();
        assert!(failure.to_string().contains("cannot write the dump"), "{failure}");
    }
}
