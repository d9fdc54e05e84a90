//! Ends and offsets as an operator writes them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{cli::timestamp::Timestamp, text::text_of};

/// How far is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Until {
    /// The end of each partition.
    End,
    /// A time.
    Time(Timestamp),
    /// What a file says.
    File(PathBuf),
}

impl FromStr for Until {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match (text, text.parse()) {
            ("end", _) => Until::End,
            (_, Ok(time)) => Until::Time(time),
            (path, Err(_)) => Until::File(path.into()),
        })
    }
}

/// Reads a file of offsets.
///
/// # Errors
/// Every line that is wrong, with its number.
pub fn read_offsets(path: &Path) -> Result<BTreeMap<i32, u64>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = text_of(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    offsets(text).map_err(|problems| format!("{}: {}", path.display(), problems.join("; ")))
}

fn offsets(text: &str) -> Result<BTreeMap<i32, u64>, Vec<String>> {
    let (mut offsets, mut problems) = (BTreeMap::new(), Vec::new());
    for (line, number) in text.lines().zip(1..) {
        let fields: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let problem = match fields[..] {
            [] => continue,
            [partition, offset] => match (partition.parse::<i32>(), offset.parse::<u64>()) {
                (Ok(partition), _) if partition < 0 => "a partition is 0 or more".to_owned(),
                (Ok(partition), Ok(offset)) if i64::try_from(offset).is_ok() => match offsets.insert(partition, offset)
                {
                    None => continue,
                    Some(_) => format!("partition {partition} was named before"),
                },
                (Err(_), _) => format!("`{}` is no partition", partition.escape_debug()),
                (_, _) => format!("`{}` is no offset", offset.escape_debug()),
            },
            _ => format!("`partition offset` is wanted, not {} fields", fields.len()),
        };
        problems.push(format!("line {number}: {problem}"));
    }
    match (problems.is_empty(), offsets.is_empty()) {
        (true, false) => Ok(offsets),
        (true, true) => Err(vec!["it names no partition".to_owned()]),
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
    fn an_end_is_a_word_a_time_or_a_file() {
        assert_eq!("end".parse(), Ok(Until::End));
        assert_eq!("2026-11-23T10:00:00Z".parse(), Ok(Until::Time(Timestamp(1_795_428_000_000))));
        assert_eq!("./end".parse(), Ok(Until::File("./end".into())));
    }

    #[test]
    fn offsets_are_read_by_partition_and_every_bad_line_is_named() {
        assert_eq!(offsets("# mine\n0 5\n\n  2\t7 # two\n"), Ok([(0, 5), (2, 7)].into()));
        let problems = offsets("0 5\n1\n0 6\n-1 3\nx 3\n3 -3\n4 9223372036854775808\n5 1 2\n").unwrap_err();
        let expected = [
            "line 2: `partition offset` is wanted, not 1 fields",
            "line 3: partition 0 was named before",
            "line 4: a partition is 0 or more",
            "line 5: `x` is no partition",
            "line 6: `-3` is no offset",
            "line 7: `9223372036854775808` is no offset",
            "line 8: `partition offset` is wanted, not 3 fields",
        ];
        assert_eq!(problems, expected);
        assert_eq!(offsets("# nothing\n"), Err(vec!["it names no partition".to_owned()]));
        let missing = read_offsets(Path::new("/nonexistent/offsets")).unwrap_err();
        assert!(missing.starts_with("/nonexistent/offsets: "), "{missing}");
    }
}
