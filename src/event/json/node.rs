//! JSON values as read, before their types are known.

use std::{cell::OnceCell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, Expected, MapAccess, SeqAccess, Visitor},
};

use crate::event::DecodeError;

/// JSON value. An object keeps the order of its fields and has no field twice. Texts and lists hold the bytes that they
/// stand for once a field has decoded them, so that an event can borrow the bytes.
pub(in crate::event) enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String, OnceCell<Vec<u8>>),
    List(Vec<Node>, OnceCell<Vec<u8>>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Parses the text of one value.
    pub fn parse(text: &str) -> Result<Self, DecodeError> {
        serde_json::from_str(text).map_err(|error| DecodeError::broken_rule("", format!("not JSON: {error}")))
    }

    /// Takes a field out of an object.
    pub fn remove(&mut self, name: &str) -> Result<Node, DecodeError> {
        let Node::Object(members) = self else { return Err(self.mismatch(&"an object")) };
        match members.iter().position(|(member, _)| member == name) {
            Some(index) => Ok(members.remove(index).1),
            None => Err(DecodeError::broken_rule(name, "is missing")),
        }
    }

    pub fn describe(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Number(_) => "a number",
            Node::Text(..) => "a text",
            Node::List(..) => "a list",
            Node::Object(_) => "an object",
        }
    }

    /// Returns the error of a value that is not of the expected form.
    pub fn mismatch(&self, wanted: &dyn Expected) -> DecodeError {
        DecodeError::broken_rule("", format!("{} is not {wanted}", self.describe()))
    }

    /// Returns the error of a value that names none of the variants.
    pub fn not_one_of(&self, names: &[&str]) -> DecodeError {
        let found = match self {
            Node::Text(name, _) => format!("`{}`", name.escape_debug()),
            Node::Object(members) if members.len() == 1 => format!("`{}`", members[0].0.escape_debug()),
            other => other.describe().to_owned(),
        };
        DecodeError::broken_rule("", format!("{found} is none of: {}", names.join(", ")))
    }

    pub fn members(&self) -> Result<&[(String, Node)], DecodeError> {
        match self {
            Node::Object(members) => Ok(members),
            other => Err(other.mismatch(&"an object")),
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
        serde_json::Number::from_f64(value).map(Node::Number).ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        self.visit_string(value.to_owned())
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Text(value, OnceCell::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Node, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = sequence.next_element()? {
            elements.push(element);
        }
        Ok(Node::List(elements, OnceCell::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members: Vec<(String, Node)> = Vec::new();
        while let Some((name, node)) = map.next_entry::<String, Node>()? {
            members.push((name, node));
        }
        match find_repeated(&members) {
            Some(name) => Err(de::Error::custom(format!("field `{}` is there twice", name.escape_debug()))),
            None => Ok(Node::Object(members)),
        }
    }
}

/// Returns a name that two fields have. Sorting keeps the search fast for any number of fields, which the sender
/// chooses.
fn find_repeated(members: &[(String, Node)]) -> Option<&str> {
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
