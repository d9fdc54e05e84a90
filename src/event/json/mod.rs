//! JSON form of events: one object a line, so that a program in any language can feed the store.
//!
//! | value | JSON |
//! |---|---|
//! | bytes | hex |
//! | transaction id, block hash | hex in the reversed order that explorers show |
//! | variant without fields | `"name"` |
//! | variant with fields | `{"name": {…}}` |
//! | absent value of an option | `null` |
//!
//! Fields may come in any order. A missing field and an unknown field are refused. Reading writes the binary form field
//! by field, so that no value is held twice.

mod node;
mod values;

use std::fmt;

use super::{DecodeError, Event, Kind, codec::BodyWriter, transcode_event, write_event};

pub(super) use node::Node;
pub(super) use values::{Plain, TxidList};

/// Error of JSON that is no event: the field and the problem, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonError {
    /// Path of the field, from the outside in: `reorg.connected[2].hash`. Empty when the line is no JSON.
    pub field: String,
    /// Problem of the field's value.
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

    /// Adds `field` in front of the path: the error as the enclosing object reports it.
    pub(super) fn within(mut self, field: &str) -> Self {
        let separator = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{separator}{}", self.field);
        self
    }
}

/// Returns an event as one line of JSON, without the line break.
pub fn to_json(event: &Event<'_>) -> String {
    let mut line = String::new();
    write_members(&mut line, |object| {
        object.field("event", &event.kind().name());
        write_event(event, object);
    });
    line
}

/// Converts an event from JSON to its message, as [`Event::encode`] writes it.
///
/// # Errors
/// Fails where the text is no JSON object, or a field is missing, unknown or has an invalid value.
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

/// JSON form of a value. [`declare!`](super::declare) implements the trait for structures and enums.
pub(super) trait Json {
    /// Appends the JSON of the value.
    fn write(&self, out: &mut String);

    /// Converts `node` to the binary form of the value.
    fn transcode(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError>;
}

/// JSON form of a structure's fields, without the braces.
pub(super) trait Fields {
    /// Appends all fields as JSON.
    fn write_fields(&self, object: &mut ObjectWriter<'_>);

    /// Converts all fields to the binary form, in the order of the declaration.
    fn transcode_fields(object: &mut ObjectReader<'_>, sink: &mut BodyWriter) -> Result<(), JsonError>;
}

/// Writes the fields of one JSON object.
pub(super) struct ObjectWriter<'o> {
    out: &'o mut String,
    first: bool,
}

impl ObjectWriter<'_> {
    /// Appends a field. Names come from the code and need no escapes.
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

/// Appends a structure as an object.
pub(super) fn write_object(value: &impl Fields, out: &mut String) {
    write_members(out, |object| value.write_fields(object));
}

/// Appends a variant: the name, and the fields if the variant has any.
pub(super) fn write_variant(out: &mut String, name: &str, members: impl FnOnce(&mut ObjectWriter<'_>)) {
    let mut fields = String::new();
    write_members(&mut fields, members);
    match fields.as_str() {
        "{}" => out.push_str(&format!("\"{name}\"")),
        _ => out.push_str(&format!("{{\"{name}\":{fields}}}")),
    }
}

/// Appends a variant that holds one value without a field name.
pub(super) fn write_single(out: &mut String, name: &str, value: &impl Json) {
    write_members(out, |object| object.field(name, value));
}

/// Converts an object to the binary form of a structure.
pub(super) fn transcode_object<T: Fields>(node: &Node, sink: &mut BodyWriter) -> Result<(), JsonError> {
    let mut object = ObjectReader::new(node)?;
    T::transcode_fields(&mut object, sink)?;
    object.finish()
}

/// Finds the variant that `node` names and lets `fields` write its tag and fields.
pub(super) fn transcode_variant(
    node: &Node,
    names: &[&str],
    fields: impl FnOnce(&str, &mut ObjectReader<'_>) -> Result<(), JsonError>,
) -> Result<(), JsonError> {
    const NO_FIELDS: &Node = &Node::Object(Vec::new());
    let (name, members) = match node {
        Node::Text(name) => (name, NO_FIELDS),
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
        other => other.describe().to_owned(),
    };
    JsonError::new(format!("{found} is none of: {}", names.join(", ")))
}

/// Reads the fields of one object; each field is read once.
pub(super) struct ObjectReader<'n> {
    members: &'n [(String, Node)],
    taken: Vec<&'n str>,
}

impl<'n> ObjectReader<'n> {
    fn new(node: &'n Node) -> Result<Self, JsonError> {
        match node {
            Node::Object(members) => Ok(ObjectReader { members, taken: Vec::with_capacity(members.len()) }),
            other => Err(other.mismatch("an object")),
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

    /// Converts one field to its binary form.
    pub fn field<T: Json>(&mut self, name: &str, sink: &mut BodyWriter) -> Result<(), JsonError> {
        T::transcode(self.take(name)?, sink).map_err(|error| error.within(name))
    }

    fn finish(&self) -> Result<(), JsonError> {
        match self.members.iter().find(|(name, _)| !self.taken.contains(&name.as_str())) {
            Some((name, _)) => {
                Err(JsonError::new("is not a field of this object").within(&name.escape_debug().to_string()))
            }
            None => Ok(()),
        }
    }
}
