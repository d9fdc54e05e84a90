//! The JSON form of events: one object a line, so that a program in any language can feed the store.
//!
//! Bytes are hex; transaction ids and block hashes are hex in the reversed order that explorers show. An enum is
//! `"name"`, or `{"name": {…}}` where it has fields. Fields may come in any order; all must be there, `null` where
//! there is none; others are refused. Reading writes the binary form field by field, so nothing is owned twice.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use super::{DecodeError, Event, Kind, codec::Sink, transcode_event, write_event};
use crate::tx::{Outpoint, Txid, UtxoHash};

/// JSON that is no event: where and why. One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// The field, from the outside in: `reorg.connected[2].hash`. Empty when the line is no JSON.
    pub field: String,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.problem),
            field => write!(f, "{field}: {}", self.problem),
        }
    }
}

impl std::error::Error for JsonError {}

impl From<DecodeError> for JsonError {
    fn from(error: DecodeError) -> Self {
        JsonError { field: error.field, problem: error.problem.to_string() }
    }
}

impl JsonError {
    fn new(problem: impl Into<String>) -> Self {
        JsonError { field: String::new(), problem: problem.into() }
    }

    /// The same error, seen from the object that holds it in `field`.
    pub(super) fn within(mut self, field: &str) -> Self {
        let joint = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{joint}{}", self.field);
        self
    }
}

/// One event as one line of JSON, without the line's end.
pub fn to_json(event: &Event<'_>) -> String {
    let mut line = String::new();
    write_members(&mut line, |object| {
        object.field("event", &event.kind().name());
        write_event(event, object);
    });
    line
}

/// The message ([`Event::encode`]) of an event that is given as JSON.
///
/// # Errors
/// The text is no JSON object, lacks a field, has one too many, or one with a value that it must not have.
pub fn from_json(text: &str) -> Result<Vec<u8>, JsonError> {
    let node = Node::parse(text)?;
    let mut object = ObjectReader::new(&node)?;
    let name = object.take("event")?;
    let kind = match name {
        Node::Text(text) => Kind::ALL.into_iter().find(|kind| kind.name() == text),
        _ => None,
    };
    let names = Kind::ALL.map(Kind::name);
    let kind = kind.ok_or_else(|| not_one_of(name, &names).within("event"))?;
    let message = transcode_event(kind, &mut object)
        .and_then(|message| object.finish().map(|()| message))
        .map_err(|error| error.within(kind.name()))?;
    Event::decode(&message)?;
    Ok(message)
}

/// What has a JSON form. Structures and enums get this from [`declare!`](super::declare).
pub(super) trait Json {
    /// Appends the value.
    fn write(&self, out: &mut String);

    /// Writes the binary form of what `node` says.
    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError>;
}

/// A structure's fields, without the braces around them.
pub(super) trait Fields {
    /// Appends all fields.
    fn write_fields(&self, object: &mut ObjectWriter<'_>);

    /// Writes the binary form of all fields, in their own order.
    fn transcode_fields(object: &mut ObjectReader<'_>, sink: &mut Sink) -> Result<(), JsonError>;
}

/// Writes the fields of one object.
pub(super) struct ObjectWriter<'o> {
    out: &'o mut String,
    first: bool,
}

impl ObjectWriter<'_> {
    /// Appends a field. Names are ours and need no escapes.
    pub fn field(&mut self, name: &str, value: &impl Json) {
        if !std::mem::take(&mut self.first) {
            self.out.push(',');
        }
        self.out.push_str(&format!("\"{name}\":"));
        value.write(self.out);
    }
}

