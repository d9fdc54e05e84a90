//! [`Scan`]: the whole blocks of a file as a node leaves it.
//!
//! A node reserves room ahead (zeros), and a node that was killed leaves half a block, over which it may go on to
//! write. So a scan does what Bitcoin Core does when it reads its files again: behind what is no whole block it looks
//! for the next magic of the network.

use std::iter::FusedIterator;

use super::{Block, BlockFile, BlockFileError, FileNetwork};

/// Magic and length.
const FRAME: usize = 8;

/// The pieces that a scan finds in a file, in the file's order.
#[derive(Debug, Clone, Copy)]
pub enum Scanned<'a> {
    /// A whole block.
    Block(Block<'a>),
    /// Bytes that are none.
    LeftOut(LeftOut),
}

/// Bytes of a file that are no whole block, without the zeros before and behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut {
    /// Where they begin.
    pub at: usize,
    /// How many they are.
    pub bytes: usize,
    /// The error at the beginning of the bytes.
    pub why: BlockFileError,
}

/// The blocks of a file. See the module.
#[derive(Debug, Clone)]
pub struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    form: Form<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Form<'a> {
    /// One block without a frame.
    Bare(Block<'a>),
    /// Frames with the magic of this network.
    Framed(FileNetwork),
    /// Nothing but zeros: room that a node has reserved.
    Reserved,
}

impl<'a> Scan<'a> {
    /// Recognises the form of the file. A framed file is that of the first network whose magic stands before a whole
    /// block.
    ///
    /// # Errors
    /// The file is empty, or holds no block; the error is about its beginning.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BlockFileError> {
        let file = BlockFile::new(bytes)?;
        let form = match file.network() {
            Some(network) => Form::Framed(network),
            None if bytes.iter().all(|byte| *byte == 0) => Form::Reserved,
            None => match file.blocks().next() {
                Some(Ok(block)) => Form::Bare(block),
                Some(Err(error)) => Form::Framed(network_within(bytes).ok_or(error)?),
                None => Form::Reserved,
            },
        };
        Ok(Scan { bytes, at: 0, form })
    }

    /// The network whose magic the frames carry; a bare block does not tell.
    pub fn network(&self) -> Option<FileNetwork> {
        match self.form {
            Form::Framed(network) => Some(network),
            Form::Bare(_) | Form::Reserved => None,
        }
    }

    fn framed(&mut self, network: FileNetwork) -> Option<Scanned<'a>> {
        self.at += self.bytes[self.at..].iter().take_while(|byte| **byte == 0).count();
        let begin = self.at;
        let why = match self.bytes.get(begin..)? {
            [] => return None,
            _ => match frame(self.bytes, begin, network) {
                Ok((block, end)) => {
                    self.at = end;
                    return Some(Scanned::Block(block));
                }
                Err(why) => why,
            },
        };
        let end = next_frame(self.bytes, begin + 1, network).unwrap_or(self.bytes.len());
        self.at = end;
        let zeros = self.bytes[begin..end].iter().rev().take_while(|byte| **byte == 0).count();
        Some(Scanned::LeftOut(LeftOut { at: begin, bytes: end - begin - zeros, why }))
    }
}

/// The block in the frame that begins at `at`, and where the frame ends.
fn frame(bytes: &[u8], at: usize, network: FileNetwork) -> Result<(Block<'_>, usize), BlockFileError> {
    let file = BlockFile::new(&bytes[at..])?;
    if file.network() != Some(network) {
        let mut found = [0; 4];
        let there = &bytes[at..bytes.len().min(at + 4)];
        found[..there.len()].copy_from_slice(there);
        return Err(BlockFileError::NoMagic { at, found, expected: network.block_file_magic() });
    }
    let block = file.blocks().next().ok_or(BlockFileError::Empty)?.map_err(|error| error.shifted(at))?;
    Ok((block, at + FRAME + block.raw().len()))
}

/// Where the next whole block's frame begins, from `from` on.
fn next_frame(bytes: &[u8], from: usize, network: FileNetwork) -> Option<usize> {
    let magic = network.block_file_magic();
    let begins = bytes.get(from..)?.windows(magic.len()).enumerate();
    let mut begins = begins.filter(|(_, there)| **there == magic).map(|(place, _)| from + place);
    begins.find(|at| frame(bytes, *at, network).is_ok())
}

/// The network of the first whole block that is framed, where the file begins with something else.
fn network_within(bytes: &[u8]) -> Option<FileNetwork> {
    let windows = bytes.windows(4).enumerate();
    let mut magics = windows.filter_map(|(at, there)| Some((at, FileNetwork::of_magic(there.try_into().ok()?)?)));
    magics.find(|(at, network)| frame(bytes, *at, *network).is_ok()).map(|(_, network)| network)
}

impl<'a> Iterator for Scan<'a> {
    type Item = Scanned<'a>;

    fn next(&mut self) -> Option<Scanned<'a>> {
        if self.at >= self.bytes.len() {
            return None;
        }
        match self.form {
            Form::Framed(network) => self.framed(network),
            Form::Bare(block) => {
                self.at = self.bytes.len();
                Some(Scanned::Block(block))
            }
            Form::Reserved => None,
        }
    }
}

impl FusedIterator for Scan<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::tests::data;

    /// Blocks as `b`, what is left out as its place, its length and the beginning of what is said of it.
    fn scanned(bytes: &[u8]) -> Vec<String> {
        let found = Scan::new(bytes).unwrap().map(|found| match found {
            Scanned::Block(_) => "b".to_owned(),
            Scanned::LeftOut(LeftOut { at, bytes, why }) => {
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
            let frame = bytes[at..at + FRAME + length].to_vec();
            at += frame.len();
            frame
        })
    }

    #[test]
    fn zeros_between_blocks_and_behind_them_are_no_matter() {
        let [a, b, c] = frames();
        let file = [&a[..], &[0; 100], &b, &[0; 3], &c, &[0; 1_000]].concat();
        assert_eq!(scanned(&file), ["b", "b", "b"]);
        assert_eq!(scanned(&[&[0; 100][..], &a].concat()), ["b"]);
        assert_eq!(scanned(&[0; 100]), [""; 0]);
    }

    #[test]
    fn half_a_block_is_left_out_wherever_it_is() {
        let [a, b, c] = frames();
        // It does not end in zeros, which would count as room that was reserved.
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
    fn what_is_no_block_is_named_by_its_magic() {
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
