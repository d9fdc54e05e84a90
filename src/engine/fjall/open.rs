//! Opens the directory of a store; every refusal is one line.

use std::{
    fs::{File, TryLockError},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{tables::Tables, txid_filter::TxidFilter};
use crate::{engine::Index, text::join_lines};

/// The layout of keyspaces, keys and values that this program reads and writes.
const LAYOUT: &[u8] = b"utxo-store fjall 2";
/// The layout without the index of verdicts; the first opening adds the index.
const LAYOUT_WITHOUT_VERDICTS: &[u8] = b"utxo-store fjall 1";
const LAYOUT_KEY: &[u8] = b"layout";
/// The file that fjall writes at the end of its first opening; it tells a store from any other directory.
const MARKER: &str = "version";
/// The files that a killed first opening can leave before the marker exists.
const BEFORE_MARKER: [&str; 3] = ["lock", "keyspaces", "0.jnl"];

/// Bytes of the cache for each byte of [`TxidFilter`].
const CACHE_BYTES_PER_FILTER_BYTE: u64 = 8;

/// Options of a store, chosen anew at each opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FjallOptions {
    /// Bytes of memory for data read from disk. The filter of stored transactions takes an eighth as much in addition.
    pub cache_bytes: u64,
}

impl Default for FjallOptions {
    /// Returns a cache of 256 MiB.
    fn default() -> Self {
        FjallOptions { cache_bytes: 256 << 20 }
    }
}

/// An error that keeps a store from being opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OpenFjallError {
    #[error("cannot open the store `{0}`: it is in use by another process")]
    InUse(PathBuf),
    #[error("cannot open `{0}`: the directory is neither empty nor a store of utxo-store; choose another directory")]
    NotAStore(PathBuf),
    #[error("cannot open `{0}`: there is no store in this directory; check the path")]
    Missing(PathBuf),
    /// A version of this program with another layout of records has written the store.
    #[error(
        "cannot open the store `{directory}`: its layout is `{found}`, this program reads `{}`; rebuild the store",
        String::from_utf8_lossy(LAYOUT)
    )]
    Layout { directory: PathBuf, found: String },
    /// The files of the store differ from what fjall wrote.
    #[error("cannot open the store `{directory}`: it is damaged: {message}; check the disk, or rebuild the store")]
    Damaged { directory: PathBuf, message: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn open(directory: &Path, options: FjallOptions) -> Result<Tables, OpenFjallError> {
    prepare(directory)?;
    // Fjall asserts some of the data that it reads; such a panic must be an error here.
    let opened = catch_unwind(AssertUnwindSafe(|| open_tables(directory, options)));
    let tables =
        opened.unwrap_or_else(|_| Err(::fjall::Error::Unrecoverable)).map_err(|error| explain(directory, &error))?;
    check_layout(directory, &tables).map(|()| tables)
}

/// Checks that `directory` has a store. Changes nothing.
pub(super) fn must_exist(directory: &Path) -> Result<(), OpenFjallError> {
    match has_marker(directory)? {
        true => Ok(()),
        false => Err(OpenFjallError::Missing(directory.to_owned())),
    }
}

/// Creates the directory where it is missing, and removes the remains of a killed first opening.
fn prepare(directory: &Path) -> Result<(), OpenFjallError> {
    std::fs::create_dir_all(directory).map_err(|error| with_path(directory, &error))?;
    if has_marker(directory)? { Ok(()) } else { clear_unfinished(directory) }
}

/// Returns whether fjall has finished an opening here. `false`: the directory is missing, empty, or has only the
/// remains of a killed first opening. Any other content is an error.
fn has_marker(directory: &Path) -> Result<bool, OpenFjallError> {
    let with_path = |error: io::Error| with_path(directory, &error);
    if directory.join(MARKER).try_exists().map_err(with_path)? {
        return Ok(true);
    }
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(with_path)?,
    };
    for entry in entries {
        let name = entry.map_err(with_path)?.file_name();
        if !BEFORE_MARKER.iter().any(|known| name == *known) {
            return Err(OpenFjallError::NotAStore(directory.to_owned()));
        }
    }
    Ok(false)
}

