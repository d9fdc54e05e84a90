//! A directory as a blob store: its set-up, and the steps against power loss that `object_store` does not take.
//!
//! `LocalFileSystem` writes a blob to a staged file `name#1` (or `name#2` … if that exists), syncs the file, links it
//! to the blob's name (a hard link fails if the name exists) and syncs the folder. A torn write therefore has no blob
//! name. Three steps are added here:
//! - The 256 folders are created and synced before the directory is marked. No blob depends on the entry of a folder
//!   that another process created and has not synced yet.
//! - A writer that finds its blob stored already syncs the entry before it reports success: the first writer may have
//!   been killed between link and sync.
//! - A claim removes the staged files of killed writers, once they are so old that no writer can still use them.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{BlobName, OpenBlobError, claim::MARK};

/// Age after which a staged file counts as abandoned: far longer than the time from a writer's last byte to its link.
const ABANDONED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The directory of a blob store, marked or not yet.
#[derive(Debug, Clone)]
pub(super) struct BlobDirectory(PathBuf);

impl BlobDirectory {
    /// Wraps the existing directory `root`.
    pub fn at(root: &Path) -> Self {
        BlobDirectory(root.to_owned())
    }

    /// Creates the folders if the directory is empty or holds only the empty folders of a killed set-up; returns
    /// `false` if the directory holds anything else.
    pub async fn set_up(&self) -> Result<bool, OpenBlobError> {
        self.run_blocking(|root| {
            let is_empty = is_empty(root)?;
            if is_empty {
                for folder in blob_folders(root) {
                    create_folder(&folder)?;
                }
                sync(root)?;
                root.parent().map_or(Ok(()), sync)?;
            }
            Ok(is_empty)
        })
        .await
    }

    /// Returns whether a blob store can be made in the directory.
    pub async fn is_empty(&self) -> Result<bool, OpenBlobError> {
        self.run_blocking(is_empty).await
    }

    /// Syncs the mark, which another process may have written, and removes the abandoned files of killed writers.
    pub async fn sync_mark_and_clean(&self) -> Result<(), OpenBlobError> {
        self.run_blocking(|root| {
            sync(&root.join(MARK))?;
            sync(root)?;
            blob_folders(root).chain([root.to_owned()]).try_for_each(|folder| remove_abandoned(&folder))
        })
        .await
    }

    /// Syncs a blob and its folder, so that the blob survives a power loss whichever process wrote it.
    pub async fn sync_blob(&self, name: BlobName) -> io::Result<()> {
        let path = self.0.join(name.to_string());
        let synced = tokio::task::spawn_blocking(move || {
            sync(&path)?;
            path.parent().map_or(Ok(()), sync)
        });
        synced.await.map_err(io::Error::other)?
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, OpenBlobError> {
        let root = self.0.clone();
        let done = tokio::task::spawn_blocking(move || work(&root)).await.map_err(io::Error::other);
        done.flatten().map_err(|error| OpenBlobError::Directory(self.0.clone(), error))
    }
}

fn blob_folders(root: &Path) -> impl Iterator<Item = PathBuf> {
    (0..=u8::MAX).map(move |number| root.join(format!("{number:02x}")))
}

/// Returns whether the directory holds only empty blob folders and perhaps a staged mark.
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

/// Syncs a file below `root` and every folder from the file's up to `root`.
pub(super) async fn sync_file_and_folders(root: PathBuf, file: PathBuf) -> io::Result<()> {
    let synced = tokio::task::spawn_blocking(move || {
        // The ancestors of a relative path end with the empty path, which stands for `root`.
        file.ancestors().try_for_each(|path| sync(&root.join(path)))
    });
    synced.await.map_err(io::Error::other)?
}

fn remove_abandoned(folder: &Path) -> io::Result<()> {
    let Some(entries) = ignore_not_found(fs::read_dir(folder))? else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_staged) && is_abandoned(&entry)? {
            ignore_not_found(fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// Returns whether `name` has the form `name#1` of the file that `object_store` writes before it links the blob.
fn is_staged(name: &str) -> bool {
    let number = name.rsplit_once('#').map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_abandoned(entry: &fs::DirEntry) -> io::Result<bool> {
    let Some(metadata) = ignore_not_found(entry.metadata())? else { return Ok(false) };
    let written = metadata.modified()?;
    // A file with a time in the future comes from a wrong clock; its age is unknown, so it stays.
    Ok(SystemTime::now().duration_since(written).is_ok_and(|age| age >= ABANDONED_AGE))
}

/// Returns `None` if another process removed the file.
fn ignore_not_found<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}
