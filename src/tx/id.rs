//! 32-byte identifiers. Bytes are in *internal* order; text is in the reversed order that explorers show.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Unexpected, Visitor},
};

/// Error of a text that is no id: an id is 64 hexadecimal digits, in an outpoint followed by `:` and an output index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not {1}")]
pub struct ParseIdError(String, &'static str);

/// Double SHA-256 of a transaction's standard serialisation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Txid(pub [u8; 32]);

/// Hash of an output, to which its slot commits: see [`crate::tx::utxo_hash`]. Text is in internal order, because no
/// reversed form is customary.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UtxoHash(pub [u8; 32]);

/// Name of one output of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Outpoint {
    /// The transaction that created the output.
    pub txid: Txid,
    /// Index of the output in that transaction.
    pub vout: u32,
}

impl Outpoint {
    /// Returns the page of the output's slot and the offset within the page, for pages of so many slots.
    pub fn place(self, slots_per_page: u32) -> (u32, u32) {
        (self.vout / slots_per_page, self.vout % slots_per_page)
    }
}

impl fmt::Display for Txid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0;
        bytes.reverse();
        f.write_str(&hex::encode(bytes))
    }
}

impl FromStr for Txid {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)
            .map_err(|_| ParseIdError(text.to_owned(), "a transaction id (64 hexadecimal digits)"))?;
        bytes.reverse();
        Ok(Txid(bytes))
    }
}

impl fmt::Display for UtxoHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Display for Outpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.txid, self.vout)
    }
}

impl FromStr for Outpoint {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let wrong = || ParseIdError(text.to_owned(), "an outpoint (txid:vout)");
        let (txid, vout) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Outpoint { txid: txid.parse().map_err(|_| wrong())?, vout: vout.parse().map_err(|_| wrong())? })
    }
}

/// Implements `Debug` and serde by the text of a type.
macro_rules! show_as_text {
    ($($name:ty: $wanted:literal),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                read_text(deserializer, $wanted, |text| text.parse().ok())
            }
        }
    )*};
}
show_as_text! {
    Txid: "a transaction id of 64 hexadecimal digits",
    UtxoHash: "a UTXO hash of 64 hexadecimal digits",
    Outpoint: "an outpoint: a transaction id, a colon and an output index"
}

/// Reads a text that `parse` accepts; an error names what is `wanted`.
pub(crate) fn read_text<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    wanted: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, D::Error> {
    struct TextVisitor<'w, P>(&'w str, P);

    impl<T, P: Fn(&str) -> Option<T>> Visitor<'_> for TextVisitor<'_, P> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            (self.1)(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
        }
    }

    deserializer.deserialize_str(TextVisitor(wanted, parse))
}

impl FromStr for UtxoHash {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)
            .map_err(|_| ParseIdError(text.to_owned(), "a UTXO hash (64 hexadecimal digits)"))?;
        Ok(UtxoHash(bytes))
    }
}

/// Map by transaction id with a fixed hash function, because two runs from one seed must not differ. No code relies on
/// the iteration order.
pub type TxidMap<V> = std::collections::HashMap<Txid, V, foldhash::fast::FixedState>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_reversed_and_round_trips() {
        let text = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";
        let txid: Txid = text.parse().unwrap();
        assert_eq!(txid.0[0], 0x3b);
        assert_eq!(txid.to_string(), text);
        let outpoint: Outpoint = format!("{text}:7").parse().unwrap();
        assert_eq!(outpoint.to_string(), format!("{text}:7"));
    }

    #[test]
    fn bad_text_is_refused_with_the_text_in_the_error() {
        for text in ["", "abc", "zz", &"0".repeat(63), &"0".repeat(66)] {
            let error = text.parse::<Txid>().unwrap_err();
            assert!(error.to_string().contains(text));
        }
        assert!(format!("{}:-1", "0".repeat(64)).parse::<Outpoint>().is_err());
    }
}
