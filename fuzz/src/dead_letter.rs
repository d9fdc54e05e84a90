//! Envelope of dead letters. The input has one header a line, `name: value`, and JSON on the lines that start with `{`.

use bytes::Bytes;
use utxo_store::event::DeadLetter;

use super::assert_one_line;

/// Runs the target `dead_letter`.
pub fn check(data: &[u8]) {
    let (json, headers): (Vec<&[u8]>, Vec<&[u8]>) =
        data.split(|byte| *byte == b'\n').partition(|line| line.starts_with(b"{"));
    let headers: Vec<(String, Bytes)> = headers.into_iter().filter_map(header).collect();
    match DeadLetter::from_headers(&headers) {
        Ok(letter) => {
            assert_survives(&letter);
            assert_last_counts(&letter, &headers);
        }
        Err(error) => assert_one_line(&error),
    }
    for line in json.into_iter().filter_map(|line| std::str::from_utf8(line).ok()) {
        match DeadLetter::from_json(line) {
            Ok(letter) => assert_survives(&letter),
            Err(error) => assert_one_line(&error),
        }
    }
}

fn header(line: &[u8]) -> Option<(String, Bytes)> {
    let at = line.windows(2).position(|pair| pair == b": ")?;
    let name = std::str::from_utf8(&line[..at]).ok()?;
    Some((name.to_owned(), Bytes::copy_from_slice(&line[at + 2..])))
}

/// Checks that both forms decode to the same letter.
fn assert_survives(letter: &DeadLetter) {
    assert_eq!(DeadLetter::from_headers(&letter.to_headers()).as_ref(), Ok(letter));
    let line = letter.to_json();
    assert!(!line.contains('\n'));
    assert_eq!(DeadLetter::from_json(&line).as_ref(), Ok(letter));
}

/// Checks that the last header counts: a letter that was replayed and failed again has the older headers in front.
fn assert_last_counts(letter: &DeadLetter, headers: &[(String, Bytes)]) {
    let again =
        DeadLetter { offset: letter.offset ^ 1, message: format!("{} again", letter.message), ..letter.clone() };
    let headers = [headers, &again.to_headers()].concat();
    assert_eq!(DeadLetter::from_headers(&headers), Ok(again));
}
