//! `utxo-store verify --against`: compares two stores.

use std::io::{self, Write};

use serde::Serialize;

use super::super::{CliResult, Failure, output, spinner::Spinner};
use crate::store::{
    StateStore,
    compare::{Comparison, Difference, DifferenceKind, FieldDifference, Total, compare},
};

/// Digests of both stores: the last line of `verify --against`.
#[derive(Debug, Serialize)]
struct CompareSummary {
    same: bool,
    store: Total,
    against: Total,
    named: usize,
    at_least: u64,
}

/// Compares two stores and prints the differences. Fails if the stores differ.
pub(super) async fn show(
    store: &StateStore,
    against: &StateStore,
    limit: usize,
    json: bool,
    out: &mut impl Write,
) -> CliResult {
    let progress = Spinner::of_activity("comparing");
    let found = compare(store, against, limit, |seen| progress.update(seen)).await?;
    drop(progress);
    if json {
        write_json(&found, out)?
    } else {
        write_text(&found, out)?
    }
    match found.is_same() {
        true => Ok(()),
        false => Err(Failure::new("the stores differ")),
    }
}

fn write_json(found: &Comparison, out: &mut impl Write) -> io::Result<()> {
    found.first.iter().try_for_each(|difference| output::write_json(difference, out))?;
    let Comparison { store, against, first, at_least } = found;
    let (same, named) = (found.is_same(), first.len());
    output::write_json(&CompareSummary { same, store: *store, against: *against, named, at_least: *at_least }, out)
}

fn write_text(found: &Comparison, out: &mut impl Write) -> io::Result<()> {
    for Difference { txid, kind } in &found.first {
        match kind {
            DifferenceKind::OnlyIn(side) => writeln!(out, "{txid} is only in --{side}")?,
            DifferenceKind::Fields(fields) if fields.is_empty() => {
                writeln!(out, "{txid} was changed during the comparison")?
            }
            DifferenceKind::Fields(fields) => {
                writeln!(out, "{txid} differs:")?;
                for FieldDifference { field, store, against } in fields {
                    writeln!(out, "  {field}: {store} in --store, {against} in --against")?;
                }
            }
        }
    }
    for (name, Total { transactions, digest }) in [("--store", found.store), ("--against", found.against)] {
        writeln!(out, "{name:<9} {transactions} transactions, digest {digest}")?;
    }
    match found.at_least {
        _ if found.is_same() => writeln!(out, "The stores are equal."),
        n => writeln!(out, "At least {n} transactions differ; {} are named.", found.first.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::offline::tests::text,
        store::testing::{seeded, store},
    };

    async fn shown(store: &StateStore, against: &StateStore, limit: usize, json: bool) -> (CliResult, String) {
        let mut out = Vec::new();
        let result = show(store, against, limit, json, &mut out).await;
        (result, text(out))
    }

    #[tokio::test]
    async fn differences_are_printed_and_fail_the_command() {
        let (one, other) = (store(100), store(100));
        let (result, printed) = shown(&one, &other, 10, false).await;
        assert!(result.is_ok() && printed.ends_with("The stores are equal.\n"), "{printed}");
        one.plant(seeded(1, 1)).await;
        for store in [&one, &other] {
            store.plant(crate::record::Page { locked: std::ptr::eq(store, &one), ..seeded(2, 1) }).await;
        }
        let (result, printed) = shown(&one, &other, 10, false).await;
        let failure = result.unwrap_err();
        assert_eq!((failure.to_string().as_str(), failure.exit_code()), ("error: the stores differ", 1));
        let (first, second) = ("01".repeat(32), "02".repeat(32));
        let expected = format!(
            "{first} is only in --store\n{second} differs:\n  locked: true in --store, false in --against\n\
             --store   2 transactions, digest "
        );
        assert!(printed.starts_with(&expected), "{printed}");
        assert!(printed.ends_with("\nAt least 2 transactions differ; 2 are named.\n"), "{printed}");
        let (result, printed) = shown(&other, &one, 1, true).await;
        let lines: Vec<serde_json::Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((result.unwrap_err().exit_code(), lines.len()), (1, 2));
        assert_eq!(lines[0], serde_json::json!({ "txid": first, "only_in": "against" }));
        assert_eq!(
            (&lines[1]["same"], &lines[1]["named"], &lines[1]["at_least"]),
            (&false.into(), &1.into(), &2.into())
        );
        assert_eq!(lines[1]["store"]["transactions"], 1);
    }
}
