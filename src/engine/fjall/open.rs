//! Opening a store's directory, and saying in one line why not.

use std::{
    fs::{File, TryLockError},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{known::Known, tables::Tables};

/// The layout of keyspaces, keys and values that this program reads and writes.
const LAYOUT: &[u8] = b"utxo-store fjall 1";
const LAYOUT_KEY: &[u8] = b"layout";
/// What fjall itself writes first; its presence tells a store from any other directory.
const MARKER: &str = "version";
/// What there can be before the marker is: an opening that was killed.
const BEFORE_MARKER: [&str; 3] = ["lock", "keyspaces", "0.jnl"];

/// One byte of [`Known`] for so many of the cache.
const KNOWN_SHARE: u64 = 8;

/// What can be chosen for a store, all of it anew at each opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FjallOptions {
    /// Bytes of memory for what was read from disk; an eighth as much again goes to knowing what is not there.
    pub cache_bytes: u64,
}

impl Default for FjallOptions {
    /// A cache of 256 MiB.
    fn default() -> Self {
        FjallOptions { cache_bytes: 256 << 20 }
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFjallError {
    /// Somebody else has it open.
    #[error("`{0}` is in use by another process")]
    InUse(PathBuf),
    /// There is something, but no store.
    #[error("`{0}` is neither empty nor a store of utxo-store")]
    NotAStore(PathBuf),
    /// There is nothing, and it is not to be created.
    #[error("there is no store in `{0}`")]
    Missing(PathBuf),
    /// Written by a version of this program that lays records out differently.
    #[error("`{directory}` has layout `{found}`, this program needs `{}`", String::from_utf8_lossy(LAYOUT))]
    Layout {
        /// Which store.
        directory: PathBuf,
        /// What its marker says.
        found: String,
    },
    /// Its files are not what was written.
    #[error("the store in `{directory}` is damaged: {message}")]
    Damaged {
        /// Which store.
        directory: PathBuf,
        /// What fjall says.
        message: String,
    },
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn open(directory: &Path, options: FjallOptions) -> Result<Tables, OpenFjallError> {
    prepare(directory)?;
    // Fjall asserts some of what it reads; damage must be an error here, whatever it is there.
    let opened = catch_unwind(AssertUnwindSafe(|| tables(directory, options)));
    let tables =
        opened.unwrap_or_else(|_| Err(::fjall::Error::Unrecoverable)).map_err(|error| explain(directory, &error))?;
    check_layout(directory, &tables).map(|()| tables)
}

/// Refuses a directory without a store, and leaves it as it is.
pub(super) fn must_exist(directory: &Path) -> Result<(), OpenFjallError> {
    match has_marker(directory)? {
        true => Ok(()),
        false => Err(OpenFjallError::Missing(directory.to_owned())),
    }
}

/// Makes a directory for a new store where there is nothing, and clears what a killed first opening left behind.
fn prepare(directory: &Path) -> Result<(), OpenFjallError> {
    std::fs::create_dir_all(directory).map_err(|error| named(directory, &error))?;
    if has_marker(directory)? { Ok(()) } else { clear_unfinished(directory) }
}

/// Whether fjall has finished an opening here. `false`: there is nothing, or what a killed first opening left behind;
/// anything else is refused.
fn has_marker(directory: &Path) -> Result<bool, OpenFjallError> {
    let named = |error: io::Error| named(directory, &error);
    if directory.join(MARKER).try_exists().map_err(named)? {
        return Ok(true);
    }
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(named)?,
    };
    for entry in entries {
        let name = entry.map_err(named)?.file_name();
        if !BEFORE_MARKER.iter().any(|known| name == *known) {
            return Err(OpenFjallError::NotAStore(directory.to_owned()));
        }
    }
    Ok(false)
}

fn named(directory: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", directory.display()))
}

/// Fjall does not go on where its first opening was killed: it refuses its own journal. Whoever holds the lock file
/// without a marker beside it may remove that journal.
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

fn tables(directory: &Path, options: FjallOptions) -> ::fjall::Result<Tables> {
    let database = Database::builder(directory).cache_size(options.cache_bytes).open()?;
    let keyspace =
        |name: &str| -> ::fjall::Result<Keyspace> { database.keyspace(name, KeyspaceCreateOptions::default) };
    let records = keyspace("records")?;
    Ok(Tables {
        known: Known::new(options.cache_bytes / KNOWN_SHARE, records.is_empty()?),
        records,
        blocks: keyspace("blocks")?,
        meta: keyspace("meta")?,
        indexes: [
            keyspace("index_delete_at_height")?,
            keyspace("index_unmined_since")?,
            keyspace("index_creating_at")?,
        ],
        groups: AtomicU64::new(0),
        database,
    })
}

/// A store without the marker is one whose first opening was killed: nothing can have been written to it.
fn check_layout(directory: &Path, tables: &Tables) -> Result<(), OpenFjallError> {
    let explain = |error| explain(directory, &error);
    match tables.meta.get(LAYOUT_KEY).map_err(explain)? {
        Some(found) if *found == *LAYOUT => Ok(()),
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
        error => OpenFjallError::Damaged { directory: directory.to_owned(), message: one_line(error) },
    }
}

/// What fjall says, on one line.
pub(super) fn one_line(error: &::fjall::Error) -> String {
    match error {
        ::fjall::Error::Io(error) => error.to_string(),
        ::fjall::Error::Unrecoverable => "it cannot be recovered".into(),
        ::fjall::Error::Poisoned => {
            "an earlier write failed, so the store takes no more until it is opened anew".into()
        }
        error => error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}
