//! `utxo-store recover`: completes half-created transactions of several pages.

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::Args;

use super::{CliResult, Failure, block_on, offline::StoreArgs, output};
use crate::{
    clock::Clock,
    store::{
        StateStore,
        recovery::{Sweep, Swept},
    },
};

const AFTER_HELP: &str = "\
A half-created transaction of several pages has all its pages once its master exists; only the
creating flags remain to be cleared, the master's last. Normally the instance that created the
pages clears them, or the next instance that reads the event. Not touched: transactions with a
lock record that has not expired, transactions that have changed within --older-than, and
transactions that wait for a verdict. Pages without a master belong to an event that is not
completed; they are only reported.

The exit code is 1 if a transaction cannot be completed.

Example: utxo-store recover --dry-run --store fjall:///var/lib/utxo-store";

/// Command-line arguments of `utxo-store recover`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RecoverArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Change nothing: print what would be completed
    #[arg(long)]
    dry_run: bool,
    /// Skip transactions that have changed within this time, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    older_than: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl RecoverArgs {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let (store, _) = self.store.open().await?;
            self.show(&store, Clock::System.now_ms(), &mut output::stdout()).await
        })
    }

    async fn show(&self, store: &StateStore, now_ms: u64, out: &mut impl Write) -> CliResult {
        let older_than_ms = Duration::from_secs(self.older_than).as_millis() as u64;
        let swept = Sweep { now_ms, older_than_ms, dry_run: self.dry_run }.run(store).await?;
        match self.json {
            true => output::write_json(&swept, out)?,
            false => self.write(&swept, out)?,
        }
        match swept.damaged.len() {
            0 => Ok(()),
            1 => Err(Failure::new("1 transaction cannot be completed")),
            n => Err(Failure::new(format!("{n} transactions cannot be completed"))),
        }
    }

    fn write(&self, swept: &Swept, out: &mut impl Write) -> io::Result<()> {
        let completed = if self.dry_run { "would be completed" } else { "completed" };
        swept.completed.iter().try_for_each(|txid| writeln!(out, "{txid}: {completed}"))?;
        swept.running.iter().try_for_each(|txid| writeln!(out, "{txid}: skipped, its lock record has not expired"))?;
        for orphan in &swept.orphaned {
            let (txid, since) = (orphan.txid, orphan.since_ms);
            writeln!(out, "{txid}: pages {:?} have no master, since {since} ms: the event creates it", orphan.pages)?;
        }
        swept.damaged.iter().try_for_each(|damage| writeln!(out, "{}: {}", damage.txid, damage.problem))?;
        writeln!(
            out,
            "{} {completed}, {} with a lock record, {} contested, {} pruned, {} without a master, {} damaged; \
             {} older than an hour",
            swept.completed.len(),
            swept.running.len(),
            swept.contested,
            swept.pruned,
            swept.orphaned.len(),
            swept.damaged.len(),
            swept.older_than_an_hour
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{Page, TxState},
        store::testing,
        tx::Txid,
    };

    async fn recovered(store: &StateStore, dry_run: bool, json: bool) -> String {
        let args = RecoverArgs { store: StoreArgs::default(), dry_run, older_than: 120, json };
        let mut out = Vec::new();
        args.show(store, 500_000, &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn half_created_transactions_are_listed_and_then_completed() {
        let store = testing::store(2);
        let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
        for page in testing::pages(&bytes, &crate::record::build::NewTxState::default(), 2).into_iter().rev() {
            store.plant(Page { creating_at: Some(7), ..page }).await;
        }
        let txid = testing::txid(&bytes);
        let state = async || store.master(txid).await.unwrap().unwrap().state();
        let dry = recovered(&store, true, false).await;
        assert!(
            dry.contains(&format!("{txid}: would be completed\n1 would be completed, 0 with a lock record")),
            "{dry}"
        );
        assert_eq!(state().await, TxState::Creating);
        let json: serde_json::Value = serde_json::from_str(&recovered(&store, false, true).await).unwrap();
        assert_eq!(json["completed"][0], txid.to_string());
        assert_eq!(state().await, TxState::Live);
        assert!(recovered(&store, false, false).await.starts_with("0 completed"));
    }
}
