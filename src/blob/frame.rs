//! Bytes of a blob: eight bytes of header and the content, as in the files of the reference system. The record has the
//! BLAKE3 of the content, because a txid does not commit to all of a `.tx` and to nothing of a `.outputs`: the txid
//! cannot detect damage there.
//!
//! A blob of an early version of this store has no header, and the BLAKE3 of the content behind the content. Such a
//! blob is read, as is a blob without either.

use bytes::Bytes;
use object_store::PutPayload;

use super::{
    BlobKind, BlobName,
    check::{Damage, verify_txid},
    requests::PIECE_BYTES,
};
use crate::tx::{FoundOutput, StreamedTransaction, TransactionStream};

/// Number of bytes of the checksum.
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;
/// Number of bytes of the reference's header.
const HEADER_BYTES: usize = 8;

/// Returns the headers of files of this kind: padded with spaces, as this store and the reference system write, and
/// padded with zeros, as earlier versions of the reference wrote.
fn headers_of(kind: BlobKind) -> [&'static [u8; HEADER_BYTES]; 2] {
    match kind {
        BlobKind::Tx => [b"T-1.0   ", b"T-1.0\0\0\0"],
        BlobKind::Outputs => [b"O-1.0   ", b"O-1.0\0\0\0"],
    }
}

/// Computes the BLAKE3 of `content`. Yields after each piece, because other tasks share the thread.
pub(super) async fn checksum_of(content: &Bytes) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new();
    for piece in content.chunks(PIECE_BYTES) {
        hasher.update(piece);
        if content.len() > PIECE_BYTES {
            tokio::task::yield_now().await;
        }
    }
    *hasher.finalize().as_bytes()
}

/// Content of a blob to be stored, with its BLAKE3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HashedContent {
    pub bytes: Bytes,
    pub hash: [u8; CHECKSUM_BYTES],
}

impl HashedContent {
    /// Computes the BLAKE3 of `bytes`.
    pub async fn new(bytes: Bytes) -> Self {
        let hash = checksum_of(&bytes).await;
        HashedContent { bytes, hash }
    }

    /// Returns the blob: the header of this kind, and the content, without copying the content.
    pub fn blob(&self, kind: BlobKind) -> PutPayload {
        [Bytes::from_static(headers_of(kind)[0]), self.bytes.clone()].into_iter().collect()
    }
}

/// Splits a whole blob into a possible header of the reference and the rest.
pub(super) fn split_header(kind: BlobKind, blob: &Bytes) -> (bool, Bytes) {
    let has_header = headers_of(kind).iter().any(|header| blob.starts_with(&header[..]));
    (has_header, if has_header { blob.slice(HEADER_BYTES..) } else { blob.clone() })
}

/// Compares the BLAKE3 of a content with the hash in the record, and with the checksum behind the content where the
/// blob has one. A blob with neither is verified by its txid alone.
pub(super) fn verify_checksum(
    name: BlobName,
    has_header: bool,
    computed: &[u8; CHECKSUM_BYTES],
    stored: &[u8],
) -> Result<(), Damage> {
    if !(stored.is_empty() || (!has_header && stored == computed)) {
        return Err(Damage::checksum_mismatch());
    }
    if name.matches_hash(computed) { Ok(()) } else { Err(Damage::hash_mismatch()) }
}

/// Reads a `.tx` piece by piece: separates the transaction from header or checksum, and verifies them.
#[derive(Debug)]
pub(super) struct TxBlobReader {
    /// First bytes of the blob, as long as they may become the header; `None`: decided.
    beginning: Option<Vec<u8>>,
    has_header: bool,
    stream: TransactionStream,
    hasher: blake3::Hasher,
    checksum: Vec<u8>,
}

impl TxBlobReader {
    /// Starts a blob. `stream` is a stream of the length of the blob.
    pub fn new(stream: TransactionStream) -> Self {
        TxBlobReader {
            beginning: Some(Vec::new()),
            has_header: false,
            stream,
            hasher: blake3::Hasher::new(),
            checksum: Vec::with_capacity(CHECKSUM_BYTES),
        }
    }

    /// Takes the next piece and returns the part of it that is transaction.
    pub fn push(&mut self, piece: &Bytes) -> Result<Bytes, Damage> {
        let piece = match self.beginning.take() {
            Some(beginning) => self.pass_header(beginning, piece),
            None => piece.clone(),
        };
        let rest = self.stream.push_until_end(&piece)?;
        let content = piece.slice(..piece.len() - rest.len());
        self.hasher.update(&content);
        if self.checksum.len() + rest.len() > CHECKSUM_BYTES {
            return Err(Damage::checksum_mismatch());
        }
        self.checksum.extend_from_slice(rest);
        Ok(content)
    }

