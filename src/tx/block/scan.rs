//! [`Scan`]: the complete blocks of a file that a node wrote.
//!
//! A node allocates space ahead (zeros). A killed node leaves half a block and possibly writes over it later. A scan
//! does the same as Bitcoin Core when it reads its files again: after bytes that are no complete block, it searches for
//! the next magic of the network.

use std::iter::FusedIterator;

use super::{BlockFile, BlockFileError, FRAME_LEN, FileNetwork, RawBlock};

/// Piece of a file that a scan finds.
#[derive(Debug, Clone, Copy)]
pub enum ScanItem<'a> {
    /// A complete, well-formed block.
    Block(RawBlock<'a>),
    /// Bytes that are no complete block.
    SkippedBytes(SkippedBytes),
}

/// Bytes of a file that are no complete block, without the zeros before and after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkippedBytes {
    /// Position of the first byte in the file.
    pub at: usize,
    /// Number of bytes that are skipped.
    pub bytes: usize,
    /// Error of the block or frame at the first byte.
    pub why: BlockFileError,
}

/// Iterator over the blocks and the skipped bytes of a file, in the order of the file.
#[derive(Debug, Clone)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    layout: FileLayout<'a>,
}

#[derive(Debug, Clone, Copy)]
enum FileLayout<'a> {
    /// A block without a frame.
    Bare(RawBlock<'a>),
    /// Frames with the magic of this network.
    Framed(FileNetwork),
    /// Zeros only: space that a node has allocated.
    Allocated,
}

impl<'a> Scan<'a> {
    /// Recognises the layout of the file. The first network whose magic is in front of a complete block is the network
    /// of a framed file.
    ///
    /// # Errors
    /// Fails for a file that is empty or holds no block; the error describes the beginning of the file.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BlockFileError> {
        let file = BlockFile::new(bytes)?;
        let layout = match file.network() {
            Some(network) => FileLayout::Framed(network),
            None if bytes.iter().all(|byte| *byte == 0) => FileLayout::Allocated,
            None => match file.blocks().next() {
                Some(Ok(block)) => FileLayout::Bare(block),
                Some(Err(error)) => FileLayout::Framed(find_network(bytes).ok_or(error)?),
                None => FileLayout::Allocated,
            },
        };
        Ok(Scan { bytes, at: 0, layout })
    }

    /// Returns the network whose magic the frames have; `None` for a bare block.
    pub fn network(&self) -> Option<FileNetwork> {
        match self.layout {
            FileLayout::Framed(network) => Some(network),
            FileLayout::Bare(_) | FileLayout::Allocated => None,
        }
    }

    fn next_framed(&mut self, network: FileNetwork) -> Option<ScanItem<'a>> {
        self.at += self.bytes[self.at..].iter().take_while(|byte| **byte == 0).count();
        let begin = self.at;
        let why = match self.bytes.get(begin..)? {
            [] => return None,
            _ => match read_frame(self.bytes, begin, network) {
                Ok((block, end)) => {
                    self.at = end;
                    return Some(ScanItem::Block(block));
                }
                Err(why) => why,
            },
        };
        let end = find_next_frame(self.bytes, begin + 1, network).unwrap_or(self.bytes.len());
        self.at = end;
        let zeros = self.bytes[begin..end].iter().rev().take_while(|byte| **byte == 0).count();
        Some(ScanItem::SkippedBytes(SkippedBytes { at: begin, bytes: end - begin - zeros, why }))
    }
}

/// Reads the block in the frame that begins at byte `at`. Returns the block and the end of the frame.
fn read_frame(bytes: &[u8], at: usize, network: FileNetwork) -> Result<(RawBlock<'_>, usize), BlockFileError> {
    let file = BlockFile::new(&bytes[at..])?;
    if file.network() != Some(network) {
        let mut found = [0; 4];
        let there = &bytes[at..bytes.len().min(at + 4)];
        found[..there.len()].copy_from_slice(there);
        return Err(BlockFileError::NoMagic { at, found, expected: network.block_file_magic() });
    }
    let block = file.blocks().next().ok_or(BlockFileError::Empty)?.map_err(|error| error.shifted(at))?;
    Ok((block, at + FRAME_LEN + block.raw().len()))
}

/// Returns the position of the next frame with a complete block, from byte `from` on.
fn find_next_frame(bytes: &[u8], from: usize, network: FileNetwork) -> Option<usize> {
    let magic = network.block_file_magic();
    let begins = bytes.get(from..)?.windows(magic.len()).enumerate();
    let mut begins = begins.filter(|(_, there)| **there == magic).map(|(place, _)| from + place);
    begins.find(|at| read_frame(bytes, *at, network).is_ok())
}

