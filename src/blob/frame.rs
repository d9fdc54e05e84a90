//! Bytes of a blob: the content, followed by the BLAKE3 of the content. The checksum is needed because a txid does not
//! commit to all of a `.tx` and to nothing of a `.outputs`: the txid cannot detect damage there.
//!
//! A blob of the reference system has eight bytes of header before the content, and no checksum. Such a blob is read,
//! and verified by its txid alone.

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

/// Returns the headers of the reference system's files of this kind: padded with spaces, and as earlier versions of the
/// reference padded.
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

/// A blob to be stored. Only the mark of a store has no checksum, so that people can read and write the mark.
#[derive(Debug, Clone)]
pub(super) struct Framed {
    pub content: Bytes,
    pub checksum: Bytes,
}

impl Framed {
    /// Computes the checksum of `content`.
    pub async fn new(content: Bytes) -> Self {
        let checksum = Bytes::copy_from_slice(&checksum_of(&content).await);
        Framed { content, checksum }
    }

    /// Returns the length of content and checksum in bytes.
    pub fn len(&self) -> usize {
        self.content.len() + self.checksum.len()
    }

    /// Splits the blob into parts of `len` bytes without copying; only the last part may be shorter.
    pub fn parts(&self, len: usize) -> impl Iterator<Item = PutPayload> {
        (0..self.len()).step_by(len.max(1)).map(move |at| self.part(at, self.len().min(at.saturating_add(len))))
    }

    /// Returns the whole blob as one part.
    pub fn whole(&self) -> PutPayload {
        self.part(0, self.len())
    }

    fn part(&self, from: usize, to: usize) -> PutPayload {
        let content = self.content.len();
        let both = [
            self.content.slice(from.min(content)..to.min(content)),
            self.checksum.slice(from.max(content) - content..to.max(content) - content),
        ];
        both.into_iter().filter(|bytes| !bytes.is_empty()).collect()
    }
}

/// Splits a whole blob into a possible header of the reference and the rest.
pub(super) fn split_header(kind: BlobKind, blob: &Bytes) -> (bool, Bytes) {
    let has_header = headers_of(kind).iter().any(|header| blob.starts_with(&header[..]));
    (has_header, if has_header { blob.slice(HEADER_BYTES..) } else { blob.clone() })
}

/// Compares the bytes behind a content with the checksum of the content. A blob of the reference has a header and no
/// checksum.
pub(super) fn verify_checksum(
    name: BlobName,
    has_header: bool,
    computed: &[u8; CHECKSUM_BYTES],
    stored: &[u8],
) -> Result<(), Damage> {
    let matches_stored = if has_header { stored.is_empty() } else { stored == computed };
    let matches_name = name.content_hash.is_none_or(|hash| hash == *computed);
    if matches_stored && matches_name { Ok(()) } else { Err(Damage::checksum_mismatch()) }
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

/// Returns the sections that a blob of `len` bytes with the content of `blob` has, ours or the reference's; `None`: no
/// blob with this content is so long.
pub(super) fn expected_sections(kind: BlobKind, blob: &Framed, len: u64) -> Option<[&[u8]; 2]> {
    let forms = [[&blob.content[..], &blob.checksum[..]], [&headers_of(kind)[0][..], &blob.content[..]]];
    forms.into_iter().find(|form| form.iter().map(|section| section.len() as u64).sum::<u64>() == len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{blob::conformance::transaction, tx::Txid};

    fn read(name: BlobName, bytes: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut reader = TxBlobReader::new(TransactionStream::new(bytes.len() as u64, []));
        let mut content = Vec::new();
        for piece in bytes.chunks(len) {
            content.extend_from_slice(&reader.push(&Bytes::copy_from_slice(piece)).ok()?);
        }
        reader.finish(name).ok().map(|_| content)
    }

    /// Returns a transaction, and the blobs that may hold the transaction: ours, and two of the reference.
    async fn blobs() -> (Txid, Bytes, [Vec<u8>; 3]) {
        let (txid, content) = transaction(1, 2, 3, 7);
        let framed = Framed::new(content.clone()).await;
        let ours = Bytes::from(framed.whole()).to_vec();
        for len in 1..ours.len() + 2 {
            let parts: Vec<Bytes> = framed.parts(len).map(Bytes::from).collect();
            assert_eq!(parts.concat(), ours);
            let (last, others) = parts.split_last().unwrap();
            assert!(last.len() <= len && others.iter().all(|part| part.len() == len), "only the last may be shorter");
        }
        assert_eq!(ours, [&content[..], blake3::hash(&content).as_bytes()].concat());
        let [spaces, zeros] = headers_of(BlobKind::Tx).map(|header| [&header[..], &content].concat());
        (txid, content, [ours, spaces, zeros])
    }

    #[tokio::test]
    async fn blobs_of_both_systems_are_read_in_pieces_of_any_size() {
        let (txid, content, blobs) = blobs().await;
        for bytes in &blobs {
            for len in 1..=bytes.len() {
                assert_eq!(
                    read(BlobName::tx(txid), bytes, len).as_deref(),
                    Some(&content[..]),
                    "pieces of {len} bytes"
                );
            }
        }
    }

    #[tokio::test]
    async fn damage_and_lost_bytes_are_detected() {
        let (txid, _, [ours, of_the_reference, _]) = blobs().await;
        let name = BlobName::tx(txid);
        for at in 0..ours.len() {
            let mut damaged = ours.clone();
            damaged[at] ^= 1;
            assert_eq!(read(name, &damaged, 7), None, "byte {at}");
        }
        for bytes in [&ours, &of_the_reference] {
            for at in 0..bytes.len() {
                assert_eq!(read(name, &bytes[..at], 7), None, "cut at byte {at}");
            }
            assert_eq!(read(name, &[&bytes[..], b"x"].concat(), 7), None, "a byte more");
            assert_eq!(read(name.with_content_hash([9; 32]), bytes, 7), None, "the name has another hash");
        }
        assert_eq!(read(name, &[&b"T-1.0   "[..], &ours].concat(), 7), None, "no system writes header and checksum");
    }
}