fn write_members(out: &mut String, members: impl FnOnce(&mut ObjectWriter<'_>)) {
    out.push('{');
    members(&mut ObjectWriter { out: &mut *out, first: true });
    out.push('}');
}

/// Appends a structure.
pub(super) fn write_object(value: &impl Fields, out: &mut String) {
    write_members(out, |object| value.write_fields(object));
}

/// Appends a variant: its name, and its fields if there are any.
pub(super) fn write_variant(out: &mut String, name: &str, members: impl FnOnce(&mut ObjectWriter<'_>)) {
    let mut fields = String::new();
    write_members(&mut fields, members);
    match fields.as_str() {
        "{}" => out.push_str(&format!("\"{name}\"")),
        _ => out.push_str(&format!("{{\"{name}\":{fields}}}")),
    }
}

/// Appends a variant that is one value without a name.
pub(super) fn write_single(out: &mut String, name: &str, value: &impl Json) {
    write_members(out, |object| object.field(name, value));
}

/// Writes the binary form of a structure.
pub(super) fn transcode_object<T: Fields>(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
    let mut object = ObjectReader::new(node)?;
    T::transcode_fields(&mut object, sink)?;
    object.finish()
}

/// Finds out which variant `node` is, and lets `fields` write its tag and fields.
pub(super) fn transcode_variant(
    node: &Node,
    names: &[&str],
    fields: impl FnOnce(&str, &mut ObjectReader<'_>) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    const NONE: &Node = &Node::Object(Vec::new());
    let (name, members) = match node {
        Node::Text(name) => (name, NONE),
        Node::Object(members) if members.len() == 1 => (&members[0].0, &members[0].1),
        _ => return Err(not_one_of(node, names)),
    };
    if !names.contains(&name.as_str()) {
        return Err(not_one_of(node, names));
    }
    let mut object = ObjectReader::new(members).map_err(|error| error.within(name))?;
    fields(name, &mut object).and_then(|()| object.finish()).map_err(|error| error.within(name))
}

fn not_one_of(found: &Node, names: &[&str]) -> JsonError {
    let found = match found {
        Node::Text(name) => format!("`{}`", name.escape_debug()),
        Node::Object(members) if members.len() == 1 => format!("`{}`", members[0].0.escape_debug()),
        other => other.what().to_owned(),
    };
    JsonError::new(format!("{found} is none of: {}", names.join(", ")))
}

/// Reads the fields of one object, each once.
pub(super) struct ObjectReader<'n> {
    members: &'n [(String, Node)],
    taken: Vec<&'n str>,
}

impl<'n> ObjectReader<'n> {
    fn new(node: &'n Node) -> Result<Self, JsonError> {
        match node {
            Node::Object(members) => Ok(ObjectReader { members, taken: Vec::with_capacity(members.len()) }),
            other => Err(other.is_not("an object")),
        }
    }

    fn take(&mut self, name: &str) -> Result<&'n Node, JsonError> {
        let (name, node) = self
            .members
            .iter()
            .find(|(member, _)| member == name)
            .ok_or_else(|| JsonError::new("is missing").within(name))?;
        self.taken.push(name);
        Ok(node)
    }

    /// Writes the binary form of a field.
    pub fn field<T: Json>(&mut self, name: &str, sink: &mut Sink) -> Result<(), JsonError> {
        T::transcode(self.take(name)?, sink).map_err(|error| error.within(name))
    }

    fn finish(&self) -> Result<(), JsonError> {
        match self.members.iter().find(|(name, _)| !self.taken.contains(&name.as_str())) {
            Some((name, _)) => Err(JsonError::new("is no field of it").within(&name.escape_debug().to_string())),
            None => Ok(()),
        }
    }
}

/// A JSON value whose objects keep the order of their fields and have each only once.
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Reads the text of one value.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        serde_json::from_str(text).map_err(|error| JsonError::new(format!("not JSON: {error}")))
    }

    /// The value of the only field of an object, if it has this name.
    pub fn single(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Object(members) if members.len() == 1 && members[0].0 == name => Some(&members[0].1),
            _ => None,
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Number(_) => "a number",
            Node::Text(_) => "a text",
            Node::List(_) => "a list",
            Node::Object(_) => "an object",
        }
    }

    fn is_not(&self, wanted: &str) -> JsonError {
        JsonError::new(format!("{} is not {wanted}", self.what()))
    }

    fn text(&self, wanted: &str) -> Result<&str, JsonError> {
        match self {
            Node::Text(text) => Ok(text),
            other => Err(other.is_not(wanted)),
        }
    }

    fn list(&self) -> Result<&[Node], JsonError> {
        match self {
            Node::List(elements) => Ok(elements),
            other => Err(other.is_not("a list")),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Number(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        serde_json::Number::from_f64(value).map(Node::Number).ok_or_else(|| E::custom("a number without a value"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = sequence.next_element()? {
            elements.push(element);
        }
        Ok(Node::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members: Vec<(String, Node)> = Vec::new();
        while let Some((name, node)) = map.next_entry::<String, Node>()? {
            if members.iter().any(|(member, _)| *member == name) {
                return Err(de::Error::custom(format!("field `{}` is there twice", name.escape_debug())));
            }
            members.push((name, node));
        }
        Ok(Node::Object(members))
    }
}

macro_rules! whole_numbers {
    ($($type:ty: $get:ident),* $(,)?) => {$(
        impl Json for $type {
            fn write(&self, out: &mut String) {
                out.push_str(&self.to_string());
            }

            fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
                let wanted = || format!("is not a whole number from {} to {}", <$type>::MIN, <$type>::MAX);
                let Node::Number(number) = node else {
                    return Err(JsonError::new(format!("{} {}", node.what(), wanted())));
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

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        match node {
            Node::Bool(value) => sink.put(*value),
            other => return Err(other.is_not("a boolean")),
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

            fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
                let parsed = node.text($wanted)?.parse::<$type>();
                sink.put(parsed.map_err(|_| JsonError::new(concat!("is not ", $wanted)))?);
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

/// A block hash: reversed, as explorers show it.
impl Json for [u8; 32] {
    fn write(&self, out: &mut String) {
        Txid(*self).write(out);
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        let wanted = "a block hash of 64 hexadecimal digits";
        let parsed = node.text(wanted)?.parse::<Txid>();
        sink.put(parsed.map_err(|_| JsonError::new(format!("is not {wanted}")))?);
        Ok(())
    }
}

/// Bytes of a fixed number, in their own order.
pub(super) struct Plain<const N: usize>(pub [u8; N]);

impl<const N: usize> Json for Plain<N> {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("\"{}\"", hex::encode(self.0)));
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
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

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        Plain::<16>::transcode(node, sink)
    }
}

impl Json for &[u8] {
    fn write(&self, out: &mut String) {
        out.push_str(&format!("\"{}\"", hex::encode(self)));
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        let digits = node.text("bytes as hexadecimal digits")?;
        let bytes = hex::decode(digits).map_err(|error| JsonError::new(format!("is not hexadecimal: {error}")))?;
        sink.put(bytes.as_slice());
        Ok(())
    }
}

/// A concatenation of transaction ids; in JSON a list of them.
pub(super) struct TxidList<'a>(pub &'a [u8]);

impl Json for TxidList<'_> {
    fn write(&self, out: &mut String) {
        write_list::<Txid>(out, self.0.as_chunks().0.iter().map(|txid| Txid(*txid)));
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        let elements = node.list()?;
        sink.put_length(32 * elements.len());
        transcode_elements::<Txid>(elements, sink)
    }
}

impl Json for &str {
    fn write(&self, out: &mut String) {
        out.push_str(&serde_json::Value::from(*self).to_string());
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        sink.put(node.text("a text")?);
        Ok(())
    }
}

impl Json for String {
    fn write(&self, out: &mut String) {
        self.as_str().write(out);
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
        <&str>::transcode(node, sink)
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, out: &mut String) {
        write_list::<T>(out, self.iter());
    }

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
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

    fn transcode(node: &Node, sink: &mut Sink) -> Result<(), JsonError> {
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

fn transcode_elements<T: Json>(elements: &[Node], sink: &mut Sink) -> Result<(), JsonError> {
    for (index, element) in elements.iter().enumerate() {
        T::transcode(element, sink).map_err(|error| error.within(&format!("[{index}]")))?;
    }
    Ok(())
}