/// Returns the network of the first framed complete block in a file that begins with other bytes.
fn find_network(bytes: &[u8]) -> Option<FileNetwork> {
    let windows = bytes.windows(4).enumerate();
    let mut magics = windows.filter_map(|(at, there)| Some((at, FileNetwork::from_magic(there.try_into().ok()?)?)));
    magics.find(|(at, network)| read_frame(bytes, *at, *network).is_ok()).map(|(_, network)| network)
}

impl<'a> Iterator for Scan<'a> {
    type Item = ScanItem<'a>;

    fn next(&mut self) -> Option<ScanItem<'a>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        match self.layout {
            FileLayout::Framed(network) => self.next_framed(network),
            FileLayout::Bare(block) => {
                self.at = self.bytes.len();
                Some(ScanItem::Block(block))
            }
            FileLayout::Allocated => None,
        }
    }
}

impl FusedIterator for Scan<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::tests::data;

    /// Returns blocks as `b`, and skipped bytes as position, length and beginning of the error.
    fn scanned(bytes: &[u8]) -> Vec<String> {
        let found = Scan::new(bytes).unwrap().map(|found| match found {
            ScanItem::Block(_) => "b".to_owned(),
            ScanItem::SkippedBytes(SkippedBytes { at, bytes, why }) => {
                let why = why.to_string();
                format!("{at}+{bytes}: {}", why.split(" at byte").next().unwrap_or_default())
            }
        });
        found.collect()
    }

    fn frames() -> [Vec<u8>; 3] {
        let bytes = data("mainnet-0-4312.blk");
        let mut at = 0;
        [(); 3].map(|()| {
            let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
            let frame = bytes[at..at + FRAME_LEN + length].to_vec();
            at += frame.len();
            frame
        })
    }

    #[test]
    fn zeros_between_and_after_blocks_are_ignored() {
        let [a, b, c] = frames();
        let file = [&a[..], &[0; 100], &b, &[0; 3], &c, &[0; 1_000]].concat();
        assert_eq!(scanned(&file), ["b", "b", "b"]);
        assert_eq!(scanned(&[&[0; 100][..], &a].concat()), ["b"]);
        assert_eq!(scanned(&[0; 100]), [""; 0]);
    }

    #[test]
    fn half_a_block_is_skipped_anywhere() {
        let [a, b, c] = frames();
        // The half does not end in zeros, which would count as allocated space.
        let half = &b[..94];
        let at = a.len();
        let end = scanned(&[&a[..], half].concat());
        assert_eq!(end, ["b".to_owned(), format!("{at}+94: block file cut in half")]);
        let with_room = scanned(&[&a[..], half, &[0; 1_000]].concat());
        assert_eq!(with_room.len(), 2);
        assert!(with_room[1].starts_with(&format!("{at}+")) && with_room[1].contains("damaged"), "{with_room:?}");
        let written_over = scanned(&[&a[..], half, &c].concat());
        assert_eq!(written_over.len(), 3);
        assert!(written_over[1].starts_with(&format!("{at}+94: ")) && written_over[2] == "b", "{written_over:?}");
        let length = scanned(&[&a[..], &b[..6], &c].concat());
        assert_eq!((length.len(), length[2].as_str()), (3, "b"), "{length:?}");
    }

    #[test]
    fn skipped_bytes_are_named_by_their_magic() {
        let [a, b, _] = frames();
        let signet = [&FileNetwork::Signet.block_file_magic()[..], &b[4..b.len() - 4]].concat();
        let at = a.len();
        let found = scanned(&[&a[..], &signet, &b].concat());
        assert_eq!(found, ["b", &format!("{at}+{}: magic of signet 0a03cf40", signet.len()), "b"]);
        let found = scanned(&[&a[..], b"what", &b].concat());
        assert_eq!(found, ["b", &format!("{at}+4: unknown magic 77686174"), "b"]);
        let found = scanned(&[b"what", &a[..]].concat());
        assert_eq!(found, ["0+4: unknown magic 77686174", "b"]);
        let Err(error) = Scan::new(b"what is this, and what is it for?") else { panic!("it is no block file") };
        assert!(error.to_string().starts_with("unknown magic 77686174 at byte 0: "), "{error}");
        assert!(error.to_string().contains("signet 0a03cf40") && error.to_string().contains("xor.dat"), "{error}");
    }
}
