//! Text that others wrote, made fit for one line of a log, a terminal or a header.

use std::borrow::Cow;

use crate::tx::Txid;

/// The text with its control characters (line ends among them) written as escapes.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let escaped = text.chars().flat_map(|c| {
        let (escape, plain) = if c.is_control() { (Some(c.escape_default()), None) } else { (None, Some(c)) };
        escape.into_iter().flatten().chain(plain)
    });
    Cow::Owned(escaped.collect())
}

/// A block hash as explorers show it.
pub fn hex_reversed(hash: &[u8; 32]) -> String {
    Txid(*hash).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_characters_are_escaped() {
        assert_eq!(one_line("\"₿\" it's"), "\"₿\" it's");
        assert_eq!(one_line("a\nb\u{7}\u{85}ü"), "a\\nb\\u{7}\\u{85}ü");
    }
}
