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

/// The mark that some editors put before UTF-8 text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// The text of a file, without a byte order mark.
///
/// # Errors
/// The bytes are no UTF-8; in one line.
pub fn text_of(bytes: &[u8]) -> Result<&str, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("the text is UTF-16: save it as UTF-8".to_owned());
    }
    std::str::from_utf8(bytes).map(without_mark).map_err(|error| error.to_string())
}

/// The text without the byte order mark that it may begin with.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
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
    fn one_byte_order_mark_is_no_part_of_a_text() {
        assert_eq!(text_of(b"\xef\xbb\xbfa"), Ok("a"));
        assert_eq!(text_of("\u{feff}\u{feff}a".as_bytes()), Ok("\u{feff}a"));
        assert_eq!(text_of(b"a"), Ok("a"));
        assert_eq!(text_of(b""), Ok(""));
        for utf_16 in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a"] {
            assert!(text_of(utf_16).unwrap_err().contains("save it as UTF-8"));
        }
        assert!(text_of(b"a\xff").is_err());
    }

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