    /// Returns the bytes of the content among `beginning` and `piece`; none while they may still become the header.
    fn pass_header(&mut self, beginning: Vec<u8>, piece: &Bytes) -> Bytes {
        let taken = piece.len().min(HEADER_BYTES - beginning.len());
        let read = [&beginning[..], &piece[..taken]].concat();
        if !headers_of(BlobKind::Tx).iter().any(|header| header.starts_with(&read)) {
            return if beginning.is_empty() { piece.clone() } else { [&beginning[..], piece].concat().into() };
        }
        self.has_header = read.len() == HEADER_BYTES;
        self.beginning = (!self.has_header).then_some(read);
        piece.slice(taken..)
    }

    /// Returns the bytes in standard format of what was pushed since the last call.
    pub fn take_standard(&mut self) -> Vec<u8> {
        self.stream.take_standard()
    }

    /// Returns whether every wanted output was read.
    pub fn has_wanted(&self) -> bool {
        self.stream.has_wanted()
    }

    /// Returns the wanted outputs that were read so far, unverified.
    pub fn into_outputs(self) -> std::collections::BTreeMap<u32, FoundOutput> {
        self.stream.into_outputs()
    }

    /// Verifies the blob after its last piece.
    pub fn finish(self, name: BlobName) -> Result<StreamedTransaction, Damage> {
        let found = verify_txid(self.stream.finish()?, name)?;
        verify_checksum(name, self.has_header, self.hasher.finalize().as_bytes(), &self.checksum)?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{blob::conformance::transaction, record::Blob, tx::Txid};

    fn read(name: BlobName, bytes: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut reader = TxBlobReader::new(TransactionStream::new(bytes.len() as u64, []));
        let mut content = Vec::new();
        for piece in bytes.chunks(len) {
            content.extend_from_slice(&reader.push(&Bytes::copy_from_slice(piece)).ok()?);
        }
        reader.finish(name).ok().map(|_| content)
    }

    /// Returns a transaction, and the blobs that may hold the transaction: the content alone, with a checksum behind,
    /// and with each header.
    fn blobs() -> (Txid, Bytes, [Vec<u8>; 4]) {
        let (txid, content) = transaction(1, 2, 3, 7);
        let with_checksum = [&content[..], blake3::hash(&content).as_bytes()].concat();
        let [spaces, zeros] = headers_of(BlobKind::Tx).map(|header| [&header[..], &content].concat());
        (txid, content.clone(), [content.to_vec(), with_checksum, spaces, zeros])
    }

    fn with_hash(txid: Txid, hash: [u8; 32]) -> [BlobName; 2] {
        [Blob::First(Some(hash)), Blob::Other(hash)].map(|blob| BlobName::tx(txid).of_blob(blob))
    }

    #[test]
    fn blobs_of_every_form_are_read_in_pieces_of_any_size() {
        let (txid, content, blobs) = blobs();
        let [first, other] = with_hash(txid, *blake3::hash(&content).as_bytes());
        for bytes in &blobs {
            for len in 1..=bytes.len() {
                for name in [BlobName::tx(txid), first, other] {
                    assert_eq!(read(name, bytes, len).as_deref(), Some(&content[..]), "{name}: pieces of {len} bytes");
                }
            }
        }
    }

    #[test]
    fn damage_and_lost_bytes_are_detected_by_the_hash_in_the_record() {
        let (txid, content, blobs) = blobs();
        let names = with_hash(txid, *blake3::hash(&content).as_bytes());
        let header = |bytes: &[u8]| if bytes.starts_with(b"T-1.0") { HEADER_BYTES } else { 0 };
        for (bytes, name) in blobs.iter().flat_map(|bytes| names.map(|name| (bytes, name))) {
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert_eq!(read(name, &damaged, 7), None, "byte {at}");
                let is_content_alone = at == header(bytes) + content.len();
                assert!(is_content_alone || read(name, &bytes[..at], 7).is_none(), "cut at byte {at}");
            }
            assert_eq!(read(name, &[&bytes[..], b"x"].concat(), 7), None, "a byte more");
        }
        for (bytes, name) in blobs.iter().flat_map(|bytes| with_hash(txid, [9; 32]).map(|name| (bytes, name))) {
            assert_eq!(read(name, bytes, 7), None, "the record has another hash");
        }
    }

    #[test]
    fn a_checksum_behind_the_content_detects_damage_where_the_record_has_no_hash() {
        let (txid, content, [_, with_checksum, _, _]) = blobs();
        let name = BlobName::tx(txid);
        for at in 0..with_checksum.len() {
            let mut damaged = with_checksum.clone();
            damaged[at] ^= 1;
            assert_eq!(read(name, &damaged, 7), None, "byte {at}");
            assert!(at == content.len() || read(name, &with_checksum[..at], 7).is_none(), "cut at byte {at}");
        }
        assert_eq!(read(name, &[&b"T-1.0   "[..], &with_checksum].concat(), 7), None, "no system writes both");
    }
}
