//! What a blob's bytes are: its content, and behind it the BLAKE3 of the content. A txid does not commit to all of a `.tx`, and to
//! nothing of a `.outputs`: damage there would be seen by nobody.

use bytes::Bytes;
use object_store::PutPayload;

use super::requests::PIECE;

/// Bytes of the checksum.
pub(super) const CHECKSUM: usize = blake3::OUT_LEN;

/// A blob as it is to be stored. The mark of a store alone has no checksum, so that people can read it and write it.
#[derive(Debug, Clone)]
pub(super) struct Framed {
    pub content: Bytes,
    pub checksum: Bytes,
}

impl Framed {
    /// Hashing gives way between pieces: other tasks share the thread.
    pub async fn new(content: Bytes) -> Self {
        let mut hasher = blake3::Hasher::new();
        for piece in content.chunks(PIECE) {
            hasher.update(piece);
            if content.len() > PIECE {
                tokio::task::yield_now().await;
            }
        }
        let checksum = Bytes::copy_from_slice(hasher.finalize().as_bytes());
        Framed { content, checksum }
    }

    /// In bytes.
    pub fn len(&self) -> usize {
        self.content.len() + self.checksum.len()
    }

    /// All its bytes, in parts of so many; only the last may be shorter. Nothing is copied.
    pub fn parts(&self, len: usize) -> impl Iterator<Item = PutPayload> {
        (0..self.len()).step_by(len.max(1)).map(move |at| self.part(at, self.len().min(at.saturating_add(len))))
    }

    /// All its bytes at once.
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

/// Takes a blob apart, piece by piece.
#[derive(Debug)]
pub(super) struct Unframing {
    /// Of the content.
    left: u64,
    hasher: blake3::Hasher,
    checksum: Vec<u8>,
}

impl Unframing {
    /// A blob of so many bytes; `None`: it is too short to be one.
    pub fn of(len: u64) -> Option<Self> {
        let left = len.checked_sub(CHECKSUM as u64)?;
        Some(Unframing { left, hasher: blake3::Hasher::new(), checksum: Vec::with_capacity(CHECKSUM) })
    }

    /// How much content is still to come.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// What of this piece is content.
    pub fn take<'p>(&mut self, piece: &'p [u8]) -> &'p [u8] {
        let content = piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let (content, rest) = piece.split_at(content);
        self.left -= content.len() as u64;
        self.hasher.update(content);
        self.checksum.extend_from_slice(rest);
        content
    }

    /// Whether all came as it was stored.
    pub fn is_whole(&self) -> bool {
        self.left == 0 && self.checksum == self.hasher.finalize().as_bytes()
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

    fn taken(bytes: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut unframing = Unframing::of(bytes.len() as u64)?;
        let content = bytes.chunks(len).flat_map(|piece| unframing.take(piece).to_vec()).collect();
        unframing.is_whole().then_some(content)
    }

    #[tokio::test]
    async fn it_is_taken_apart_as_it_was_put_together_and_damage_shows() {
        for content in [&b""[..], b"a", b"abc", b"abcdefghij"] {
            let framed = bytes(content).await;
            assert_eq!(framed.len(), Framed::new(Bytes::from_static(content)).await.len());
            assert_eq!(&framed[content.len()..], blake3::hash(content).as_bytes());
            for len in 1..framed.len() {
                assert_eq!(taken(&framed, len).as_deref(), Some(content));
            }
            for at in 0..framed.len() {
                let mut damaged = framed.clone();
                damaged[at] ^= 1;
                assert_eq!(taken(&damaged, 7), None);
                assert_eq!(taken(&framed[..at], 7), None);
            }
        }
    }
}
