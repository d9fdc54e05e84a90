//! Finds the source text that a fault quotes, also after a rename, a move to another file or a reformatting.
//!
//! The quote is compared with the source token by token. White space and comments do not count; keywords, punctuation
//! and literals must be equal. An identifier may differ if the same identifier of the source stands for the quoted one
//! in the whole quote: such a difference is a rename, and the replacement of the fault gets the same rename. The
//! place with the most unchanged identifiers counts. Two equally good places are an error, and so is a place where
//! fewer than half of the identifiers are unchanged.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

/// Words that are no identifiers: a rename cannot change them.
const KEYWORDS: &[&str] = &[
    "as", "async", "await", "break", "const", "continue", "crate", "dyn", "else", "enum", "false", "fn", "for", "if",
    "impl", "in", "let", "loop", "match", "mod", "move", "mut", "pub", "ref", "return", "self", "Self", "static",
    "struct", "super", "trait", "true", "type", "unsafe", "use", "where", "while",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Identifier(&'a str),
    /// A keyword, a literal, a lifetime or one character of punctuation.
    Fixed(&'a str),
}

/// Where a quote stands in the source, and what is renamed since the quote was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// File, relative to the root.
    pub path: String,
    /// Bytes of the file, from the first token of the quote to the last.
    pub range: Range<usize>,
    /// Quoted identifier → identifier of the source, for each that differs.
    pub renamed: BTreeMap<String, String>,
}

impl Location {
    /// Returns the replacement of a fault with the renames applied.
    pub fn rename(&self, replacement: &str) -> String {
        let mut text = String::new();
        let mut end = 0;
        for (token, range) in tokens(replacement) {
            if let Token::Identifier(name) = token
                && let Some(new) = self.renamed.get(name)
            {
                text += &replacement[end..range.start];
                text += new;
                end = range.end;
            }
        }
        text + &replacement[end..]
    }
}

/// Finds `quote` in `path`, or, where that file has no such place, in the other files. Text that stands exactly once in
/// `path` is found as text, comments included.
///
/// # Errors
/// The quote stands nowhere, or in several places that are equally good.
pub fn locate(files: &BTreeMap<String, String>, path: &str, quote: &str) -> Result<Location, String> {
    if let Some((start, _)) = files.get(path).and_then(|text| only(text.match_indices(quote))) {
        let range = start + quote.len() - quote.trim_start().len()..start + quote.trim_end().len();
        return Ok(Location { path: path.to_owned(), range, renamed: BTreeMap::new() });
    }
    let quote = tokens(quote);
    let own = files.get(path).map(|text| places(path, text, &quote)).unwrap_or_default();
    let found =
        if own.is_empty() { files.iter().flat_map(|(path, text)| places(path, text, &quote)).collect() } else { own };
    let identifiers = quote.iter().filter(|(token, _)| matches!(token, Token::Identifier(_))).count();
    let best = found.iter().map(|(unchanged, _)| *unchanged).max().unwrap_or(0);
    let mut best_places = found.into_iter().filter(|(unchanged, _)| *unchanged == best && 2 * best >= identifiers);
    match (best_places.next(), best_places.count()) {
        (Some((_, location)), 0) => Ok(location),
        (Some(_), others) => Err(format!("stands in {} places that are equally good", others + 1)),
        (None, _) => Err("stands nowhere".to_owned()),
    }
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    all.next().filter(|_| all.next().is_none())
}

/// Returns each place of one file where the quote stands, with the number of unchanged identifiers.
fn places(path: &str, text: &str, quote: &[(Token<'_>, Range<usize>)]) -> Vec<(usize, Location)> {
    let source = tokens(text);
    let place = |window: &[(Token<'_>, Range<usize>)]| {
        let (mut unchanged, mut renamed, mut back) = (0, HashMap::new(), HashMap::new());
        for ((quoted, _), (found, _)) in quote.iter().zip(window) {
            match (quoted, found) {
                (Token::Identifier(old), Token::Identifier(new)) => {
                    // One to one: two names never become one.
                    if *renamed.entry(*old).or_insert(*new) != *new || *back.entry(*new).or_insert(*old) != *old {
                        return None;
                    }
                    unchanged += usize::from(old == new);
                }
                (quoted, found) if quoted == found => {}
                _ => return None,
            }
        }
        let range = window.first()?.1.start..window.last()?.1.end;
        let renamed = renamed.into_iter().filter(|(old, new)| old != new);
        let renamed = renamed.map(|(old, new)| (old.to_owned(), new.to_owned())).collect();
        Some((unchanged, Location { path: path.to_owned(), range, renamed }))
    };
    source.windows(quote.len().max(1)).filter_map(place).collect()
}

/// Splits Rust source into tokens with their bytes.
fn tokens(text: &str) -> Vec<(Token<'_>, Range<usize>)> {
    let bytes = text.as_bytes();
    let is_word = |at: usize| bytes.get(at).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        } else if text[at..].starts_with("//") {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
            continue;
        } else if let Some(end) = string_end(text, at) {
            at = end;
        } else if is_word(at) {
            while is_word(at) {
                at += 1;
            }
        } else if byte == b'\'' && is_word(at + 1) && bytes.get(at + 2) != Some(&b'\'') {
            // A lifetime.
            at += 1;
            while is_word(at) {
                at += 1;
            }
        } else if byte == b'\'' {
            at += if bytes.get(at + 1) == Some(&b'\\') { 2 } else { 1 };
            at += text[at..].chars().next().map_or(0, char::len_utf8);
            at += text[at..].find('\'').map_or(0, |end| end + 1);
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
        let word = &text[start..at];
        let is_name = word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') && is_word(at - 1);
        let token = if is_name && !KEYWORDS.contains(&word) { Token::Identifier(word) } else { Token::Fixed(word) };
        found.push((token, start..at));
    }
    found
}

/// Returns the end of the string literal that begins here.
fn string_end(text: &str, at: usize) -> Option<usize> {
    let rest = &text[at..];
    let prefix = rest.len() - rest.trim_start_matches(['b', 'c', 'r']).len();
    let hashes = rest[prefix..].len() - rest[prefix..].trim_start_matches('#').len();
    let is_raw = rest[..prefix].contains('r');
    let open = prefix + if is_raw { hashes } else { 0 };
    if prefix > 2 || !rest[open..].starts_with('"') {
        return None;
    }
    if is_raw {
        let close = format!("\"{}", "#".repeat(hashes));
        return Some(rest[open + 1..].find(&close).map_or(text.len(), |end| at + open + 1 + end + close.len()));
    }
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().skip(open + 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(at + index + 1),
            _ => {}
        }
    }
    Some(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        texts.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    const QUOTE: &str = "        if absent.is_empty() {\n            return self.apply(absent);\n";

    #[test]
    fn a_quote_is_found_after_a_rename_and_a_reformatting() {
        let text = "fn a() {\n if missing\n  .is_empty() { // none\n return self.apply(missing); } }";
        let location = locate(&files(&[("a.rs", text)]), "a.rs", QUOTE).unwrap();
        assert_eq!(&text[location.range.clone()], &text[10..text.rfind(" }").unwrap() - 2]);
        assert_eq!(location.rename("if absent.is_empty() || PLANTED {"), "if missing.is_empty() || PLANTED {");
    }

    #[test]
    fn a_quote_is_found_after_a_move_to_another_file() {
        let moved = locate(&files(&[("a.rs", "fn a() {}"), ("b.rs", QUOTE)]), "a.rs", QUOTE).unwrap();
        assert_eq!((moved.path.as_str(), moved.renamed.is_empty()), ("b.rs", true));
    }

    #[test]
    fn the_place_with_the_most_unchanged_identifiers_counts() {
        let other = QUOTE.replace("absent", "present");
        let text = format!("{other}{QUOTE}{}", QUOTE.replace("is_empty", "is_full"));
        let location = locate(&files(&[("a.rs", &text)]), "a.rs", QUOTE).unwrap();
        assert_eq!(location.range.start, other.len() + 8);
        assert!(location.renamed.is_empty());
    }

    #[test]
    fn a_comment_distinguishes_two_places() {
        let quote = "a();\n// second\n";
        let location = locate(&files(&[("a.rs", "a();\n// first\na();\n// second\n")]), "a.rs", quote).unwrap();
        assert_eq!(location.range, 14..28);
    }

    #[test]
    fn ambiguous_and_absent_quotes_are_refused() {
        for (text, problem) in [
            (format!("{QUOTE}{QUOTE}"), "stands in 2 places that are equally good"),
            ("fn a() { if a.b() { return self.c(a); } }".to_owned(), "stands nowhere"),
            (QUOTE.replace("return", "break"), "stands nowhere"),
            (QUOTE.replace("apply(absent)", "apply(present)"), "stands nowhere"),
        ] {
            assert_eq!(locate(&files(&[("a.rs", &text)]), "a.rs", QUOTE), Err(problem.to_owned()), "{text}");
        }
    }

    #[test]
    fn strings_characters_and_lifetimes_are_single_tokens() {
        let text = r##"a "b \" c" r#"d " e"# 'f' '\'' 'g b"h" '"' i"##;
        let words: Vec<&str> = tokens(text).into_iter().map(|(_, range)| &text[range]).collect();
        let expected = ["a", r#""b \" c""#, r##"r#"d " e"#"##, "'f'", r"'\''", "'g", "b\"h\"", "'\"'", "i"];
        assert_eq!(words, expected);
    }
}
