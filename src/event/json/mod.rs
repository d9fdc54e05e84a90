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
//! gives neither: [`Node`] holds the decoded bytes, and `serde_path_to_error` finds the path.

mod node;
mod reader;
pub(super) mod values;

use std::fmt;

use serde::{
    Serialize,
    de::{self, Expected, Unexpected},
};

use super::{DecodeError, Event, Kind, read_event};

pub(super) use {node::Node, reader::read_node};

/// Problem of a field that the type does not declare.
const NOT_A_FIELD: &str = "is not a field of this object";

impl de::Error for DecodeError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        DecodeError::broken_rule("", problem.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, wanted: &dyn Expected) -> Self {
        DecodeError::broken_rule("", format!("is not {wanted}"))
    }

    fn missing_field(field: &'static str) -> Self {
        DecodeError::broken_rule(field, "is missing")
    }

    fn unknown_field(_: &str, _: &'static [&'static str]) -> Self {
        DecodeError::broken_rule("", NOT_A_FIELD)
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
pub fn from_json(text: &str) -> Result<Vec<u8>, DecodeError> {
    let mut node = Node::parse(text)?;
    let name = node.remove("event")?;
    let kind = Kind::ALL.into_iter().find(|kind| matches!(&name, Node::Text(text, _) if text == kind.name()));
    let kind = kind.ok_or_else(|| name.not_one_of(&Kind::ALL.map(Kind::name)).within("event"))?;
    let message = read_event(kind, &node).map_err(|error| error.within(kind.name()))?.encode();
    // The rules of fields are those of the binary form.
    Event::decode(&message)?;
    Ok(message)
}
