//! A small file system in memory, which a test can fill. Mounting needs root.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

/// Mounts a file system and says so. It unmounts the file system once its own standard input has ended, which happens
/// when the holder of the other end ends; a server that still has files there is about to end, too.
const KEEPER: &str = r#"
mount -t tmpfs -o size="$2" tmpfs "$1" || exit 1
echo mounted
cat >/dev/null
tries=100
until umount "$1" || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done 2>&-
"#;

/// A mounted file system.
pub struct SmallDisk {
    keeper: Child,
    input: Option<ChildStdin>,
    directory: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a file system of this many MiB; `None`, with a line on standard error, where that is not permitted.
    pub fn mount(megabytes: u32) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(directory.path())
            .arg(format!("{megabytes}m"))
            // A signal to the group of the test would end the keeper before it unmounts.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut answer = [0; 7];
        let input = keeper.stdin.take();
        if keeper.stdout.as_mut().unwrap().read_exact(&mut answer).is_err() {
            keeper.wait().unwrap();
            eprintln!("SKIPPED: a full disk: a file system cannot be mounted here (root is needed)");
            return None;
        }
        Some(SmallDisk { keeper, input, directory })
    }

    /// Returns the directory of the file system.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the file system to the last byte.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Gives the filled space back.
    pub fn free(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.input.take());
        self.keeper.wait().ok();
    }
}
