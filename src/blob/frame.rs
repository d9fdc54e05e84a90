//! What a blob's bytes are: its content, and behind it the BLAKE3 of the content. A txid does not commit to all of a `.tx`, and to
//! nothing of a `.outputs`: damage there would be seen by nobody.

use bytes::Bytes;

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

    /// All its bytes, at most so many at a time; the last piece may be shorter.
    pub fn pieces(&self, len: usize) -> impl Iterator<Item = Bytes> {
        let content = (0..self.content.len()).step_by(len);
        let content = content.map(move |at| self.content.slice(at..self.content.len().min(at + len)));
        content.chain([self.checksum.clone()]).filter(|piece| !piece.is_empty())
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
        Framed::new(Bytes::from_static(content)).await.pieces(3).flatten().collect()
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
