//! Reading of declared types from JSON values; errors name the path of the field.

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
        value::{BorrowedBytesDeserializer, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use super::{NOT_A_FIELD, Node};
use crate::{event::DecodeError, tx::Txid};

/// Reads a value of a declared type; the value borrows the bytes that the node holds.
pub(in crate::event) fn read_node<'de, T: Deserialize<'de>>(node: &'de Node) -> Result<T, DecodeError> {
    serde_path_to_error::deserialize(node).map_err(|error| {
        let path = match error.path() {
            path if path.iter().len() == 0 => String::new(),
            path => path.to_string().escape_debug().to_string(),
        };
        error.into_inner().within(&path)
    })
}

macro_rules! whole_numbers {
    ($($method:ident, $visit:ident, $type:ty: $get:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            let wanted = format!("a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
            let Node::Number(number) = self else { return Err(self.mismatch(&wanted.as_str())) };
            let value = number.$get().and_then(|value| <$type>::try_from(value).ok());
            visitor.$visit(value.ok_or_else(|| DecodeError::broken_rule("", format!("{number} is not {wanted}")))?)
        }
    )*};
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = DecodeError;

    whole_numbers! {
        deserialize_u32, visit_u32, u32: as_u64;
        deserialize_u64, visit_u64, u64: as_u64;
        deserialize_i32, visit_i32, i32: as_i64;
        deserialize_i64, visit_i64, i64: as_i64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Node::Bool(value) => visitor.visit_bool(*value),
            other => Err(other.mismatch(&"a boolean")),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Node::Text(text, _) => visitor.visit_borrowed_str(text),
            other => Err(other.mismatch(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    /// Bytes are hexadecimal digits.
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let Node::Text(digits, bytes) = self else { return Err(self.mismatch(&"bytes as hexadecimal digits")) };
        let decoded = hex::decode(digits)
            .map_err(|error| DecodeError::broken_rule("", format!("is not hexadecimal: {error}")))?;
        visitor.visit_borrowed_bytes(bytes.get_or_init(|| decoded))
    }

    /// The only newtype is [`TxidList`](crate::event::TxidList): a list of ids that stands for their concatenation.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &str, visitor: V) -> Result<V::Value, DecodeError> {
        let Node::List(elements, bytes) = self else { return Err(self.mismatch(&"a list")) };
        let mut txids = Vec::with_capacity(32 * elements.len());
        for (index, element) in elements.iter().enumerate() {
            txids.extend(Txid::deserialize(element).map_err(|error| error.within(&format!("[{index}]")))?.0);
        }
        visitor.visit_newtype_struct(BorrowedBytesDeserializer::new(bytes.get_or_init(|| txids)))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Node::Null => visitor.visit_none(),
            value => visitor.visit_some(value),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self {
            Node::List(elements, _) => visitor.visit_seq(SeqDeserializer::new(elements.iter())),
            other => Err(other.mismatch(&"a list")),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visit_members(self.members()?, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let (name, value) = match self {
            Node::Text(name, _) => (name, None),
            Node::Object(members) if members.len() == 1 => (&members[0].0, Some(&members[0].1)),
            _ => return Err(self.not_one_of(names)),
        };
        if !names.contains(&name.as_str()) {
            return Err(self.not_one_of(names));
        }
        visitor.visit_enum(NamedVariant { name, value })
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        Err(self.mismatch(&visitor))
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u128 f32 f64 char byte_buf unit unit_struct tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, DecodeError> for &'de Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

fn visit_members<'de, V: Visitor<'de>>(members: &'de [(String, Node)], visitor: V) -> Result<V::Value, DecodeError> {
    visitor.visit_map(MapDeserializer::new(members.iter().map(|(name, value)| (name.as_str(), value))))
}

/// Variant of an enum; no value stands for an object without fields.
struct NamedVariant<'de> {
    name: &'de str,
    value: Option<&'de Node>,
}

impl<'de> NamedVariant<'de> {
    fn members(&self) -> Result<&'de [(String, Node)], DecodeError> {
        self.value.map_or(Ok(&[]), Node::members)
    }
}

impl<'de> EnumAccess<'de> for NamedVariant<'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        seed.deserialize(self.name.into_deserializer()).map(|variant| (variant, self))
    }
}

impl<'de> VariantAccess<'de> for NamedVariant<'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        match self.members()? {
            [] => Ok(()),
            [(name, _), ..] => Err(DecodeError::broken_rule(name.escape_debug().to_string(), NOT_A_FIELD)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.value.ok_or_else(|| DecodeError::broken_rule("", "is missing"))?)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, DecodeError> {
        visit_members(self.members()?, visitor)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, DecodeError> {
        Err(de::Error::custom(&visitor as &dyn de::Expected))
    }
}
