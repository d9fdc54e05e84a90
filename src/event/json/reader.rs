//! Reading of declared types from JSON values; errors name the path of the field.

use std::slice::Iter;

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
        value::BorrowedBytesDeserializer,
    },
    forward_to_deserialize_any,
};

use super::{JsonError, Node};
use crate::tx::Txid;

macro_rules! whole_numbers {
    ($($method:ident, $visit:ident, $type:ty: $get:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
            let wanted = format!("a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
            let Node::Number(number) = self else { return Err(self.mismatch(&wanted.as_str())) };
            let value = number.$get().and_then(|value| <$type>::try_from(value).ok());
            visitor.$visit(value.ok_or_else(|| JsonError::new(format!("{number} is not {wanted}")))?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = JsonError;

    whole_numbers! {
        deserialize_u32, visit_u32, u32: as_u64;
        deserialize_u64, visit_u64, u64: as_u64;
        deserialize_i32, visit_i32, i32: as_i64;
        deserialize_i64, visit_i64, i64: as_i64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self {
            Node::Bool(value) => visitor.visit_bool(*value),
            other => Err(other.mismatch(&"a boolean")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self {
            Node::Text(text, _) => visitor.visit_borrowed_str(text),
            other => Err(other.mismatch(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        self.deserialize_str(visitor)
    }

    /// Bytes are hexadecimal digits.
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        let Node::Text(digits, bytes) = self else { return Err(self.mismatch(&"bytes as hexadecimal digits")) };
        let decoded = hex::decode(digits).map_err(|error| JsonError::new(format!("is not hexadecimal: {error}")))?;
        visitor.visit_borrowed_bytes(bytes.get_or_init(|| decoded))
    }

    /// The only newtype is [`TxidList`](super::values::txid_list::TxidList): a list of ids that stands for their
    /// concatenation.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &str, visitor: V) -> Result<V::Value, JsonError> {
        let Node::List(elements, bytes) = self else { return Err(self.mismatch(&"a list")) };
        let mut txids = Vec::with_capacity(32 * elements.len());
        for (index, element) in elements.iter().enumerate() {
            txids.extend(Txid::deserialize(element).map_err(|error| error.within(&format!("[{index}]")))?.0);
        }
        visitor.visit_newtype_struct(BorrowedBytesDeserializer::new(bytes.get_or_init(|| txids)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self {
            Node::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        match self {
            Node::List(elements, _) => visitor.visit_seq(Elements { all: elements, next: 0 }),
            other => Err(other.mismatch(&"a list")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        visitor.visit_map(Members::new(self.members()?))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, JsonError> {
        let (name, value) = match self {
            Node::Text(name, _) => (name, None),
            Node::Object(members) if members.len() == 1 => (&members[0].0, Some(&members[0].1)),
            _ => return Err(self.not_one_of(names)),
        };
        if !names.contains(&name.as_str()) {
            return Err(self.not_one_of(names));
        }
        visitor.visit_enum(NamedVariant { name, value }).map_err(|error| error.within(name))
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, JsonError> {
        Err(self.mismatch(&visitor))
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 f32 f64 char byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

/// Elements of a list; an error names the index.
struct Elements<'de> {
    all: &'de [Node],
    next: usize,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = JsonError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, JsonError> {
        let Some(element) = self.all.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        seed.deserialize(element).map(Some).map_err(|error| error.within(&format!("[{index}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.all.len() - self.next)
    }
}

/// Fields of an object; an error names the field.
struct Members<'de> {
    rest: Iter<'de, (String, Node)>,
    value: Option<&'de (String, Node)>,
}

impl<'de> Members<'de> {
    fn new(members: &'de [(String, Node)]) -> Self {
        Members { rest: members.iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = JsonError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, JsonError> {
        self.value = self.rest.next();
        self.value.map(|(name, _)| seed.deserialize(name.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, JsonError> {
        let (name, value) = self.value.ok_or_else(|| JsonError::new("a field has no value"))?;
        seed.deserialize(value).map_err(|error| error.within(name))
    }
}

/// Variant of an enum; no value stands for an object without fields.
struct NamedVariant<'de> {
    name: &'de str,
    value: Option<&'de Node>,
}

impl<'de> NamedVariant<'de> {
    fn members(&self) -> Result<&'de [(String, Node)], JsonError> {
        self.value.map_or(Ok(&[]), Node::members)
    }
}

impl<'de> EnumAccess<'de> for NamedVariant<'de> {
    type Error = JsonError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), JsonError> {
        seed.deserialize(self.name.into_deserializer()).map(|variant| (variant, self))
    }
}

impl<'de> VariantAccess<'de> for NamedVariant<'de> {
    type Error = JsonError;

    fn unit_variant(self) -> Result<(), JsonError> {
        match self.members()? {
            [] => Ok(()),
            [(name, _), ..] => Err(de::Error::unknown_field(name, &[])),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, JsonError> {
        seed.deserialize(self.value.ok_or_else(|| JsonError::new("is missing"))?)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, JsonError> {
        visitor.visit_map(Members::new(self.members()?))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, JsonError> {
        Err(de::Error::custom(&visitor as &dyn de::Expected))
    }
}
