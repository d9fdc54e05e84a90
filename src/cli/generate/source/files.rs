//! Reads block files: a node's directory with its obfuscation key, up to a limit of bytes.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use crate::{cli::Failure, generate::SourceFile, tx::block::ObfuscationKey};

/// Greatest size of all files together, bytes. All files are in memory at once, since an input may spend an output of
/// any file.
const MAX_TOTAL_BYTES: u64 = 4 << 30;
/// File with the obfuscation key of a directory of block files.
const KEY_FILE: &str = "xor.dat";

/// Reads block files; the files of a directory (`blk*.dat`) in the order of their names. An obfuscated file is decoded
/// with the key in the same directory.
///
/// # Errors
/// A file cannot be read, a directory has no block files, a key has the wrong length, or the files exceed the limit.
pub(super) fn block_files(paths: &[PathBuf]) -> Result<Vec<SourceFile>, Failure> {
    let mut remaining = MAX_TOTAL_BYTES;
    let mut files = Vec::new();
    for path in paths {
        for path in if path.is_dir() { list_block_files(path)? } else { vec![path.clone()] } {
            let mut file = read_at_most(&path, remaining)?;
            remaining -= file.bytes.len() as u64;
            if let Some(key) = read_obfuscation_key(&path)? {
                key.reveal(&mut file.bytes);
            }
            files.push(file);
        }
    }
    Ok(files)
}

/// Reads a whole file into memory.
///
/// # Errors
/// The file cannot be read, or is larger than the limit.
pub(super) fn read(path: &Path) -> Result<SourceFile, Failure> {
    read_at_most(path, MAX_TOTAL_BYTES)
}

fn read_at_most(path: &Path, limit: u64) -> Result<SourceFile, Failure> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        // The length is a hint: a pipe has none, and a file can grow.
        bytes.reserve_exact(usize::try_from(file.metadata()?.len().min(limit)).unwrap_or(0));
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)
    });
    match read {
        Err(error) => Err(Failure::new(format!("{name}: {error}"))),
        Ok(_) if bytes.len() as u64 > limit => Err(Failure::new(format!(
            "cannot read {name}: all files together are larger than {MAX_TOTAL_BYTES} bytes, the limit in memory; give \
             fewer files"
        ))),
        Ok(_) => Ok(SourceFile { name, bytes }),
    }
}

/// Lists the block files of a node's directory in the order of their names, in which the node wrote them.
fn list_block_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
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
        true => Err(Failure::new(format!("{}: no block file (blk*.dat) in this directory", directory.display()))),
    }
}

/// Returns whether the name is `blk`, digits and `.dat`.
fn is_block_file(name: &str) -> bool {
    let number = name.strip_prefix("blk").and_then(|rest| rest.strip_suffix(".dat"));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn read_obfuscation_key(path: &Path) -> Result<Option<ObfuscationKey>, Failure> {
    let key_path = path.with_file_name(KEY_FILE);
    let failed = |reason: String| {
        Failure::new(format!("cannot read the key of {}: {}: {reason}", path.display(), key_path.display()))
    };
    match fs::read(&key_path) {
        Ok(bytes) => ObfuscationKey::from_file(&bytes)
            .map(Some)
            .map_err(|found| failed(format!("the key has {found} bytes instead of 8"))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_files_of_a_directory_are_decoded_in_the_order_of_names() {
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
        assert_eq!(files[1].bytes, blocks[..293], "a file that is not obfuscated stays as it is");
        write(KEY_FILE, &key[..7]);
        let refused = block_files(&[directory.path().join("blk00000.dat")]).unwrap_err().to_string();
        assert!(refused.contains("xor.dat: the key has 7 bytes instead of 8"), "{refused}");
        let empty = tempfile::tempdir().unwrap();
        let refused = block_files(&[empty.path().to_owned()]).unwrap_err().to_string();
        assert!(refused.contains("no block file (blk*.dat)"), "{refused}");
    }

    #[test]
    fn reading_stops_at_the_limit() {
        let refused = read_at_most(Path::new("/dev/zero"), 1_000).unwrap_err().to_string();
        assert!(refused.contains("cannot read /dev/zero") && refused.contains("give fewer"), "{refused}");
    }
}
