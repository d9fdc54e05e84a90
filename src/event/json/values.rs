//! JSON forms of the values that a single field holds.

use super::{Json, JsonError, Node};
use crate::{
    event::codec::{BodyWriter, Wire},
    tx::{Outpoint, Txid, UtxoHash},
};

macro_rules! whole_numbers {
    ($($type:ty: $get:ident),* $(,)?) => {$(
        impl Json for $type {
            fn write(&self, out: &mut String) {
                out.push_str(&self.to_string());
            }

            fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
                let wanted = || format!("is not a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
                let Node::Number(number) = node else {
                    return Err(JsonError::new(format!("{} {}", node.describe(), wanted())));
                };
                let value = number.$get().and_then(|value| <$type>::try_from(value).ok());
                sink.put(value.ok_or_else(|| JsonError::new(format!("{number} {}", wanted())))?);
                Ok(())
            }
        }
    )*};
}
whole_numbers! { u32: as_u64, u64: as_u64, i32: as_i64, i64: as_i64 }

impl Json for bool {
    fn write(&self, out: &mut String) {
        out.push_str(if *self { "true" } else { "false" });
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        match node {
            Node::Bool(value) => sink.put(*value),
            other => return Err(other.mismatch("a boolean")),
        }
        Ok(())
    }
}

macro_rules! identifiers {
    ($($type:ty: $wanted:literal),* $(,)?) => {$(
        impl Json for $type {
            fn write(&self, out: &mut String) {
                out.push_str(&format!("\"{self}\""));
            }

            fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
                let parsed = node.text($wanted)?.parse::<$type>();
                parsed.map_err(|_| JsonError::new(concat!("is not ", $wanted)))?.encode(sink);
                Ok(())
            }
        }
    )*};
}
identifiers! {
    Txid: "a transaction id of 64 hexadecimal digits",
    UtxoHash: "a UTXO hash of 64 hexadecimal digits",
    Outpoint: "an outpoint: a transaction id, a colon and an output index",
}

/// A block hash in the reversed order that explorers show.
impl Json for [u8; 32] {
    fn write(&self, out: &mut String) {
        Txid(*self).write(out);
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        let wanted = "a block hash of 64 hexadecimal digits";
        let parsed = node.text(wanted)?.parse::<Txid>();
        parsed.map_err(|_| JsonError::new(format!("is not {wanted}")))?.encode(sink);
        Ok(())
    }
}

/// Bytes of a fixed number, not reversed.
pub(in crate::event) struct Plain<const N: usize>(pub [u8; N]);

impl<const N: usize> Json for Plain<N> {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("\"{}\"", hex::encode(self.0)));
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        let wanted = || format!("{} hexadecimal digits", 2 * N);
        let mut bytes = [0; N];
        hex::decode_to_slice(node.text(&wanted())?, &mut bytes)
            .map_err(|_| JsonError::new(format!("is not {}", wanted())))?;
        sink.put(bytes);
        Ok(())
    }
}

impl Json for [u8; 16] {
    fn write(&self, out: &mut String) {
        Plain(*self).write(out);
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        Plain::<16>::transcode(node, sink)
    }
}

impl Json for &[u8] {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("\"{}\"", hex::encode(self)));
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        let digits = node.text("bytes as hexadecimal digits")?;
        let bytes = hex::decode(digits).map_err(|error| JsonError::new(format!("is not hexadecimal: {error}")))?;
        sink.put(bytes.as_slice());
        Ok(())
    }
}

/// A concatenation of transaction ids in binary form; a list of ids in JSON.
pub(in crate::event) struct TxidList<'a>(pub &'a [u8]);

impl Json for TxidList<'_> {
    fn write(&self, out: &mut String) {
        write_list::<Txid>(out, self.0.as_chunks().0.iter().map(|txid| Txid(*txid)));
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        let elements = node.list()?;
        sink.put_length(32 * elements.len());
        transcode_elements::<Txid>(elements, sink)
    }
}

impl Json for &str {
    fn write(&self, out: &mut String) {
        out.push_str(&serde_json::Value::from(*self).to_string());
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        sink.put(node.text("a text")?);
        Ok(())
    }
}

impl Json for String {
    fn write(&self, out: &mut String) {
        self.as_str().write(out);
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        <&str>::transcode(node, sink)
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, out: &mut String) {
        write_list::<T>(out, self.iter());
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        let elements = node.list()?;
        sink.put_length(elements.len());
        transcode_elements::<T>(elements, sink)
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self, out: &mut String) {
        match self {
            Some(value) => value.write(out),
            None => out.push_str("null"),
        }
    }

    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
        sink.put(!matches!(node, Node::Null));
        match node {
            Node::Null => Ok(()),
            value => T::transcode(value, sink),
        }
    }
}

fn write_list<T: Json>(out: &mut String, elements: impl Iterator<Item = impl std::borrow::Borrow<T>>) {
    out.push('[');
    for (index, element) in elements.enumerate() {
        if index > 0 {
            out.push(',');
        }
        element.borrow().write(out);
    }
    out.push(']');
}

fn transcode_elements<T: Json>(elements: &[Node], sink: &mut BodyWriter) -> Result<(), JsonError> {
    for (index, element) in elements.iter().enumerate() {
        T::transcode(element, sink).map_err(|error| error.within(&format!("[{index}]")))?;
    }
    Ok(())
}
