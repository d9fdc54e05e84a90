//! A directory as a blob store: how it is set up, and what `object_store` does not do for power loss.
//!
//! `LocalFileSystem` writes a blob to `name#1` beside it, syncs that file, gives it its name by a hard link (which fails where there
//! is one) and syncs the folder: a torn write has no name. Three things are left to do here:
//! - the 256 folders are made and synced when the store is opened, so that no blob hangs on the entry of a folder that
//!   somebody else has made and not synced yet;
//! - who finds a blob there already syncs its entry before saying so: whoever wrote it may have been killed between link
//!   and sync;
//! - whoever stores a blob, or finds it, removes what killed writers of it have left behind.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::BlobName;

/// The object that says: this is a blob store, and it is there.
pub(super) const MARK: &str = "utxo-store.blobs";

/// What the mark says. Another layout would be another text.
pub(super) const LAYOUT: &str = "utxo-store blobs, layout 1\n";

/// A directory that was set up.
#[derive(Debug, Clone)]
pub(super) struct Directory(PathBuf);

/// Why a directory cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// There is something else in it.
    #[error("{} is neither empty nor a blob store (there is no `{MARK}` in it)", .0.display())]
    NotABlobStore(PathBuf),
    /// The system says no.
    #[error("{}: {}", .0.display(), .1)]
    Io(PathBuf, io::Error),
}

impl Directory {
    /// Sets `root` up, where that was not done before. The mark is not made here.
    pub fn set_up(root: &Path) -> Result<Self, DirectoryError> {
        let failed = |error| DirectoryError::Io(root.to_owned(), error);
        fs::create_dir_all(root).map_err(failed)?;
        if !is_marked(root).map_err(failed)? {
            let is_ours = |name: &str| name.len() == 2 && u8::from_str_radix(name, 16).is_ok();
            for entry in fs::read_dir(root).map_err(failed)? {
                let name = entry.map_err(failed)?.file_name();
                // Folders of one that was killed while it set up.
                if !name.to_str().is_some_and(|name| is_ours(name) || name.starts_with(MARK)) {
                    return Err(DirectoryError::NotABlobStore(root.to_owned()));
                }
            }
            for number in 0..=u8::MAX {
                create_folder(&root.join(format!("{number:02x}"))).map_err(failed)?;
            }
            sync(root).map_err(failed)?;
            root.parent().map_or(Ok(()), sync).map_err(failed)?;
        }
        Ok(Directory(root.to_owned()))
    }

    /// The blob is there, whoever wrote it: sees to it that it is there after a power loss, too, and that nothing is left of
    /// writers that were killed. One that is still at it finds its file gone and tries again.
    pub async fn settle(&self, name: BlobName) -> io::Result<()> {
        let path = self.0.join(name.to_string());
        let settled = tokio::task::spawn_blocking(move || {
            sync(&path)?;
            path.parent().map_or(Ok(()), sync)?;
            remove_staged(&path)
        });
        settled.await.map_err(io::Error::other)?
    }
}

fn is_marked(root: &Path) -> io::Result<bool> {
    fs::exists(root.join(MARK))
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

/// `object_store` numbers them from 1, and takes the first that is free.
fn remove_staged(path: &Path) -> io::Result<()> {
    for number in 1.. {
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!("#{number}"));
        match fs::remove_file(PathBuf::from(staged)) {
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            removed => removed?,
        }
    }
    Ok(())
}
