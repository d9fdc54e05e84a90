//! `utxo-store stats`: counts the content of a store and prints its state digest.

use std::io::{self, Write};

use clap::Args;
use serde::Serialize;

use super::{CliResult, block_on, offline::StoreArgs, output, spinner::Spinner};
use crate::{
    record::MetaRecord,
    store::{
        StateStore,
        chain::ChainInfo,
        digest::{StateDigest, Survey, survey},
        stats::{SeededStats, StoreStats},
    },
    text::hex_reversed,
};

const AFTER_HELP: &str = "\
Counts are of live transactions; partial transactions (seeded parents) are counted separately. The
command reads the whole store: figures and digest are of one state only while nothing writes.

Example: utxo-store stats --config deploy/utxo-store.toml --json";

/// Command-line arguments of `utxo-store stats`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct StatsArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// JSON object of `stats --json`.
#[derive(Debug, Serialize)]
struct StatsSummary<'a> {
    store_id: String,
    network: &'a str,
    utxo_batch_size: u32,
    height: u32,
    tip: Option<String>,
    median_time: Option<u32>,
    prune_horizon: u32,
    digest: StateDigest,
    #[serde(flatten)]
    stats: &'a StoreStats,
}

impl StatsArgs {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let (store, meta) = self.store.open().await?;
            self.show(&store, &meta, &mut output::stdout()).await
        })
    }

    async fn show(&self, store: &StateStore, meta: &MetaRecord, out: &mut impl Write) -> CliResult {
        let progress = Spinner::of_activity("counting");
        let survey = survey(store, |seen| progress.update(seen)).await?;
        drop(progress);
        let chain = ChainInfo::of(meta);
        let shown = StatsSummary {
            store_id: hex::encode(meta.store_id),
            network: &meta.network,
            utxo_batch_size: meta.utxo_batch_size,
            height: chain.height,
            tip: chain.hash.map(|hash| hex_reversed(&hash)),
            median_time: chain.median_time,
            prune_horizon: chain.prune_horizon,
            digest: survey.digest,
            stats: &survey.stats,
        };
        match self.json {
            true => output::write_json(&shown, out)?,
            false => write_table(&shown, &survey, out)?,
        }
        Ok(())
    }
}

fn write_table(shown: &StatsSummary<'_>, survey: &Survey, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "store {} of network {}", shown.store_id, shown.network)?;
    writeln!(out, "height {}, tip {}", shown.height, shown.tip.as_deref().unwrap_or("none"))?;
    for (name, value) in count_rows(&survey.stats) {
        writeln!(out, "{name:<26}{value:>24}")?;
    }
    writeln!(out, "digest {}", survey.digest)
}

/// Lists all counts with their names in the table.
fn count_rows(stats: &StoreStats) -> Vec<(&'static str, String)> {
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
    let partial_counts = [
        ("seeded parents", transactions),
        ("  outputs", outputs),
        ("  slots", slots),
        ("  spent", spent_outside),
        ("  unspent", unspent),
    ];
    let grouped = |(name, count): (&'static str, &u64)| (name, group_digits(u128::from(*count)));
    let mut rows: Vec<_> = counts.into_iter().map(grouped).collect();
    rows.push(("unspent satoshis", group_digits(*unspent_satoshis)));
    rows.extend(partial_counts.into_iter().map(grouped));
    rows.push(("  unspent satoshis", group_digits(*seeded_satoshis)));
    rows
}

/// Formats a number with commas between groups of three digits.
pub(super) fn group_digits(number: u128) -> String {
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
    use crate::cli::offline::tests::{open_sample_store, text};

    #[tokio::test]
    async fn json_is_one_object_with_counts_at_the_top_level() {
        let (store, meta) = open_sample_store().await;
        let args = StatsArgs { store: StoreArgs::default(), json: true };
        let mut out = Vec::new();
        args.show(&store, &meta, &mut out).await.unwrap();
        let shown: serde_json::Value = serde_json::from_slice(&out).unwrap();
        for (key, value) in [("transactions", 2), ("inputs", 1), ("spent_inside", 0), ("spent_outside", 1)] {
            assert_eq!(shown[key], value, "{key}");
        }
        assert_eq!(shown["seeded"]["slots"], 2);
        assert_eq!(shown["digest"], survey(&store, |_| ()).await.unwrap().digest.to_string());
        assert_eq!((&shown["network"], &shown["utxo_batch_size"]), (&"regtest".into(), &7.into()));
    }

    #[tokio::test]
    async fn the_table_has_every_count() {
        let (store, meta) = open_sample_store().await;
        let args = StatsArgs { store: StoreArgs::default(), json: false };
        let mut out = Vec::new();
        args.show(&store, &meta, &mut out).await.unwrap();
        let text = text(out);
        assert!(text.contains("unspent satoshis") && text.contains("5,000,600"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("digest ") && line.len() == 71), "{text}");
    }

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (21_560_000_000_000, "21,560,000,000,000")]
        {
            assert_eq!(group_digits(number), expected);
        }
    }
}
