//! JSON values as read, before their types are known.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};

use super::JsonError;

/// JSON value. An object keeps the order of its fields and has no field twice.
pub(in crate::event) enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

impl Node {
    /// Parses the text of one value.
    pub fn parse(text: &str) -> Result<Self, JsonError> {
        serde_json::from_str(text).map_err(|error| JsonError::new(format!("not JSON: {error}")))
    }

    /// Returns the value of an object's only field where the field has this name.
    pub fn single(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Object(members) if members.len() == 1 && members[0].0 == name => Some(&members[0].1),
            _ => None,
        }
    }

    pub fn describe(&self) -> &'static str {
        match self {
            Node::Null => "null",
            Node::Bool(_) => "a boolean",
            Node::Number(_) => "a number",
            Node::Text(_) => "a text",
            Node::List(_) => "a list",
            Node::Object(_) => "an object",
        }
    }

    /// Returns the error of a value that is not of the expected form.
    pub fn mismatch(&self, wanted: &str) -> JsonError {
        JsonError::new(format!("{} is not {wanted}", self.describe()))
    }

    pub fn text(&self, wanted: &str) -> Result<&str, JsonError> {
        match self {
            Node::Text(text) => Ok(text),
            other => Err(other.mismatch(wanted)),
        }
    }

    pub fn list(&self) -> Result<&[Node], JsonError> {
        match self {
            Node::List(elements) => Ok(elements),
            other => Err(other.mismatch("a list")),
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
