//! [`BoundedList`]: a list from outside, whose memory has a bound.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};

/// A list of a request in JSON, of at most 100,000 elements. An element can need many times the memory of its
/// text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BoundedList<T>(pub Vec<T>);

/// Most elements of a list of a request in JSON: the greatest value of `http.max_batch`.
const LONGEST_LIST: usize = 100_000;

impl<'de, T: Deserialize<'de>> Deserialize<'de> for BoundedList<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = BoundedList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {LONGEST_LIST} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            if list.len() == LONGEST_LIST {
                return Err(A::Error::custom(format!("a list has at most {LONGEST_LIST} elements")));
            }
            list.push(element);
        }
        Ok(BoundedList(list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_bound() {
        let list = |count: usize| serde_json::to_vec(&vec![0; count]).unwrap();
        assert_eq!(serde_json::from_slice::<BoundedList<u8>>(&list(LONGEST_LIST)).unwrap().0.len(), LONGEST_LIST);
        let refused = serde_json::from_slice::<BoundedList<u8>>(&list(LONGEST_LIST + 1)).unwrap_err().to_string();
        assert!(refused.contains("at most 100000"), "{refused}");
    }
}
