//! Filter expressions that are packed once, with holes for the values that differ from row to row.
//!
//! The client walks and encodes an expression several times for each row that carries it, which would be most of the
//! cost of a spend. Here the constant parts are bytes, packed when the engine opens. A row's filter is those bytes with
//! numbers and blobs in between.

use aerospike::ListReturnType;
use aerospike::expressions::{
    ExpType, Expression, bin_type, bool_bin, eq, from_packed_bytes, int_val, list_bin, lists::get_by_index, not, or,
};
use base64::{Engine, engine::general_purpose::STANDARD};

use super::packed::Packed;

/// The value that marks a hole. No height, count or stamp is so large.
const HOLE: i64 = 0x7A5C_3B1D_9E4F_6A2B;
/// The code of "and" in a packed expression.
const AND: i64 = 16;

/// Returns an expression that marks a hole of a template.
pub fn hole() -> Expression {
    int_val(HOLE)
}

/// A value for one hole.
#[derive(Debug, Clone, Copy)]
pub enum Fill<'a> {
    Int(i64),
    /// A blob, given in pieces.
    Blob(&'a [&'a [u8]]),
}

/// A packed expression with holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The bytes around the holes: one piece more than there are holes.
    pieces: Vec<Vec<u8>>,
}

impl Template {
    /// Packs an expression; its [`hole`]s are filled in the order in which they are packed.
    pub fn new(expression: &Expression) -> Self {
        let mut marker = Packed::default();
        marker.int(HOLE);
        let bytes = pack(expression);
        let mut pieces = Vec::new();
        let mut rest = bytes.as_slice();
        while let Some(at) = rest.windows(marker.0.len()).position(|window| window == marker.0) {
            pieces.push(rest[..at].to_vec());
            rest = &rest[at + marker.0.len()..];
        }
        pieces.push(rest.to_vec());
        Template { pieces }
    }

    /// Appends the expression with its holes filled.
    pub fn fill(&self, out: &mut Packed, fills: &[Fill<'_>]) {
        debug_assert_eq!(fills.len() + 1, self.pieces.len());
        for (piece, fill) in self.pieces.iter().zip(fills) {
            out.0.extend_from_slice(piece);
            match fill {
                Fill::Int(number) => out.int(*number),
                Fill::Blob(pieces) => out.blob_of(pieces),
            }
        }
        if let Some(last) = self.pieces.last() {
            out.0.extend_from_slice(last);
        }
    }

    /// Estimates the bytes of the filled expression, blobs aside.
    pub fn size(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len() + 9).sum()
    }
}

/// Packs an expression that is the same for every row.
pub fn pack(expression: &Expression) -> Vec<u8> {
    let text = expression.base64().expect("expressions written here pack, as the tests of each show");
    STANDARD.decode(text).expect("the client writes valid base64")
}

/// Packs an expression, so that the client copies its bytes instead of walking it.
pub fn prepack(expression: &Expression) -> Expression {
    from_packed_bytes(pack(expression))
}

/// Conditions that are the same for every row, in the form in which "and" packs its arguments.
#[derive(Debug, Clone, Default)]
pub struct PackedConditions {
    count: usize,
    bytes: Vec<u8>,
}

impl PackedConditions {
    pub fn new(conditions: &[Expression]) -> Self {
        let bytes = conditions.iter().flat_map(pack).collect();
        PackedConditions { count: conditions.len(), bytes }
    }

    /// Starts an "and" of these conditions and `more` conditions that the caller appends to the returned bytes. `room`
    /// is their estimated size in bytes.
    pub fn and(&self, more: usize, room: usize) -> Packed {
        let mut out = Packed::with_capacity(8 + self.bytes.len() + room);
        out.list(1 + self.count + more);
        out.int(AND);
        out.0.extend_from_slice(&self.bytes);
        out
    }
}

/// Tests that the bin is absent, the cheap common case of every mark.
pub fn absent(bin: &str) -> Expression {
    eq(bin_type(bin), int_val(0))
}

/// Tests that a boolean is absent, or false as the reference system writes it.
pub fn unset(bin: &str) -> Expression {
    or(vec![absent(bin), not(bool_bin(bin))])
}

/// Reads the blob at an index (a hole) of a list.
pub fn blob_at(bin: &str) -> Expression {
    get_by_index(ListReturnType::VALUES, ExpType::Blob, hole(), list_bin(bin), &[])
}

#[cfg(test)]
mod tests {
    use aerospike::expressions::{and, blob_val};

    use super::*;

    #[test]
    fn a_filled_template_equals_the_expression_with_those_values() {
        let template = Template::new(&eq(blob_at("utxos"), hole()));
        for (index, length) in [(0, 0), (1_000, 31), (-1, 32), (70_000, 300)] {
            let blob = vec![7; length];
            let mut filled = Packed::default();
            let (left, right) = blob.split_at(length / 2);
            template.fill(&mut filled, &[Fill::Int(index), Fill::Blob(&[left, right])]);
            let at = get_by_index(ListReturnType::VALUES, ExpType::Blob, int_val(index), list_bin("utxos"), &[]);
            assert_eq!(filled.0, pack(&eq(at, blob_val(blob))));
        }
    }

    #[test]
    fn constant_and_appended_conditions_make_one_and() {
        let constant = [absent("a"), unset("b")];
        let mut out = PackedConditions::new(&constant).and(1, 0);
        Template::new(&eq(hole(), int_val(3))).fill(&mut out, &[Fill::Int(4)]);
        let [a, b] = constant;
        assert_eq!(out.0, pack(&and(vec![a, b, eq(int_val(4), int_val(3))])));
    }
}
