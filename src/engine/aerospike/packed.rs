//! MessagePack in the server's dialect for lists and expressions: text and blobs carry their particle type as a first
//! byte.
//!
//! Lists of bins and the variable parts of expressions are encoded here. The client's own values would be built element
//! by element and encoded twice.

#[cfg(test)]
const STRING: u8 = 3;
const BLOB: u8 = 4;

/// The particle type under which a packed list is sent.
pub const LIST: u8 = 20;

/// A buffer to which packed values are appended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Packed(pub Vec<u8>);

impl Packed {
    pub fn with_capacity(bytes: usize) -> Self {
        Packed(Vec::with_capacity(bytes))
    }

    /// Appends the head of a list of `length` values.
    pub fn list(&mut self, length: usize) {
        match length {
            ..16 => self.0.push(0x90 | length as u8),
            16..0x1_0000 => self.head(0xdc, &(length as u16).to_be_bytes()),
            _ => self.head(0xdd, &(length as u32).to_be_bytes()),
        }
    }

    pub fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub fn int(&mut self, value: i64) {
        match value {
            -32..0x80 => self.0.push(value as u8),
            0x80..0x100 => self.head(0xcc, &[value as u8]),
            0x100..0x1_0000 => self.head(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..0x1_0000_0000 => self.head(0xce, &(value as u32).to_be_bytes()),
            0x1_0000_0000.. => self.head(0xcf, &value.to_be_bytes()),
            -0x80..-32 => self.head(0xd0, &[value as u8]),
            -0x8000..-0x80 => self.head(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.head(0xd2, &(value as i32).to_be_bytes()),
            ..-0x8000_0000 => self.head(0xd3, &value.to_be_bytes()),
        }
    }

    pub fn blob(&mut self, bytes: &[u8]) {
        self.blob_of(&[bytes]);
    }

    /// Appends one blob made of several pieces.
    pub fn blob_of(&mut self, pieces: &[&[u8]]) {
        self.particle(BLOB, pieces);
    }

    #[cfg(test)]
    pub fn text(&mut self, text: &str) {
        self.particle(STRING, &[text.as_bytes()]);
    }

    fn particle(&mut self, kind: u8, pieces: &[&[u8]]) {
        let length = 1 + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        match length {
            ..32 => self.0.push(0xa0 | length as u8),
            32..0x100 => self.head(0xd9, &[length as u8]),
            0x100..0x1_0000 => self.head(0xda, &(length as u16).to_be_bytes()),
            _ => self.head(0xdb, &(length as u32).to_be_bytes()),
        }
        self.0.push(kind);
        pieces.iter().for_each(|piece| self.0.extend_from_slice(piece));
    }

    fn head(&mut self, marker: u8, length: &[u8]) {
        self.0.push(marker);
        self.0.extend_from_slice(length);
    }
}

#[cfg(test)]
mod tests {
    use aerospike::{
        Value,
        expressions::{Expression, blob_val, from_base64, from_packed_bytes, int_val, list_val, string_val},
    };

    use super::*;

    fn pack_by_client(expression: &Expression) -> Expression {
        from_base64(&expression.base64().unwrap()).unwrap()
    }

    fn packed(write: impl FnOnce(&mut Packed)) -> Expression {
        let mut packed = Packed::default();
        write(&mut packed);
        from_packed_bytes(packed.0)
    }

    #[test]
    fn numbers_are_packed_as_by_the_client() {
        for shift in 0..63 {
            for near in [-1, 0, 1] {
                for value in [(1_i64 << shift) + near, -((1_i64 << shift) + near)] {
                    assert_eq!(packed(|p| p.int(value)), pack_by_client(&int_val(value)), "{value}");
                }
            }
        }
        for value in [i64::MIN, i64::MAX] {
            assert_eq!(packed(|p| p.int(value)), pack_by_client(&int_val(value)), "{value}");
        }
    }

    #[test]
    fn blobs_and_text_are_packed_as_by_the_client() {
        for length in [0, 1, 30, 31, 32, 254, 255, 256, 65_534, 65_535, 65_536] {
            let bytes = vec![0x61; length];
            assert_eq!(packed(|p| p.blob(&bytes)), pack_by_client(&blob_val(bytes.clone())), "{length}");
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(packed(|p| p.text(&text)), pack_by_client(&string_val(text.clone())), "{length}");
        }
    }

    #[test]
    fn lists_are_packed_as_by_the_client() {
        for length in [0, 1, 15, 16, 65_535, 65_536] {
            // A list in an expression is quoted: a list of the code and the list itself.
            let quoted = packed(|p| {
                p.list(2);
                p.int(126);
                p.list(length);
                (0..length).for_each(|_| p.nil());
            });
            assert_eq!(quoted, pack_by_client(&list_val(vec![Value::Nil; length])), "{length}");
        }
    }
}
