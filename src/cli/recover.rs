//! `utxo-store recover`: completes transactions over several pages that are half created.

use std::{
    io::{self, Write},
    time::Duration,
};

use clap::Args;

use super::{CommandResult, Failure, block_on, offline::StoreArgs, output};
use crate::{
    clock::Clock,
    store::{
        Store,
        recovery::{Sweep, Swept},
    },
};

const AFTER_HELP: &str = "\
A transaction over several pages whose master is there has all its pages: what is missing is that they are cleared, the
master's last. Normally whoever created it does that, or whoever reads its event again. What somebody may still be at (its
lock record has not run out, or it is younger than --older-than) is left alone, and so is what waits for a verdict. Pages without
a master belong to an event that is not completed: they are reported, and nothing else.

With --json one object. The exit code is 1 when something cannot be completed.

Example: utxo-store recover --dry-run --store fjall:///var/lib/utxo-store";

/// Arguments of `recover`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RecoverArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Change nothing: say what would be completed
    #[arg(long)]
    dry_run: bool,
    /// Leave alone what has moved within so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    older_than: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl RecoverArgs {
    pub(super) fn run(self) -> CommandResult {
        block_on(async {
            let (store, _) = self.store.open().await?;
            self.show(&store, Clock::System.now_ms(), &mut output::stdout()).await
        })
    }

    async fn show(&self, store: &Store, now_ms: u64, out: &mut impl Write) -> CommandResult {
        let older_than_ms = Duration::from_secs(self.older_than).as_millis() as u64;
        let swept = store.sweep(Sweep { now_ms, older_than_ms, dry_run: self.dry_run }).await?;
        if self.json {
            serde_json::to_writer(&mut *out, &swept)?;
            writeln!(out)?;
        } else {
            self.write(&swept, out)?;
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
        swept
            .running
            .iter()
            .try_for_each(|txid| writeln!(out, "{txid}: somebody is at it (its lock record is held)"))?;
        for orphan in &swept.orphaned {
            let (txid, since) = (orphan.txid, orphan.since_ms);
            writeln!(out, "{txid}: pages {:?} have no master, since {since} ms: their event makes it", orphan.pages)?;
        }
        swept.damaged.iter().try_for_each(|it| writeln!(out, "{}: {}", it.txid, it.problem))?;
        writeln!(
            out,
            "{} {completed}, {} held, {} contested, {} without a master, {} damaged; {} older than an hour",
            swept.completed.len(),
            swept.running.len(),
            swept.contested,
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

    async fn shown(store: &Store, dry_run: bool, json: bool) -> String {
        let args = RecoverArgs { store: StoreArgs::default(), dry_run, older_than: 120, json };
        let mut out = Vec::new();
        args.show(store, 500_000, &mut out).await.unwrap();
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn what_is_half_created_is_shown_and_then_completed() {
        let store = testing::store(2);
        let bytes = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[100; 5]);
        for page in testing::pages(&bytes, &crate::record::build::Start::default(), 2).into_iter().rev() {
            store.plant(Page { creating_at: Some(7), ..page }).await;
        }
        let txid = testing::txid(&bytes);
        let state = async || store.master(txid).await.unwrap().unwrap().state();
        let dry = shown(&store, true, false).await;
        assert!(dry.contains(&format!("{txid}: would be completed\n1 would be completed, 0 held")), "{dry}");
        assert_eq!(state().await, TxState::Creating);
        let json: serde_json::Value = serde_json::from_str(&shown(&store, false, true).await).unwrap();
        assert_eq!(json["completed"][0], txid.to_string());
        assert_eq!(state().await, TxState::Live);
        assert!(shown(&store, false, false).await.starts_with("0 completed"));
    }
}