fn with_path(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", directory.display()))
}

/// Removes the journal of a killed first opening, which fjall itself would refuse to open. Only the process that holds
/// the lock file, without a marker beside it, may remove the journal.
fn clear_unfinished(directory: &Path) -> Result<(), OpenFjallError> {
    let lock_file = directory.join("lock");
    let Ok(lock_file) = File::options().read(true).write(true).open(lock_file) else { return Ok(()) };
    match lock_file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(OpenFjallError::InUse(directory.to_owned())),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let journal = directory.join("0.jnl");
    if !directory.join(MARKER).try_exists()? && journal.try_exists()? {
        std::fs::remove_file(journal)?;
    }
    Ok(())
}

fn open_tables(directory: &Path, options: FjallOptions) -> ::fjall::Result<Tables> {
    let database = Database::builder(directory).cache_size(options.cache_bytes).open()?;
    let keyspace =
        |name: &str| -> ::fjall::Result<Keyspace> { database.keyspace(name, KeyspaceCreateOptions::default) };
    let records = keyspace("records")?;
    Ok(Tables {
        txid_filter: TxidFilter::new(options.cache_bytes / CACHE_BYTES_PER_FILTER_BYTE, records.is_empty()?),
        records,
        blocks: keyspace("blocks")?,
        meta: keyspace("meta")?,
        indexes: [
            keyspace("index_delete_at_height")?,
            keyspace("index_unmined_since")?,
            keyspace("index_creating_at")?,
            keyspace("index_verdict")?,
        ],
        groups_written: AtomicU64::new(0),
        database,
    })
}

/// Checks the layout. A store without one comes from a killed first opening: nothing can have been written to it.
fn check_layout(directory: &Path, tables: &Tables) -> Result<(), OpenFjallError> {
    let explain = |error| explain(directory, &error);
    match tables.meta.get(LAYOUT_KEY).map_err(explain)? {
        Some(found) if *found == *LAYOUT => Ok(()),
        Some(found) if *found == *LAYOUT_WITHOUT_VERDICTS => {
            tracing::info!(directory = %directory.display(), "fjall: adding the index of verdicts to the store");
            let indexed = tables.fill_index(Index::Verdict);
            indexed.map_err(|error| OpenFjallError::Damaged {
                directory: directory.to_owned(),
                message: error.to_string(),
            })?;
            tables.meta.insert(LAYOUT_KEY, LAYOUT).map_err(explain)?;
            tables.database.persist(PersistMode::SyncAll).map_err(explain)
        }
        None if tables.meta.is_empty().map_err(explain)? && tables.records.is_empty().map_err(explain)? => {
            tables.meta.insert(LAYOUT_KEY, LAYOUT).map_err(explain)?;
            tables.database.persist(PersistMode::SyncAll).map_err(explain)
        }
        found => Err(OpenFjallError::Layout {
            directory: directory.to_owned(),
            found: found.map_or("none".into(), |found| String::from_utf8_lossy(&found).into_owned()),
        }),
    }
}

fn explain(directory: &Path, error: &::fjall::Error) -> OpenFjallError {
    match error {
        ::fjall::Error::Locked => OpenFjallError::InUse(directory.to_owned()),
        error => OpenFjallError::Damaged { directory: directory.to_owned(), message: describe_error(error) },
    }
}

/// Returns a message of fjall as one line.
pub(super) fn describe_error(error: &::fjall::Error) -> String {
    match error {
        ::fjall::Error::Io(error) => error.to_string(),
        ::fjall::Error::Unrecoverable => "fjall cannot recover the files".into(),
        ::fjall::Error::Poisoned => {
            "an earlier write failed (see the log; a full disk?): mend the cause, then start again".into()
        }
        error => join_lines(&error.to_string()),
    }
}
