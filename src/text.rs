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

/// As much of a text, from its beginning, as takes at most `most` bytes (three at the least) once JSON has escaped it; where something is
/// left out it ends with `…`.
pub fn beginning_as_json(text: &str, most: usize) -> Cow<'_, str> {
    const CUT: char = '…';
    let (mut taken, mut end) = (0, 0);
    for c in text.chars() {
        taken += as_json(c);
        if taken > most {
            return Cow::Owned(format!("{}{CUT}", &text[..end]));
        }
        if taken + CUT.len_utf8() <= most {
            end += c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Bytes that a character takes in a string of JSON.
fn as_json(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

/// A block hash as explorers show it.
pub fn hex_reversed(hash: &[u8; 32]) -> String {
    Txid(*hash).to_string()
}

/// Types that are one of a few words.
macro_rules! word_types {
    ($(
        $(#[$attribute:meta])*
        $type:ident { $($(#[$variant_attribute:meta])* $variant:ident = $word:literal),* $(,)? }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$variant_attribute])* $variant),* }

        impl $type {
            /// Its word.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($type::$variant),)*
                    _ => Err(format!("must be one of {}, not {text:?}", [$($word),*].join(", "))),
                }
            }
        }
    )*};
}

pub(crate) use word_types;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_counts_what_json_writes() {
        for c in (0..=0x2_0000).filter_map(char::from_u32) {
            assert_eq!(as_json(c), serde_json::to_string(&c).unwrap().len() - 2, "{c:?}");
        }
        assert_eq!(beginning_as_json("abcdef", 6), "abcdef");
        assert_eq!(beginning_as_json("abcdefg", 6), "abc…");
        assert_eq!(beginning_as_json("ab\ncdefg", 6), "ab…", "the line end would take two");
        assert_eq!(beginning_as_json("üüüü", 7), "üü…");
        assert_eq!(beginning_as_json("üüüü", 3), "…");
    }

    #[test]
    fn only_control_characters_are_escaped() {
        assert_eq!(one_line("\"₿\" it's"), "\"₿\" it's");
        assert_eq!(one_line("a\nb\u{7}\u{85}ü"), "a\\nb\\u{7}\\u{85}ü");
    }
}
