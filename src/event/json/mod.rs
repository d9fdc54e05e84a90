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
//! Fields may come in any order. A missing field and an unknown field are refused. serde derives both directions from
//! the declarations; serde_json writes. Events borrow, and errors name the path of a field, which serde_json's reader
//! gives neither: [`Node`] holds the decoded bytes, and its [`Deserializer`](de::Deserializer) adds the path.

mod node;
mod reader;
pub(super) mod values;

use std::fmt;

use serde::{
    Serialize,
    de::{self, Expected, Unexpected},
};

use super::{DecodeError, Event, Kind, read_event};

pub(super) use node::Node;

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
    fn within(mut self, field: &str) -> Self {
        let separator = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{field}{separator}{}", self.field);
        self
    }
}

impl de::Error for JsonError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        JsonError::new(problem.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        JsonError::new(format!("is not {wanted}"))
    }

    fn missing_field(field: &'static str) -> Self {
        JsonError::new("is missing").within(field)
    }

    fn unknown_field(field: &str, _: &'static [&'static str]) -> Self {
        JsonError::new("is not a field of this object").within(&field.escape_debug().to_string())
    }
}

/// Returns an event as one line of JSON, without the line break.
pub fn to_json(event: &Event<'_>) -> String {
    write_line(event)
}

/// Returns a value of a declared type as one line of JSON.
pub(super) fn write_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("declared types have no maps, and a string takes all bytes")
}

/// Converts an event from JSON to its message, as [`Event::encode`] writes it.
///
/// # Errors
/// Fails where the text is no JSON object, or a field is missing, unknown or has an invalid value.
pub fn from_json(text: &str) -> Result<Vec<u8>, JsonError> {
    let mut node = Node::parse(text)?;
    let name = node.remove("event")?;
    let kind = Kind::ALL.into_iter().find(|kind| matches!(&name, Node::Text(text, _) if text == kind.name()));
    let kind = kind.ok_or_else(|| name.not_one_of(&Kind::ALL.map(Kind::name)).within("event"))?;
    let message = read_event(kind, &node).map_err(|error| error.within(kind.name()))?.encode();
    // The rules of fields are those of the binary form.
    Event::decode(&message)?;
    Ok(message)
}
