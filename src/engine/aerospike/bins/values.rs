//! Values of bins: reading them from a record, building them for a write.

use aerospike::{IndexMap, Value};
use bytes::Bytes;

use super::super::{
    layout::Layout,
    packed::{LIST, Packed},
};
use crate::tx::Txid;

/// A record that this process cannot decode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// The named bin is missing, or has a value that the bin cannot have.
    #[error("the record is damaged: bin `{0}` is missing or has a bad value")]
    Bin(&'static str),
    /// The layout has no bin of this name.
    #[error("the record has the bin `{0}`, which the layout `{layout}` of this version does not have", layout = .1)]
    UnknownBin(String, Layout),
    /// The record has the other layout.
    #[error(
        "the record has the layout `{stored}`, and this process took the store for one of the layout `{opened}`: start \
         the process again, and look for the program that wrote the record if the error comes again"
    )]
    OtherLayout { stored: Layout, opened: Layout },
    /// A later version wrote the record.
    #[error("the record has a form of a later version in bin `{0}`: use the program that wrote the store")]
    LaterVersion(&'static str),
}

/// Bins that are compared by name, at most.
const COMPARED: usize = 8;

/// The bins of a record, taken one by one.
pub struct BinReader(pub IndexMap<String, Value>);

impl BinReader {
    /// Takes a bin out. The order of the rest does not matter any more, so a swap is enough.
    fn take(&mut self, name: &str) -> Option<Value> {
        let value = match self.0.len() {
            0 => None,
            // Comparing a few names costs less than the hash of one.
            1..=COMPARED => {
                let at = self.0.keys().position(|bin| bin == name)?;
                self.0.swap_remove_index(at).map(|(_, value)| value)
            }
            _ => self.0.swap_remove(name),
        };
        value.filter(|value| *value != Value::Nil)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| *value != Value::Nil)
    }

    /// Returns the name of a bin that was not taken; `None`: all were.
    pub fn first_name(&self) -> Option<&str> {
        self.0.iter().find(|(_, value)| **value != Value::Nil).map(|(name, _)| name.as_str())
    }

    /// Takes a boolean; an absent bin reads as false.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, BadRecord> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(BadRecord::Bin(name)),
        }
    }

    pub fn optional<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<Option<T>, BadRecord> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => number(name, &value).map(Some),
        }
    }

    /// Takes a number; an absent bin reads as 0.
    pub fn number<T: TryFrom<u64> + Default>(&mut self, name: &'static str) -> Result<T, BadRecord> {
        Ok(self.optional(name)?.unwrap_or_default())
    }

    pub fn required<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<T, BadRecord> {
        self.optional(name)?.ok_or(BadRecord::Bin(name))
    }

    pub fn text(&mut self, name: &'static str) -> Result<String, BadRecord> {
        match self.take(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(BadRecord::Bin(name)),
        }
    }

    pub fn optional_blob(&mut self, name: &'static str) -> Result<Option<Vec<u8>>, BadRecord> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Blob(bytes)) => Ok(Some(bytes)),
            Some(_) => Err(BadRecord::Bin(name)),
        }
    }

    pub fn array<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], BadRecord> {
        self.optional_array(name)?.ok_or(BadRecord::Bin(name))
    }

    pub fn optional_array<const N: usize>(&mut self, name: &'static str) -> Result<Option<[u8; N]>, BadRecord> {
        let bytes = self.optional_blob(name)?;
        bytes.map(|bytes| bytes.try_into().map_err(|_| BadRecord::Bin(name))).transpose()
    }

    pub fn optional_list(&mut self, name: &'static str) -> Result<Option<Vec<Value>>, BadRecord> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(BadRecord::Bin(name)),
        }
    }

    /// Takes a list; an absent bin reads as empty.
    pub fn list(&mut self, name: &'static str) -> Result<Vec<Value>, BadRecord> {
        Ok(self.optional_list(name)?.unwrap_or_default())
    }

    /// Takes a list of numbers; an absent bin reads as empty.
    pub fn numbers<T: TryFrom<u64>, C: FromIterator<T>>(&mut self, name: &'static str) -> Result<C, BadRecord> {
        self.list(name)?.iter().map(|value| number(name, value)).collect()
    }

    /// Takes the pairs of a map; an absent bin reads as empty.
    pub fn map(&mut self, name: &'static str) -> Result<Vec<(Value, Value)>, BadRecord> {
        self.take(name).map_or(Ok(Vec::new()), |value| pairs(name, value))
    }
}

/// Returns the pairs of a map in any of the client's three forms.
pub fn pairs(name: &'static str, value: Value) -> Result<Vec<(Value, Value)>, BadRecord> {
    match value {
        Value::HashMap(map) => Ok(map.into_iter().collect()),
        Value::OrderedMap(map) => Ok(map.into_iter().collect()),
        Value::SortedMap(map) => Ok(map.into_iter().collect()),
        _ => Err(BadRecord::Bin(name)),
    }
}

pub fn number<T: TryFrom<u64>>(name: &'static str, value: &Value) -> Result<T, BadRecord> {
    match value {
        Value::Int(number) => T::try_from(*number as u64).map_err(|_| BadRecord::Bin(name)),
        _ => Err(BadRecord::Bin(name)),
    }
}

pub fn blob(name: &'static str, value: Value) -> Result<Vec<u8>, BadRecord> {
    match value {
        Value::Blob(bytes) => Ok(bytes),
        _ => Err(BadRecord::Bin(name)),
    }
}

pub fn txid(name: &'static str, value: Option<Value>) -> Result<Txid, BadRecord> {
    let bytes = blob(name, value.ok_or(BadRecord::Bin(name))?)?;
    bytes.try_into().map(Txid).map_err(|_| BadRecord::Bin(name))
}

/// Builds a number. The server's numbers are signed; the few values that use all 64 bits are read back unchanged.
pub fn int(number: impl Into<u64>) -> Value {
    Value::Int(number.into() as i64)
}

pub fn packed_list(packed: Packed) -> Value {
    Value::Unknown(LIST, packed.0)
}

/// Builds a packed list of numbers.
pub fn int_list(numbers: impl ExactSizeIterator<Item = u32>) -> Value {
    let mut packed = Packed::with_capacity(3 + 5 * numbers.len());
    packed.list(numbers.len());
    numbers.for_each(|number| packed.int(number.into()));
    packed_list(packed)
}

/// Builds a blob from shared bytes.
pub fn blob_value(bytes: &Bytes) -> Value {
    Value::Blob(bytes.to_vec())
}
