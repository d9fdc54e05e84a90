//! `utxo-store inspect lock-records`: prints the lock records of transactions with several pages.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use crate::{
    cli::{CliResult, offline::StoreArgs, output},
    clock::Clock,
    record::{Key, LockRecord, Record},
    store::{StateStore, queries::StoreQueries},
    tx::Txid,
};

const AFTER_HELP: &str = "\
A lock record keeps two instances from creating the same pages at once. No guarantee rests on a
lock record, and each expires after 32 to 300 s. Without TXID the command reads the whole store.

Example: utxo-store inspect lock-records --store fjall:///var/lib/utxo-store";

/// Arguments of the command `inspect lock-records`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct LockRecordsArgs {
    /// Only the lock record of this transaction
    #[arg(value_name = "TXID")]
    txid: Option<Txid>,
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A lock record as `inspect lock-records` prints it: the bins of the reference document, and its expiry.
#[derive(Debug, Serialize)]
struct LockRecordView {
    txid: Txid,
    created_at: u64,
    lock_type: &'static str,
    process_id: u32,
    hostname: String,
    expected_recs: u32,
    expires_at: u64,
    /// True if the lock record has expired, so that another instance may take it over.
    has_run_out: bool,
}

impl LockRecordsArgs {
    pub(super) async fn run(&self, out: &mut impl Write) -> CliResult {
        self.show(&self.store.open().await?.0, Clock::System.now_ms(), out).await
    }

    async fn show(&self, store: &StateStore, now_ms: u64, out: &mut impl Write) -> CliResult {
        let mut all = Vec::new();
        let mut add = |txid, lock_record| all.push(view(txid, lock_record, now_ms));
        match self.txid {
            None => StoreQueries::of(store).lock_records(add).await?,
            Some(txid) => {
                for record in store.read(vec![Key::LockRecord(txid)]).await? {
                    if let Some(Record::LockRecord(lock_record)) = record {
                        add(txid, lock_record);
                    }
                }
            }
        }
        for shown in &all {
            if self.json {
                output::write_json(shown, out)?;
            } else {
                let LockRecordView { txid, process_id, hostname, expected_recs, created_at, expires_at, .. } = shown;
                let age = now_ms.saturating_sub(*created_at) / 1_000;
                let left = match shown.has_run_out {
                    true => "expired".to_owned(),
                    false => format!("expires in {} s", (expires_at - now_ms).div_ceil(1_000)),
                };
                writeln!(
                    out,
                    "{txid}: {expected_recs} records, by process {process_id} on {hostname}, {age} s ago; {left}"
                )?;
            }
        }
        if !self.json {
            writeln!(out, "{} lock records", all.len())?;
        }
        Ok(())
    }
}

fn view(txid: Txid, lock_record: LockRecord, now_ms: u64) -> LockRecordView {
    let LockRecord { created_at, expires_at, process_id, hostname, expected_recs, owner: _ } = lock_record;
    let has_run_out = expires_at <= now_ms;
    LockRecordView {
        txid,
        created_at,
        lock_type: "tx_creation",
        process_id,
        hostname,
        expected_recs,
        expires_at,
        has_run_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::Operation, store::testing};

    #[tokio::test]
    async fn lock_records_are_printed_with_owner_and_expiry() {
        let store = testing::store(2);
        let hostname = "node-1".to_owned();
        let lock_record =
            LockRecord { created_at: 1_000, expires_at: 37_000, process_id: 77, hostname, expected_recs: 3, owner: 5 };
        let txid = Txid([4; 32]);
        store.must_apply(Key::LockRecord(txid), Operation::AcquireLockRecord { lock_record, now_ms: 1_000 }).await;
        let show_of = async |txid, json, now_ms| {
            let mut out = Vec::new();
            let args = LockRecordsArgs { txid, store: StoreArgs::default(), json };
            args.show(&store, now_ms, &mut out).await.unwrap();
            String::from_utf8(out).unwrap()
        };
        let show = async |json, now_ms| show_of(None, json, now_ms).await;
        let line = show(false, 11_000).await;
        assert_eq!(
            line,
            format!("{txid}: 3 records, by process 77 on node-1, 10 s ago; expires in 26 s\n1 lock records\n")
        );
        assert_eq!(show_of(Some(txid), false, 11_000).await, line);
        assert_eq!(show_of(Some(Txid([5; 32])), false, 11_000).await, "0 lock records\n");
        assert!(show(false, 37_000).await.contains("; expired"));
        let json: serde_json::Value = serde_json::from_str(&show(true, 37_000).await).unwrap();
        assert_eq!((&json["lock_type"], &json["has_run_out"]), (&"tx_creation".into(), &true.into()));
    }
}
