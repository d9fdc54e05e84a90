//! A directory as a blob store: how it is set up, and what `object_store` does not do for power loss.
//!
//! `LocalFileSystem` writes a blob to `name#1` beside it (where that is taken: `name#2` …), syncs that file, gives it its name by a
//! hard link (which fails where there is one) and syncs the folder: a torn write has no name. Three things are left to do here:
//! - the 256 folders are made and synced before the directory is marked, so that no blob hangs on the entry of a folder that
//!   somebody else has made and not synced yet;
//! - who finds a blob there already syncs its entry before saying so: whoever wrote it may have been killed between link
//!   and sync;
//! - whoever opens it removes what killed writers have left behind, once that is so old that no writer is still at it.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{BlobName, OpenBlobError, claim::MARK};

/// What has been written to so long ago is nobody's: far longer than a writer may be between its last byte and the name.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A directory, with blobs or before.
#[derive(Debug, Clone)]
pub(super) struct Directory(PathBuf);

impl Directory {
    /// The directory at `root`, which is there.
    pub fn at(root: &Path) -> Self {
        Directory(root.to_owned())
    }

    /// Makes the folders, where there is nothing in it but folders of one who was killed while making them; `false`: there is.
    pub async fn set_up(&self) -> Result<bool, OpenBlobError> {
        self.blocking(|root| {
            let is_empty = is_empty(root)?;
            if is_empty {
                for folder in folders(root) {
                    create_folder(&folder)?;
                }
                sync(root)?;
                root.parent().map_or(Ok(()), sync)?;
            }
            Ok(is_empty)
        })
        .await
    }

    /// Whether a blob store can be made of it.
    pub async fn is_empty(&self) -> Result<bool, OpenBlobError> {
        self.blocking(is_empty).await
    }

    /// It is marked, whoever did that: sees to it that it is after a power loss, too, and removes what writers that were killed have
    /// left behind.
    pub async fn tidy(&self) -> Result<(), OpenBlobError> {
        self.blocking(|root| {
            sync(&root.join(MARK))?;
            sync(root)?;
            folders(root).chain([root.to_owned()]).try_for_each(|folder| remove_abandoned(&folder))
        })
        .await
    }

    /// The blob is there, whoever wrote it: sees to it that it is there after a power loss, too.
    pub async fn settle(&self, name: BlobName) -> io::Result<()> {
        let path = self.0.join(name.to_string());
        let settled = tokio::task::spawn_blocking(move || {
            sync(&path)?;
            path.parent().map_or(Ok(()), sync)
        });
        settled.await.map_err(io::Error::other)?
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, OpenBlobError> {
        let root = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&root)).await.map_err(io::Error::other);
        done.flatten().map_err(|error| OpenBlobError::Directory(self.0.clone(), error))
    }
}

fn folders(root: &Path) -> impl Iterator<Item = PathBuf> {
    (0..=u8::MAX).map(move |number| root.join(format!("{number:02x}")))
}

/// Whether there is nothing in it but empty folders for blobs, and perhaps a mark that was begun.
fn is_empty(root: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_folder = name.len() == 2 && u8::from_str_radix(name, 16).is_ok() && entry.file_type()?.is_dir();
        let is_ours = name.starts_with(MARK) || (is_folder && fs::read_dir(entry.path())?.next().is_none());
        if !is_ours {
            return Ok(false);
        }
    }
    Ok(true)
}

fn create_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        created => created,
    }
}

fn sync(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn remove_abandoned(folder: &Path) -> io::Result<()> {
    let Some(entries) = if_there(fs::read_dir(folder))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_staged) && is_abandoned(&entry)? {
            if_there(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// `name#1`: what `object_store` writes to before it gives a blob its name.
fn is_staged(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_abandoned(entry: &fs::DirEntry) -> io::Result<bool> {
    let Some(metadata) = if_there(entry.metadata())? else { return Ok(false) };
    let written = metadata.modified()?;
    // One from the future was written by a clock that is wrong, and is kept.
    Ok(SystemTime::now().duration_since(written).is_ok_and(|age| age >= ABANDONED))
}

/// `None`: somebody else has removed it.
fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}
