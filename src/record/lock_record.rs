//! The lock record of a creation.

/// Lock record of a creation of several pages (`000_eaac0d3352205430.txt`, section 3.1). The lock record saves
/// duplicate work; no correctness depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRecord {
    /// `created_at`: time of the acquisition, ms since the epoch
    pub created_at: u64,
    /// Time at which another owner may acquire the record, ms since the epoch (the record's TTL)
    pub expires_at: u64,
    /// `process_id` of the owner
    pub process_id: u32,
    /// `hostname` of the owner's machine
    pub hostname: String,
    /// `expected_recs`: number of pages to create
    pub expected_recs: u32,
    /// Token of the acquisition, without which the record cannot be released.
    pub owner: u64,
}
