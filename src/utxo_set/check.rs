//! The first reading of a UTXO-set file: to its end, without a write.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use sha2::{Digest, Sha256};

use super::{SetFileError, SetFormat, SetHeader, SetProgress, SetReader, SetStep, SetTotals, SetTx, UtxoSetError};
use crate::{
    record::build::KnownOutput,
    text::hex_reversed,
    tx::{Network, varint},
};

/// Bytes after which a chunk ends with the next transaction, by default.
pub const CHUNK_BYTES: u64 = 4 << 20;
/// Bytes that are read from the file at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Time between two reports of the progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Part of a file that begins and ends with whole transactions; the last part has the end of the file, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChunk {
    /// Position of the first byte in the file.
    pub offset: u64,
    /// Number of bytes of the part.
    pub bytes: u64,
    /// Number of whole transactions in the part.
    pub transactions: u64,
    /// BLAKE3 of the bytes.
    pub blake3: [u8; 32],
}

/// A UTXO-set file that is whole: its counts are those that the file itself says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Header of the file.
    pub header: SetHeader,
    /// Counts and sums of the file.
    pub totals: SetTotals,
    /// Double SHA-256 over all outputs in the order of the file, as Bitcoin Core's `txoutset_hash` and
    /// `hash_serialized_3`; bytes in internal order.
    pub txoutset_hash: [u8; 32],
    /// Chunks of the file, in order.
    pub chunks: Vec<FileChunk>,
}

impl CheckedFile {
    /// Returns the id of an import of this file for a block of this height: an import that was stopped continues with
    /// the same file only.
    pub(super) fn import_id(&self, height: u32) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.header.format.name().as_bytes()).update(&self.header.block).update(&height.to_le_bytes());
        for chunk in &self.chunks {
            hasher.update(&chunk.bytes.to_le_bytes()).update(&chunk.blake3);
        }
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        id
    }

    /// Returns the hash of the outputs as Bitcoin Core shows it; `None`: the file has another format.
    pub fn shown_txoutset_hash(&self) -> Option<String> {
        (self.header.format == SetFormat::Core).then(|| hex_reversed(&self.txoutset_hash))
    }

    /// Returns the transactions and bytes of the first `chunks` chunks.
    pub(super) fn sum_chunks(&self, chunks: usize) -> (u64, u64) {
        let first = self.chunks.iter().take(chunks);
        first.fold((0, 0), |(transactions, bytes), chunk| (transactions + chunk.transactions, bytes + chunk.bytes))
    }
}

/// Reads a UTXO-set file to its end. `network`: the rules by which outputs get a slot; `chunk_bytes`: bytes after which
/// a chunk ends. Dropping the future stops the reading.
///
/// # Errors
/// The file cannot be read, is cut off, is damaged, or has other counts than it says.
pub async fn check_file(
    path: &Path,
    network: Network,
    chunk_bytes: u64,
    on_progress: &(dyn Fn(SetProgress) + Send + Sync),
) -> Result<CheckedFile, UtxoSetError> {
    let open = |error| UtxoSetError::Open { path: path.to_owned(), error };
    let file = File::open(path).map_err(open)?;
    let length = file.metadata().map_err(open)?.len();
    let shared = Arc::new(CheckProgress::default());
    let _stop = StopOnDrop(shared.clone());
    let reading = FileCheck { path: path.to_owned(), length, network, chunk_bytes, shared: shared.clone() };
    let mut task = tokio::task::spawn_blocking(move || reading.read(file));
    loop {
        let ended = tokio::time::timeout(REPORT_INTERVAL, &mut task).await;
        on_progress(SetProgress {
            step: SetStep::Check,
            transactions: shared.transactions.load(Ordering::Relaxed),
            done: shared.bytes.load(Ordering::Relaxed),
            all: length,
        });
        match ended {
            Err(_) => {}
            Ok(Err(error)) => return Err(UtxoSetError::Task(error.to_string())),
            Ok(Ok(checked)) => return checked.map_err(|error| UtxoSetError::File { path: path.to_owned(), error }),
        }
    }
}

