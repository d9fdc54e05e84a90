//! Subtree objects of the reference system: the transaction ids of a part of a block.
//!
//! A header of eight bytes, which the reference writes before each file and strips where its HTTP server answers; root
//! hash (32 bytes), fees (u64), size in bytes (u64), number of nodes (u64); per node its txid (32 bytes), fee and
//! size (u64 each); number of conflicting nodes (u64), and the txid of each. Numbers are little-endian. In the first
//! subtree of a block the first node is a placeholder for the coinbase.

use crate::tx::Txid;

/// The txid of the placeholder for the coinbase.
const PLACEHOLDER: [u8; 32] = [0xFF; 32];
/// Headers of the reference's files of this kind: padded with spaces, and with zeros by older versions.
const FILE_HEADERS: [&[u8; 8]; 2] = [b"S-1.0   ", b"S-1.0\0\0\0"];
const HEADER_BYTES: usize = 56;
const NODE_BYTES: usize = 48;

/// Problem of a subtree object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum SubtreeError {
    #[error("its root hash is {found}")]
    OtherRoot { found: Txid },
    #[error("node {0} is a placeholder for the coinbase; only the first node of a block can be one")]
    Placeholder(u64),
    #[error("it ends after {0} bytes, within a field or a list")]
    Short(u64),
    #[error("it has bytes after its last field, at byte {0}")]
    Long(u64),
}

/// Reads a subtree object that comes in pieces.
#[derive(Debug)]
pub struct SubtreeParser {
    expected: [u8; 32],
    /// True: the first node may be the placeholder for the coinbase.
    is_first: bool,
    part: Part,
    /// Bytes of a field that is not whole yet.
    rest: Vec<u8>,
    received: u64,
    nodes: u64,
    txids: Vec<u8>,
}

/// The next field of the object.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// The header of the file, or the root hash.
    Start,
    Header,
    Nodes {
        left: u64,
    },
    ConflictCount,
    Conflicts {
        left: u64,
    },
    End,
}

impl SubtreeParser {
    /// Makes a parser of the subtree with this root hash; `is_first`: of the first one of its block.
    pub fn new(expected: [u8; 32], is_first: bool) -> Self {
        let (part, rest, txids) = (Part::Start, Vec::new(), Vec::new());
        SubtreeParser { expected, is_first, part, rest, received: 0, nodes: 0, txids }
    }

    /// Reads the next piece of the object.
    ///
    /// # Errors
    /// The object is not that subtree.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), SubtreeError> {
        let mut bytes = std::mem::take(&mut self.rest);
        bytes.extend_from_slice(piece);
        self.received += piece.len() as u64;
        let mut left = &bytes[..];
        if let Part::Start = self.part {
            if left.len() < FILE_HEADERS[0].len() {
                self.rest = bytes;
                return Ok(());
            }
            left = FILE_HEADERS.iter().find_map(|header| left.strip_prefix(&header[..])).unwrap_or(left);
            self.part = Part::Header;
        }
        while let Some((field, after)) = left.split_at_checked(self.part.bytes()) {
            if let Part::End = self.part {
                break;
            }
            self.read(field)?;
            left = after;
        }
        if let Part::End = self.part
            && !left.is_empty()
        {
            return Err(SubtreeError::Long(self.received - left.len() as u64));
        }
        self.rest = left.to_vec();
        Ok(())
    }

    /// Returns the txids of the subtree without the placeholder, 32 bytes each.
    ///
    /// # Errors
    /// The object has ended too early.
    pub fn finish(self) -> Result<Vec<u8>, SubtreeError> {
        match self.part {
            Part::End => Ok(self.txids),
            _ => Err(SubtreeError::Short(self.received)),
        }
    }

    fn read(&mut self, field: &[u8]) -> Result<(), SubtreeError> {
        self.part = match self.part {
            Part::Header => {
                let (found, counts) = field.split_first_chunk().unwrap_or((&PLACEHOLDER, &[]));
                if *found != self.expected {
                    return Err(SubtreeError::OtherRoot { found: Txid(*found) });
                }
                Part::nodes(last_number(counts))
            }
            Part::Nodes { left } => {
                let txid = &field[..32];
                match (txid == PLACEHOLDER, self.is_first && self.nodes == 0) {
                    (true, false) => return Err(SubtreeError::Placeholder(self.nodes)),
                    (true, true) => {}
                    (false, _) => self.txids.extend_from_slice(txid),
                }
                self.nodes += 1;
                Part::nodes(left - 1)
            }
            Part::ConflictCount => Part::conflicts(last_number(field)),
            Part::Conflicts { left } => Part::conflicts(left - 1),
            part @ (Part::Start | Part::End) => part,
        };
        Ok(())
    }
}

