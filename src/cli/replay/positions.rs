//! Parses the end position of a replay, and files of offsets.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{cli::timestamp::Timestamp, text::decode_utf8};

/// End position of `--until`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The present end offset of each partition.
    End,
    /// The first message of this time or later.
    Time(Timestamp),
    /// The offsets of a file.
    File(PathBuf),
}

impl FromStr for ReplayEnd {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text, text.parse()) {
            ("end", _) => ReplayEnd::End,
            (_, Ok(time)) => ReplayEnd::Time(time),
            (path, Err(_)) => ReplayEnd::File(path.into()),
        })
    }
}

/// Reads a file of offsets, by partition.
///
/// # Errors
/// The file cannot be read, or lines are wrong: all of them, with their numbers.
pub fn read_offsets(path: &Path) -> Result<BTreeMap<i32, u64>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = decode_utf8(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    parse_offsets(text).map_err(|problems| format!("{}: {}", path.display(), problems.join("; ")))
}

fn parse_offsets(text: &str) -> Result<BTreeMap<i32, u64>, Vec<String>> {
    let (mut offsets, mut problems) = (BTreeMap::new(), Vec::new());
    for (line, number) in text.lines().zip(1..) {
        let fields: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let problem = match fields[..] {
            [] => continue,
            [partition, offset] => match (partition.parse::<i32>(), offset.parse::<u64>()) {
                (Ok(partition), _) if partition < 0 => "a partition must be 0 or more".to_owned(),
                (Ok(partition), Ok(offset)) if i64::try_from(offset).is_ok() => match offsets.insert(partition, offset)
                {
                    None => continue,
                    Some(_) => format!("partition {partition} was named before"),
                },
                (Err(_), _) => format!("`{}` is not a partition", partition.escape_debug()),
                (_, _) => format!("`{}` is not an offset", offset.escape_debug()),
            },
            _ => format!("write `partition offset`, not {} fields", fields.len()),
        };
        problems.push(format!("line {number}: {problem}"));
    }
    match (problems.is_empty(), offsets.is_empty()) {
        (true, false) => Ok(offsets),
        (true, true) => Err(vec!["the file names no partition".to_owned()]),
        (false, _) => Err(problems),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_begin_with_a_byte_order_mark() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "\u{feff}0 7\n1 8\n").unwrap();
        assert_eq!(read_offsets(file.path()), Ok(BTreeMap::from([(0, 7), (1, 8)])));
    }

    #[test]
    fn an_end_position_is_a_word_a_time_or_a_file() {
        assert_eq!("end".parse(), Ok(ReplayEnd::End));
        assert_eq!("2026-11-23T10:00:00Z".parse(), Ok(ReplayEnd::Time(Timestamp(1_795_428_000_000))));
        assert_eq!("./end".parse(), Ok(ReplayEnd::File("./end".into())));
    }

    #[test]
    fn offsets_are_parsed_and_every_bad_line_is_named() {
        assert_eq!(parse_offsets("# mine\n0 5\n\n  2\t7 # two\n"), Ok([(0, 5), (2, 7)].into()));
        let problems = parse_offsets("0 5\n1\n0 6\n-1 3\nx 3\n3 -3\n4 9223372036854775808\n5 1 2\n").unwrap_err();
        let expected = [
            "line 2: write `partition offset`, not 1 fields",
            "line 3: partition 0 was named before",
            "line 4: a partition must be 0 or more",
            "line 5: `x` is not a partition",
            "line 6: `-3` is not an offset",
            "line 7: `9223372036854775808` is not an offset",
            "line 8: write `partition offset`, not 3 fields",
        ];
        assert_eq!(problems, expected);
        assert_eq!(parse_offsets("# nothing\n"), Err(vec!["the file names no partition".to_owned()]));
        let missing = read_offsets(Path::new("/nonexistent/offsets")).unwrap_err();
        assert!(missing.starts_with("/nonexistent/offsets: "), "{missing}");
    }
}
