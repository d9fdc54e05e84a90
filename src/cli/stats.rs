//! `utxo-store stats`: what a store holds, counted, and its digest.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{
    CommandResult, block_on,
    offline::{Progress, StoreArgs},
    output,
};
use crate::{
    record::MetaRecord,
    store::{
        Store,
        digest::{StateDigest, Survey},
        stats::{SeededStats, StoreStats},
    },
};

const AFTER_HELP: &str = "\
Counts are of live transactions; partial (seeded) parents are counted apart. Reads the whole store: figures and digest
are of one state only where nothing writes meanwhile.

Example: utxo-store stats --config deploy/utxo-store.toml --json";

/// Arguments of `stats`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct StatsArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `stats --json` prints.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    store_id: String,
    network: &'a str,
    utxo_batch_size: u32,
    prune_horizon: u32,
    digest: StateDigest,
    #[serde(flatten)]
    stats: &'a StoreStats,
}

impl StatsArgs {
    pub(super) fn run(self) -> CommandResult {
        block_on(async {
            let (store, meta) = self.store.open().await?;
            self.show(&store, &meta, &mut output::stdout()).await
        })
    }

    async fn show(&self, store: &Store, meta: &MetaRecord, out: &mut impl Write) -> CommandResult {
        let progress = Progress::start("counting");
        let survey = store.survey(|seen| progress.seen(seen)).await?;
        drop(progress);
        let shown = Shown {
            store_id: hex::encode(meta.store_id),
            network: &meta.network,
            utxo_batch_size: meta.utxo_batch_size,
            prune_horizon: meta.prune_horizon,
            digest: survey.digest,
            stats: &survey.stats,
        };
        if self.json {
            serde_json::to_writer(&mut *out, &shown)?;
            writeln!(out)?;
        } else {
            write_table(&shown, &survey, out)?;
        }
        Ok(())
    }
}

fn write_table(shown: &Shown<'_>, survey: &Survey, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "store {} of network {}", shown.store_id, shown.network)?;
    for (name, value) in counts(&survey.stats) {
        writeln!(out, "{name:<26}{value:>24}")?;
    }
    writeln!(out, "digest {}", survey.digest)
}

/// Every count with the words for it.
fn counts(stats: &StoreStats) -> Vec<(&'static str, String)> {
    let StoreStats {
        blocks,
        side_blocks,
        transactions,
        coinbases,
        inputs,
        outputs,
        slots,
        spent_inside,
        spent_outside,
        unspent,
        unspent_satoshis,
        frozen,
        locked,
        unmined,
        paged,
        conflicting,
        creating,
        contested,
        stubs,
        tombstones,
        seeded,
    } = stats;
    let counts = [
        ("blocks", blocks),
        ("blocks on side chains", side_blocks),
        ("transactions", transactions),
        ("  coinbases", coinbases),
        ("  unmined", unmined),
        ("  locked", locked),
        ("  on several pages", paged),
        ("inputs", inputs),
        ("outputs", outputs),
        ("slots", slots),
        ("  spent", spent_inside),
        ("  unspent", unspent),
        ("  frozen", frozen),
        ("half created", creating),
        ("ever contested", contested),
        ("  conflicting", conflicting),
        ("  stubs", stubs),
        ("pruned", tombstones),
    ];
    let SeededStats { transactions, outputs, slots, unspent, unspent_satoshis: seeded_satoshis } = seeded;
    let of_seeded = [
        ("seeded parents", transactions),
        ("  outputs", outputs),
        ("  slots", slots),
        ("  spent", spent_outside),
        ("  unspent", unspent),
    ];
    let grouped = |(name, count): (&'static str, &u64)| (name, group(u128::from(*count)));
    let mut rows: Vec<_> = counts.into_iter().map(grouped).collect();
    rows.push(("unspent satoshis", group(*unspent_satoshis)));
    rows.extend(of_seeded.into_iter().map(grouped));
    rows.push(("  unspent satoshis", group(*seeded_satoshis)));
    rows
}

/// A number with its thousands apart.
pub(super) fn group(number: u128) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::offline::tests::{opened, text};

    #[tokio::test]
    async fn the_json_is_one_object_with_the_counts_at_the_top() {
        let (store, meta) = opened().await;
        let args = StatsArgs { store: StoreArgs::default(), json: true };
        let mut out = Vec::new();
        args.show(&store, &meta, &mut out).await.unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&out).unwrap();
        for (key, value) in [("transactions", 2), ("inputs", 1), ("spent_inside", 0), ("spent_outside", 1)] {
            assert_eq!(shown[key], value, "{key}");
        }
        assert_eq!(shown["seeded"]["slots"], 2);
        assert_eq!(shown["digest"], store.survey(|_| ()).await.unwrap().digest.to_string());
        assert_eq!((&shown["network"], &shown["utxo_batch_size"]), (&"regtest".into(), &7.into()));
    }

    #[tokio::test]
    async fn the_table_has_every_count() {
        let (store, meta) = opened().await;
        let args = StatsArgs { store: StoreArgs::default(), json: false };
        let mut out = Vec::new();
        args.show(&store, &meta, &mut out).await.unwrap();
        let text = text(out);
        assert!(text.contains("unspent satoshis") && text.contains("5,000,600"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("digest ") && line.len() == 71), "{text}");
    }

    #[test]
    fn thousands_are_apart() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (21_560_000_000_000, "21,560,000,000,000")]
        {
            assert_eq!(group(number), expected);
        }
    }
}
