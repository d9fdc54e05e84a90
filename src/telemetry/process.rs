//! What the machine says of this process (Linux; elsewhere it says nothing).

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// Resident memory, in bytes.
pub(super) fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Open files and connections.
pub(super) fn open_files() -> Option<i64> {
    // The directory that is being read is one of them.
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok().map(|count| count - 1)
}

/// When the process started, as far as it knows: now, seconds since the epoch.
pub(super) fn start_time_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_and_files_are_those_of_this_process() {
        let before = (resident_bytes().unwrap(), open_files().unwrap());
        let memory = vec![1_u8; 64 << 20];
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let after = (resident_bytes().unwrap(), open_files().unwrap());
        assert!(after.0 - before.0 > 32 << 20, "{before:?} {after:?}");
        // Other tests open and close theirs meanwhile.
        assert!(after.1 - before.1 > 25, "{before:?} {after:?}");
        drop((memory, files));
    }
}
