//! Reading the files: a node's directory, its key, and no more than memory takes.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{cli::Failure, generate::SourceFile, tx::block::ObfuscationKey};

/// All files are held in memory at once: an input may spend what any of them makes.
const MOST_BYTES: u64 = 4 << 30;
/// The key of a directory of block files.
const KEY_FILE: &str = "xor.dat";

/// Reads block files, those of directories (`blk*.dat`) in the order of their names. A file that is obfuscated is
/// turned into what was written by the key that lies beside it.
///
/// # Errors
/// A file that cannot be read, a directory without block files, a key that is none, more than memory takes.
pub(super) fn block_files(paths: &[PathBuf]) -> Result<Vec<SourceFile>, Failure> {
    let mut room = MOST_BYTES;
    let mut files = Vec::new();
    for path in paths {
        for path in if path.is_dir() { within(path)? } else { vec![path.clone()] } {
            let mut file = read_at_most(&path, room)?;
            room -= file.bytes.len() as u64;
            if let Some(key) = key_beside(&path)? {
                key.reveal(&mut file.bytes);
            }
            files.push(file);
        }
    }
    Ok(files)
}

/// Reads a file.
///
/// # Errors
/// The file cannot be read, or is larger than memory takes.
pub(super) fn read(path: &Path) -> Result<SourceFile, Failure> {
    read_at_most(path, MOST_BYTES)
}

fn read_at_most(path: &Path, most: u64) -> Result<SourceFile, Failure> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        // A pipe has no length; a file that grows meanwhile has another.
        bytes.reserve_exact(usize::try_from(file.metadata()?.len().min(most)).unwrap_or(0));
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)
    });
    match read {
        Err(error) => Err(Failure::new(format!("{name}: {error}"))),
        Ok(_) if bytes.len() as u64 > most => Err(Failure::new(format!(
            "cannot read {name}: all files together are larger than {MOST_BYTES} bytes, which are held in memory; give fewer of them"
        ))),
        Ok(_) => Ok(SourceFile { name, bytes }),
    }
}

/// The block files of a node's directory, in the order in which it wrote them.
fn within(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |error: io::Error| Failure::new(format!("{}: {error}", directory.display()));
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(is_block_file) {
            paths.push(path);
        }
    }
    paths.sort();
    match paths.is_empty() {
        false => Ok(paths),
        true => {
            Err(Failure::new(format!("{}: there is no block file (blk*.dat) in this directory", directory.display())))
        }
    }
}

/// `blk00000.dat` and the like.
fn is_block_file(name: &str) -> bool {
    let number = name.strip_prefix("blk").and_then(|rest| rest.strip_suffix(".dat"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn key_beside(path: &Path) -> Result<Option<ObfuscationKey>, Failure> {
    let beside = path.with_file_name(KEY_FILE);
    let wrong =
        |why: String| Failure::new(format!("cannot read the key of {}: {}: {why}", path.display(), beside.display()));
    match fs::read(&beside) {
        Ok(bytes) => ObfuscationKey::from_file(&bytes)
            .map(Some)
            .map_err(|found| wrong(format!("it has {found} bytes instead of 8"))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(wrong(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_gives_its_block_files_in_their_order_revealed_by_its_key() {
        let directory = tempfile::tempdir().unwrap();
        let key = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
        let blocks = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/mainnet-0-4312.blk")).unwrap();
        let xored: Vec<u8> = blocks.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect();
        let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
        write("blk00001.dat", &blocks[..293]);
        write("blk00000.dat", &xored);
        write("rev00000.dat", b"undo");
        write("blk.dat", b"none");
        write(KEY_FILE, &key);
        let files = block_files(&[directory.path().to_owned()]).unwrap();
        assert_eq!(files.len(), 2);
        assert!(files[0].name.ends_with("blk00000.dat") && files[0].bytes == blocks);
        assert_eq!(files[1].bytes, blocks[..293], "one that is not obfuscated stays as it is");
        write(KEY_FILE, &key[..7]);
        let refused = block_files(&[directory.path().join("blk00000.dat")]).unwrap_err().to_string();
        assert!(refused.contains("xor.dat: it has 7 bytes instead of 8"), "{refused}");
        let empty = tempfile::tempdir().unwrap();
        let refused = block_files(&[empty.path().to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("no block file (blk*.dat)"), "{refused}");
    }

    #[test]
    fn no_more_is_read_than_memory_takes() {
        let refused = read_at_most(Path::new("/dev/zero"), 1_000).unwrap_err().to_string();
        assert!(refused.contains("cannot read /dev/zero") && refused.contains("give fewer"), "{refused}");
    }
}
