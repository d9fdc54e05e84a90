//! Bytes of a blob: the header of the reference system, the content, and the BLAKE3 of the content.
//!
//! The reference system begins each file with eight bytes that name its kind, and reads a body from there to its own
//! end: the checksum behind the end does not keep the reference from reading the body. A body that the reference wrote
//! has no checksum. The checksum is needed because a txid does not commit to all of a `.tx` and to nothing of a
//! `.outputs`: the txid cannot detect damage there.

use bytes::Bytes;
use object_store::PutPayload;

use super::{
    BlobKind, BlobName,
    check::{Damage, verify_txid},
    requests::PIECE_BYTES,
};
use crate::tx::{FoundOutput, StreamedTransaction, TransactionStream};

/// Form of the blobs that a place gets. Every form is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum BlobLayout {
    /// Content and checksum: blobs of earlier versions.
    WithoutHeader,
    /// Header, content and checksum.
    #[default]
    WithHeader,
}

/// Number of bytes of the checksum.
const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Returns the header of the reference system's files of this kind.
fn header_of(kind: BlobKind) -> &'static [u8; 8] {
    match kind {
        BlobKind::Tx => b"T-1.0   ",
        BlobKind::Outputs => b"O-1.0   ",
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

/// An object to be stored.
#[derive(Debug, Clone)]
pub(super) struct Framed {
    header: Bytes,
    pub content: Bytes,
    pub checksum: Bytes,
}

impl Framed {
    /// Makes a blob of this kind for a place of this layout.
    pub async fn new(layout: BlobLayout, kind: BlobKind, content: Bytes) -> Self {
        let header = match layout {
            BlobLayout::WithoutHeader => Bytes::new(),
            BlobLayout::WithHeader => Bytes::from_static(header_of(kind)),
        };
        let checksum = Bytes::copy_from_slice(&checksum_of(&content).await);
        Framed { header, content, checksum }
    }

    /// Makes an object without header and checksum: the mark of a store, which people read, or the body of an event.
    pub fn bare(content: Bytes) -> Self {
        Framed { header: Bytes::new(), content, checksum: Bytes::new() }
    }

    /// Returns the length of header, content and checksum in bytes.
    pub fn len(&self) -> usize {
        self.header.len() + self.content.len() + self.checksum.len()
    }

    /// Splits the object into parts of `len` bytes without copying; only the last part may be shorter.
    pub fn parts(&self, len: usize) -> impl Iterator<Item = PutPayload> {
        (0..self.len()).step_by(len.max(1)).map(move |at| self.part(at, self.len().min(at.saturating_add(len))))
    }

    /// Returns the whole object as one part.
    pub fn whole(&self) -> PutPayload {
        self.part(0, self.len())
    }

    fn part(&self, from: usize, to: usize) -> PutPayload {
        let mut start = 0;
        let sections = [&self.header, &self.content, &self.checksum].map(|section| {
            let within = |at: usize| at.clamp(start, start + section.len()) - start;
            let part = section.slice(within(from)..within(to));
            start += section.len();
            part
        });
        sections.into_iter().filter(|bytes| !bytes.is_empty()).collect()
    }
}

/// Splits a whole blob into a possible header and the rest.
pub(super) fn split_header(kind: BlobKind, blob: &Bytes) -> (bool, Bytes) {
    match blob.starts_with(header_of(kind)) {
        true => (true, blob.slice(header_of(kind).len()..)),
        false => (false, blob.clone()),
    }
}

/// Compares the bytes behind a content with the checksum of the content. A blob of the reference has a header and no
/// checksum.
pub(super) fn verify_checksum(
    name: BlobName,
    has_header: bool,
    computed: &[u8; CHECKSUM_BYTES],
    stored: &[u8],
) -> Result<(), Damage> {
    let matches_stored = stored == computed || stored.is_empty() && has_header;
    let matches_name = name.content_hash.is_none_or(|hash| hash == *computed);
    if matches_stored && matches_name { Ok(()) } else { Err(Damage::checksum_mismatch()) }
}

/// Reads a `.tx` piece by piece: separates the transaction from header and checksum, and verifies both.
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
        let header = header_of(BlobKind::Tx);
        let taken = piece.len().min(header.len() - beginning.len());
        let read = [&beginning[..], &piece[..taken]].concat();
        if !header.starts_with(&read) {
            return if beginning.is_empty() { piece.clone() } else { [&beginning[..], piece].concat().into() };
        }
        self.has_header = read.len() == header.len();
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

/// Returns whether a blob of `len` bytes that begins with `stored` may have the content of `blob`, and the rest of the
/// bytes that it then has, in each form that is read.
pub(super) fn expected_bytes(kind: BlobKind, blob: &Framed, len: u64) -> Option<[&[u8]; 3]> {
    let header = &header_of(kind)[..];
    let forms =
        [[header, &blob.content, &blob.checksum], [header, &blob.content, &[]], [&[], &blob.content, &blob.checksum]];
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

    async fn forms() -> (Txid, Bytes, Vec<Vec<u8>>) {
        let (txid, content) = transaction(1, 2, 3, 7);
        let framed = async |layout| {
            let framed = Framed::new(layout, BlobKind::Tx, content.clone()).await;
            let whole = Bytes::from(framed.whole()).to_vec();
            for len in 1..whole.len() + 2 {
                let parts: Vec<Bytes> = framed.parts(len).map(Bytes::from).collect();
                assert_eq!(parts.concat(), whole);
                let (last, others) = parts.split_last().unwrap();
                assert!(last.len() <= len && others.iter().all(|part| part.len() == len), "only the last is shorter");
            }
            whole
        };
        let ours = framed(BlobLayout::WithHeader).await;
        let earlier = framed(BlobLayout::WithoutHeader).await;
        let of_the_reference = [&b"T-1.0   "[..], &content].concat();
        assert_eq!(ours, [&of_the_reference[..], blake3::hash(&content).as_bytes()].concat());
        (txid, content, vec![ours, earlier, of_the_reference])
    }

    #[tokio::test]
    async fn every_form_is_read_in_pieces_of_any_size() {
        let (txid, content, forms) = forms().await;
        for bytes in &forms {
            for len in 1..=bytes.len() {
                assert_eq!(
                    read(BlobName::tx(txid), bytes, len).as_deref(),
                    Some(&content[..]),
                    "pieces of {len} bytes"
                );
            }
        }
    }

    /// Damage of a blob of the reference shows in the txid alone: its previous outputs have no checksum.
    #[tokio::test]
    async fn damage_and_lost_bytes_are_detected() {
        let (txid, _, forms) = forms().await;
        let name = BlobName::tx(txid);
        for bytes in &forms[..2] {
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                assert_eq!(read(name, &damaged, 7), None, "byte {at}");
                let is_of_the_reference = bytes[..at] == forms[2];
                assert_eq!(read(name, &bytes[..at], 7).is_some(), is_of_the_reference, "cut at byte {at}");
            }
            assert_eq!(read(name, &[&bytes[..], b"x"].concat(), 7), None, "a byte more");
        }
        let cut = &forms[2][..forms[2].len() - 1];
        assert_eq!((read(name, cut, 7), read(name, &[&forms[2][..], b"x"].concat(), 7)), (None, None));
        let other = name.with_content_hash([9; 32]);
        assert!(forms.iter().all(|bytes| read(other, bytes, 7).is_none()), "the name has another hash");
    }
}
