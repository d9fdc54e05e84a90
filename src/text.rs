//! Text from outside, made fit for one line of a log, a terminal or a header.

pub(crate) mod bounded_list;
pub(crate) mod duration;
pub(crate) mod percent;

use std::borrow::Cow;

use crate::tx::Txid;

/// Escapes the control characters of a text, line ends among them.
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

/// Joins the messages of an error and of its causes: the last one names the fault of a connection.
#[cfg(any(feature = "vault", feature = "web"))]
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Parses a decimal number of digits alone: `+1` is a number to Rust, and a typing error to everybody else.
pub fn parse_decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns whether a text is a name: 1 to `most` letters, digits, `-`, `_` and `.`, and not of dots alone.
pub fn is_name(text: &str, most: usize) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=most).contains(&text.len()) && text.bytes().all(is_good) && text.bytes().any(|byte| byte != b'.')
}

/// Joins the words of a text by single spaces, so that a text of several lines becomes one line.
pub fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Mark that some editors write before UTF-8 text.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Decodes the UTF-8 text of a file and strips a byte order mark.
///
/// # Errors
/// A message of one line: the bytes are no UTF-8.
pub fn decode_utf8(bytes: &[u8]) -> Result<&str, String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err("the text is UTF-16: save it as UTF-8".to_owned());
    }
    std::str::from_utf8(bytes).map(strip_byte_order_mark).map_err(|error| error.to_string())
}

/// Strips one byte order mark from the beginning of a text.
pub fn strip_byte_order_mark(text: &str) -> &str {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Truncates a text to at most `max_bytes` bytes (at least three), counted as JSON escapes the text. A truncated text
/// ends with `…`.
pub fn truncate_for_json(text: &str, max_bytes: usize) -> Cow<'_, str> {
    const CUT: char = '…';
    let (mut taken, mut end) = (0, 0);
    for c in text.chars() {
        taken += json_len(c);
        if taken > max_bytes {
            return Cow::Owned(format!("{}{CUT}", &text[..end]));
        }
        if taken + CUT.len_utf8() <= max_bytes {
            end += c.len_utf8();
        }
    }
    Cow::Borrowed(text)
}

/// Returns the number of bytes that a character takes in a JSON string.
fn json_len(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}

/// Formats a block hash as explorers show the hash: hexadecimal, bytes reversed.
pub fn hex_reversed(hash: &[u8; 32]) -> String {
    Txid(*hash).to_string()
}

/// Returns the error of a text that is none of the words of an enum.
pub(crate) fn not_one_of<T: strum::VariantNames>(text: &str) -> String {
    format!("must be one of {}, not {text:?}", T::VARIANTS.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_byte_order_mark_is_stripped() {
        assert_eq!(decode_utf8(b"\xef\xbb\xbfa"), Ok("a"));
        assert_eq!(decode_utf8("\u{feff}\u{feff}a".as_bytes()), Ok("\u{feff}a"));
        assert_eq!(decode_utf8(b"a"), Ok("a"));
        assert_eq!(decode_utf8(b""), Ok(""));
        for utf_16 in [&b"\xff\xfea\0"[..], b"\xfe\xff\0a"] {
            assert!(decode_utf8(utf_16).unwrap_err().contains("save it as UTF-8"));
        }
        assert!(decode_utf8(b"a\xff").is_err());
    }

    #[test]
    fn truncation_counts_the_escaped_bytes() {
        for c in (0..=0x2_0000).filter_map(char::from_u32) {
            assert_eq!(json_len(c), serde_json::to_string(&c).unwrap().len() - 2, "{c:?}");
        }
        assert_eq!(truncate_for_json("abcdef", 6), "abcdef");
        assert_eq!(truncate_for_json("abcdefg", 6), "abc…");
        assert_eq!(truncate_for_json("ab\ncdefg", 6), "ab…", "the line end would take two");
        assert_eq!(truncate_for_json("üüüü", 7), "üü…");
        assert_eq!(truncate_for_json("üüüü", 3), "…");
    }

    #[test]
    fn only_control_characters_are_escaped() {
        assert_eq!(one_line("\"₿\" it's"), "\"₿\" it's");
        assert_eq!(one_line("a\nb\u{7}\u{85}ü"), "a\\nb\\u{7}\\u{85}ü");
    }
}