/// Progress of the reading, and the request to stop.
#[derive(Default)]
struct CheckProgress {
    transactions: AtomicU64,
    bytes: AtomicU64,
    stop: AtomicBool,
}

struct StopOnDrop(Arc<CheckProgress>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

struct FileCheck {
    path: PathBuf,
    length: u64,
    network: Network,
    chunk_bytes: u64,
    shared: Arc<CheckProgress>,
}

impl FileCheck {
    fn read(self, file: File) -> Result<CheckedFile, SetFileError> {
        let file = HashedFile { file: BufReader::with_capacity(BUFFER_BYTES, file), hasher: blake3::Hasher::new() };
        let mut reader = SetReader::open(file, self.length, self.network)?;
        reader.source_mut().take_hash();
        let (mut hash, mut chunks) = (Sha256::new(), Vec::new());
        let mut begin = (reader.position(), 0);
        loop {
            let next = reader.next_tx()?;
            let (totals, end) = (reader.totals(), reader.position());
            let (offset, before) = begin;
            if end - offset >= self.chunk_bytes || (next.is_none() && end > offset) {
                let transactions = totals.transactions - before;
                begin = (end, totals.transactions);
                let blake3 = reader.source_mut().take_hash();
                chunks.push(FileChunk { offset, bytes: end - offset, transactions, blake3 });
                self.shared.transactions.store(begin.1, Ordering::Relaxed);
                self.shared.bytes.store(end, Ordering::Relaxed);
                if self.shared.stop.load(Ordering::Relaxed) {
                    let error = io::Error::new(io::ErrorKind::Interrupted, "stopped");
                    return Err(SetFileError::Read { at: end, error });
                }
            }
            let Some(tx) = next else { break };
            hash_outputs(&tx, &mut hash);
        }
        Ok(CheckedFile {
            path: self.path,
            header: reader.header().clone(),
            totals: *reader.totals(),
            txoutset_hash: Sha256::digest(hash.finalize()).into(),
            chunks,
        })
    }
}

/// Adds the outputs of a transaction as Bitcoin Core does (`kernel/coinstats.cpp`, `TxOutSer`), ascending by index.
fn hash_outputs(tx: &SetTx, hash: &mut Sha256) {
    let mut outputs: Vec<&KnownOutput> = tx.outputs.iter().collect();
    outputs.sort_unstable_by_key(|output| output.vout);
    for KnownOutput { vout, output } in outputs {
        hash.update(tx.txid.0);
        hash.update(vout.to_le_bytes());
        hash.update((tx.height << 1 | u32::from(tx.coinbase)).to_le_bytes());
        hash.update(output.satoshis.to_le_bytes());
        hash.update(varint::encode(output.script.len() as u64).as_ref());
        hash.update(&output.script);
    }
}

/// A file with a hash over the bytes that were read.
struct HashedFile {
    file: BufReader<File>,
    hasher: blake3::Hasher,
}

impl HashedFile {
    /// Returns the BLAKE3 of the bytes since the last call.
    fn take_hash(&mut self) -> [u8; 32] {
        let hash = *self.hasher.finalize().as_bytes();
        self.hasher.reset();
        hash
    }
}

impl Read for HashedFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(into)?;
        self.hasher.update(&into[..read]);
        Ok(read)
    }
}

/// Reads one chunk of a file.
///
/// # Errors
/// The file cannot be read, or the bytes are no longer those of the chunk.
pub(super) fn read_chunk(path: &Path, chunk: &FileChunk) -> Result<Vec<u8>, UtxoSetError> {
    use std::os::unix::fs::FileExt;
    let open = |error| UtxoSetError::Open { path: path.to_owned(), error };
    let changed = || UtxoSetError::FileChanged { path: path.to_owned() };
    let file = File::open(path).map_err(open)?;
    // The size was read from the file, so that the memory is bounded by it.
    let mut bytes = vec![0; usize::try_from(chunk.bytes).map_err(|_| changed())?];
    match file.read_exact_at(&mut bytes, chunk.offset) {
        Ok(()) if *blake3::hash(&bytes).as_bytes() == chunk.blake3 => Ok(bytes),
        Ok(()) => Err(changed()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(changed()),
        Err(error) => Err(open(error)),
    }
}
