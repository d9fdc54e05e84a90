//! `utxo-store snapshot verify`, `list` and `delete`: commands that need only the place of the snapshots.

use std::{io::Write, time::Instant};

use clap::Args;
use serde::Serialize;

use super::{
    super::{CliResult, ConfigArgs, Failure, output},
    SnapshotProgress, TimedReport, open_shelf, write_totals,
};
use crate::{
    blob::{BlobUrl, Intent},
    snapshot::{FoundSnapshot, Shelf, verify},
};

/// Options that name the place of snapshots.
#[derive(Debug, Args)]
struct PlaceArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Place of the snapshots, a URL as store.blobs.url accepts; reached by the logins and limits of store.blobs.
    /// snapshot.url by default
    #[arg(long, value_name = "URL")]
    from: Option<BlobUrl>,
}

impl PlaceArgs {
    async fn open(&self, intent: Intent) -> Result<Shelf, Failure> {
        let config = self.config.load_snapshots()?;
        open_shelf(&config, ("--from", self.from.as_ref()), intent).await
    }
}

/// Command-line arguments of `utxo-store snapshot verify`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store snapshot verify --from file:///backup/snapshots")]
pub struct SnapshotVerifyArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Name of the snapshot; the newest complete one by default
    #[arg(long)]
    name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl SnapshotVerifyArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let (shelf, began) = (self.place.open(Intent::Read).await?, Instant::now());
        let name = match self.name {
            Some(name) => name,
            None => shelf.newest().await?,
        };
        let progress = SnapshotProgress::start("reading the manifest");
        let report = verify(&shelf, &name, &|done| progress.update(done)).await?;
        drop(progress);
        if self.json {
            return Ok(output::write_json(&TimedReport::since(began, report), out)?);
        }
        write_totals(&report.totals, out)?;
        Ok(writeln!(out, "Snapshot {name}: {} chunks, {} bytes, as the manifest says", report.chunks, report.bytes)?)
    }
}

/// Command-line arguments of `utxo-store snapshot list`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store snapshot list --from file:///backup/snapshots")]
pub struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// A snapshot in the list; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    found: FoundSnapshot,
    /// Records of a complete snapshot.
    records: Option<u64>,
    /// Bytes of a complete snapshot.
    bytes: Option<u64>,
    /// Engine of the store.
    engine: Option<String>,
    /// Reason for which the snapshot cannot be used.
    problem: Option<String>,
}

impl ListArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let shelf = self.place.open(Intent::Read).await?;
        for found in shelf.list().await? {
            let read = if found.is_complete { Some(shelf.read_manifest(&found.name).await) } else { None };
            let (manifest, problem) = match read {
                None => (None, None),
                Some(Ok(manifest)) => (Some(manifest), None),
                Some(Err(error)) => (None, Some(error.to_string())),
            };
            let listed = Listed {
                records: manifest.as_ref().map(|manifest| manifest.totals.records),
                bytes: manifest.as_ref().map(|manifest| manifest.bytes()),
                engine: manifest.map(|manifest| manifest.plan.engine),
                found,
                problem,
            };
            match self.json {
                true => output::write_json(&listed, out)?,
                false => write_listed(&listed, out)?,
            }
        }
        Ok(())
    }
}

fn write_listed(listed: &Listed, out: &mut impl Write) -> std::io::Result<()> {
    let name = &listed.found.name;
    match (listed.records, listed.bytes, &listed.problem) {
        (Some(records), Some(bytes), _) => writeln!(out, "{name}  {records} records  {bytes} bytes"),
        (_, _, Some(problem)) => writeln!(out, "{name}  {problem}"),
        _ => writeln!(out, "{name}  unfinished"),
    }
}

/// Command-line arguments of `utxo-store snapshot delete`.
#[derive(Debug, Args)]
#[command(after_help = "\
Unfinished snapshots that are older than the newest complete one are deleted, too.

Example: utxo-store snapshot delete --from file:///backup/snapshots --keep 3")]
pub struct DeleteArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Number of complete snapshots to keep, the newest ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Names of deleted snapshots; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct Deleted {
    deleted: Vec<String>,
}

impl DeleteArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let shelf = self.place.open(Intent::Write).await?;
        let deleted = shelf.delete_old(self.keep as usize).await?;
        if self.json {
            return Ok(output::write_json(&Deleted { deleted }, out)?);
        }
        for name in &deleted {
            writeln!(out, "deleted {name}")?;
        }
        Ok(writeln!(out, "{} snapshots deleted", deleted.len())?)
    }
}