impl Part {
    fn nodes(left: u64) -> Self {
        if left == 0 { Part::ConflictCount } else { Part::Nodes { left } }
    }

    fn conflicts(left: u64) -> Self {
        if left == 0 { Part::End } else { Part::Conflicts { left } }
    }

    fn bytes(self) -> usize {
        match self {
            Part::Header => HEADER_BYTES,
            Part::Nodes { .. } => NODE_BYTES,
            Part::ConflictCount => 8,
            Part::Conflicts { .. } => 32,
            Part::Start | Part::End => 0,
        }
    }
}

/// Returns the number in the last eight bytes of a field.
fn last_number(field: &[u8]) -> u64 {
    field.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Encodes a subtree object with these nodes.
#[cfg(feature = "testkit")]
pub fn encode_subtree(root: [u8; 32], nodes: &[[u8; 32]], conflicting: &[[u8; 32]]) -> Vec<u8> {
    let mut object = root.to_vec();
    [0, 0, nodes.len() as u64].iter().for_each(|number| object.extend_from_slice(&number.to_le_bytes()));
    for node in nodes {
        object.extend_from_slice(node);
        object.extend_from_slice(&[0; 16]);
    }
    object.extend_from_slice(&(conflicting.len() as u64).to_le_bytes());
    conflicting.iter().for_each(|txid| object.extend_from_slice(txid));
    object
}

/// The node that stands for the coinbase.
#[cfg(feature = "testkit")]
pub const COINBASE_NODE: [u8; 32] = PLACEHOLDER;

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: [u8; 32] = [7; 32];

    fn parse(object: &[u8], is_first: bool, piece: usize) -> Result<Vec<u8>, SubtreeError> {
        let mut parser = SubtreeParser::new(ROOT, is_first);
        for piece in object.chunks(piece) {
            parser.push(piece)?;
        }
        parser.finish()
    }

    #[test]
    fn txids_are_read_from_pieces_of_any_size() {
        let object = encode_subtree(ROOT, &[PLACEHOLDER, [1; 32], [2; 32]], &[[1; 32]]);
        let expected = [[1; 32], [2; 32]].concat();
        let files = FILE_HEADERS.map(|header| [&header[..], &object].concat());
        for object in [&[object][..], &files].concat() {
            for piece in [1, 7, 48, 57, object.len()] {
                assert_eq!(parse(&object, true, piece), Ok(expected.clone()), "{piece}");
            }
        }
        assert_eq!(parse(&encode_subtree(ROOT, &[], &[]), false, 9), Ok(Vec::new()));
    }

    #[test]
    fn a_damaged_object_is_refused() {
        let object = encode_subtree(ROOT, &[[1; 32], [2; 32]], &[]);
        for len in 0..object.len() {
            assert_eq!(parse(&object[..len], true, 50), Err(SubtreeError::Short(len as u64)));
        }
        let longer = [&object[..], &[0]].concat();
        assert_eq!(parse(&longer, true, 50), Err(SubtreeError::Long(object.len() as u64)));
        let other = encode_subtree([8; 32], &[[1; 32]], &[]);
        assert_eq!(parse(&other, true, 50), Err(SubtreeError::OtherRoot { found: Txid([8; 32]) }));
        let second = encode_subtree(ROOT, &[[1; 32], PLACEHOLDER], &[]);
        assert_eq!(parse(&second, true, 50), Err(SubtreeError::Placeholder(1)));
        let not_first = encode_subtree(ROOT, &[PLACEHOLDER], &[]);
        assert_eq!(parse(&not_first, false, 50), Err(SubtreeError::Placeholder(0)));
        // A count that no object can have ends with the object, and allocates nothing.
        let mut counted = object.clone();
        counted[48..56].fill(0xFF);
        assert_eq!(parse(&counted, true, 50), Err(SubtreeError::Short(counted.len() as u64)));
    }
}
