//! The JSON form of events: one object a line, so that a program in any language can feed the store.
//!
//! Bytes are hex; transaction ids and block hashes are hex in the reversed order that explorers show. An enum is
//! `"name"`, or `{"name": {…}}` where it has fields. Fields may come in any order; all must be there, `null` where
//! there is none; others are refused. Reading writes the binary form field by field, so nothing is owned twice.

mod node;
mod values;

use std::fmt;

use super::{DecodeError, Event, Kind, codec::Sink, transcode_event, write_event};

pub(super) use node::Node;
pub(super) use values::{Plain, TxidList};

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
