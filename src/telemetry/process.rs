//! Memory and files of this process, read from `/proc` (Linux only).

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

/// Resident memory of the process, in bytes.
pub(super) fn read_resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Number of open file descriptors, connections included.
pub(super) fn count_open_fds() -> Option<i64> {
    // The read of the directory opens one more descriptor.
    i64::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok().map(|count| count - 1)
}

/// Seconds since the epoch, read once at the start of the process.
pub(super) fn unix_time_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_and_files_are_those_of_this_process() {
        let before = (read_resident_bytes().unwrap(), count_open_fds().unwrap());
        let memory = vec![1_u8; 64 << 20];
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/status").unwrap()).collect();
        let after = (read_resident_bytes().unwrap(), count_open_fds().unwrap());
        assert!(after.0 - before.0 > 32 << 20, "{before:?} {after:?}");
        // Other tests open and close files meanwhile.
        assert!(after.1 - before.1 > 25, "{before:?} {after:?}");
        drop((memory, files));
    }
}
