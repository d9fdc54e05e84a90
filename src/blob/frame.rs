//! Bytes of a blob: the content, followed by the BLAKE3 of the content. The checksum is needed because a txid does not
//! commit to all of a `.tx` and to nothing of a `.outputs`: the txid cannot detect damage there.

use bytes::Bytes;
use object_store::PutPayload;

use super::requests::PIECE_BYTES;

/// Number of bytes of the checksum.
pub(super) const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// A blob to be stored. Only the mark of a store has no checksum, so that people can read and write the mark.
#[derive(Debug, Clone)]
pub(super) struct Framed {
    pub content: Bytes,
    pub checksum: Bytes,
}

impl Framed {
    /// Computes the checksum of `content`. Yields after each piece, because other tasks share the thread.
    pub async fn new(content: Bytes) -> Self {
        let mut hasher = blake3::Hasher::new();
        for piece in content.chunks(PIECE_BYTES) {
            hasher.update(piece);
            if content.len() > PIECE_BYTES {
                tokio::task::yield_now().await;
            }
        }
        let checksum = Bytes::copy_from_slice(hasher.finalize().as_bytes());
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

/// Separates the content of a blob from its checksum, piece by piece, and verifies the checksum.
#[derive(Debug)]
pub(super) struct FrameVerifier {
    /// Bytes of content that have not arrived yet.
    content_left: u64,
    hasher: blake3::Hasher,
    checksum: Vec<u8>,
}

impl FrameVerifier {
    /// Starts a blob of `len` bytes; returns `None` if a checksum alone is longer.
    pub fn new(len: u64) -> Option<Self> {
        let content_left = len.checked_sub(CHECKSUM_BYTES as u64)?;
        Some(FrameVerifier {
            content_left,
            hasher: blake3::Hasher::new(),
            checksum: Vec::with_capacity(CHECKSUM_BYTES),
        })
    }

    /// Returns the number of content bytes that have not arrived yet.
    pub fn content_left(&self) -> u64 {
        self.content_left
    }

    /// Takes the next piece and returns the part of it that is content.
    pub fn push<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let content = piece.len().min(usize::try_from(self.content_left).unwrap_or(usize::MAX));
        let (content, rest) = piece.split_at(content);
        self.content_left -= content.len() as u64;
        self.hasher.update(content);
        self.checksum.extend_from_slice(rest);
        content
    }

    /// Returns whether the blob is complete and its checksum matches.
    pub fn is_intact(&self) -> bool {
        self.content_left == 0 && self.checksum == self.hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bytes(content: &'static [u8]) -> Vec<u8> {
        let framed = Framed::new(Bytes::from_static(content)).await;
        let in_parts = |len| -> Vec<Bytes> { framed.parts(len).map(Bytes::from).collect() };
        let whole = Bytes::from(framed.whole()).to_vec();
        for len in 1..whole.len() + 2 {
            let parts = in_parts(len);
            assert_eq!(parts.concat(), whole);
            let (last, others) = parts.split_last().unwrap();
            assert!(last.len() <= len && others.iter().all(|part| part.len() == len), "only the last may be shorter");
        }
        whole
    }

    fn verified_content(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut verifier = FrameVerifier::new(bytes.len() as u64)?;
        let content = bytes.chunks(len).flat_map(|piece| verifier.push(piece).to_vec()).collect();
        verifier.is_intact().then_some(content)
    }

    #[tokio::test]
    async fn frames_round_trip_and_damage_is_detected() {
        for content in [&b""[..], b"a", b"abc", b"abcdefghij"] {
            let framed = bytes(content).await;
            assert_eq!(framed.len(), Framed::new(Bytes::from_static(content)).await.len());
            assert_eq!(&framed[content.len()..], blake3::hash(content).as_bytes());
            for len in 1..framed.len() {
                assert_eq!(verified_content(&framed, len).as_deref(), Some(content));
            }
            for at in 0..framed.len() {
                let mut damaged = framed.clone();
                damaged[at] ^= 1;
                assert_eq!(verified_content(&damaged, 7), None);
                assert_eq!(verified_content(&framed[..at], 7), None);
            }
        }
    }
}
