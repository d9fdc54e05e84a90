//! Percent encoding of paths and parameters in the URLs of stores and blob stores.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use percent_encoding::{AsciiSet, CONTROLS, PercentEncode, percent_decode_str, utf8_percent_encode};

/// Characters with a meaning in these URLs. All other printable ASCII stands for itself.
const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'&');

/// Replaces the characters of a text that have a meaning in a URL, and all that are not ASCII, by `%` and digits.
pub(crate) fn percent_encode(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

/// Like [`percent_encode`]; the bytes of the path need not be UTF-8.
pub(crate) fn percent_encode_path(path: &Path) -> PercentEncode<'_> {
    percent_encoding::percent_encode(path.as_os_str().as_bytes(), RESERVED)
}

/// Replaces each `%` with its two hexadecimal digits by the byte. `None`: a `%` has no two digits, or the bytes are not
/// UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    String::from_utf8(percent_decode_bytes(text)?).ok()
}

/// Like [`percent_decode`]; the bytes of the path need not be UTF-8.
pub(crate) fn percent_decode_path(text: &str) -> Option<PathBuf> {
    Some(OsString::from_vec(percent_decode_bytes(text)?).into())
}

fn percent_decode_bytes(text: &str) -> Option<Vec<u8>> {
    // The decoder takes a `%` without two digits literally.
    let has_digits = |part: &[u8]| part.len() >= 2 && part[..2].iter().all(u8::is_ascii_hexdigit);
    let is_valid = text.as_bytes().split(|byte| *byte == b'%').skip(1).all(has_digits);
    is_valid.then(|| percent_decode_str(text).collect())
}

/// Splits the text after the `?` of a URL into names and values. `None`: as by [`percent_decode`].
pub(crate) fn parse_parameters(query: &str) -> Option<Vec<(String, String)>> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((percent_decode(key)?, percent_decode(value)?))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(pair).collect()
}
