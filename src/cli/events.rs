//! `utxo-store events encode|decode`: converts events between JSON and the binary form, one event per line.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};

use crate::{
    cli::output,
    event::{Event, from_json, to_json},
    text::strip_byte_order_mark,
};

const EXAMPLE: &str = "\
Example:
  echo '{\"event\":\"validated\",\"tx\":\"0100…\",\"height\":170,\"locked\":false}' | utxo-store events encode
  utxo-store events decode schemas/golden/command.hex

The formats of all events are in schemas/.";

/// Command-line arguments of `utxo-store events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct EventsArgs {
    #[command(subcommand)]
    direction: Direction,
}

#[derive(Debug, Subcommand)]
enum Direction {
    /// Convert JSON lines to lines of hexadecimal digits, one event per line
    #[command(after_help = EXAMPLE)]
    Encode(EventsInput),
    /// Convert lines of hexadecimal digits to JSON lines, one event per line
    #[command(after_help = EXAMPLE)]
    Decode(EventsInput),
}

#[derive(Debug, Args)]
struct EventsInput {
    /// File to read; standard input without a file or with `-`
    file: Option<PathBuf>,
}

/// Error of a conversion. The lines before the error are written completely.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum EventsError {
    #[error("line {line}: {problem}")]
    Line { line: usize, problem: String },
    #[error("cannot open {}: {error}", path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("cannot read line {line}: {error}")]
    Read { line: usize, error: io::Error },
    #[error("cannot write to standard output: {0}")]
    Write(io::Error),
}

impl EventsArgs {
    /// Converts the file or standard input to standard output. A closed pipe (`| head`) is not an error.
    ///
    /// # Errors
    /// The input cannot be read, a line is not an event, or the output cannot be written.
    pub fn run(self) -> Result<(), EventsError> {
        let lines = BufWriter::new(io::stdout().lock());
        let result = match self.direction {
            Direction::Encode(input) => encode(input.open()?, lines),
            Direction::Decode(input) => decode(input.open()?, lines),
        };
        match result {
            Err(EventsError::Write(error)) if output::is_closed(&error) => Ok(()),
            other => other,
        }
    }
}

impl EventsInput {
    fn open(self) -> Result<Box<dyn BufRead>, EventsError> {
        match self.file {
            Some(path) if path != Path::new("-") => match File::open(&path) {
                Ok(file) => Ok(Box::new(BufReader::new(file))),
                Err(error) => Err(EventsError::Open { path, error }),
            },
            _ => Ok(Box::new(io::stdin().lock())),
        }
    }
}

/// Converts JSON lines to lines of hexadecimal digits. Empty lines are skipped.
///
/// # Errors
/// Every error of [`EventsError`], with the number of the line.
pub fn encode(input: impl BufRead, output: impl Write) -> Result<(), EventsError> {
    convert_lines(input, output, |line| from_json(line).map(hex::encode).map_err(|error| error.to_string()))
}

/// Converts lines of hexadecimal digits to JSON lines. Empty lines are skipped.
///
/// # Errors
/// Every error of [`EventsError`], with the number of the line.
pub fn decode(input: impl BufRead, output: impl Write) -> Result<(), EventsError> {
    convert_lines(input, output, |line| {
        let message = hex::decode(line).map_err(|error| format!("not hexadecimal: {error}"))?;
        let event = Event::decode(&message).map_err(|error| error.to_string())?;
        Ok(to_json(&event))
    })
}

fn convert_lines(
    input: impl BufRead,
    mut lines: impl Write,
    convert: impl Fn(&str) -> Result<String, String>,
) -> Result<(), EventsError> {
    for (line, text) in (1..).zip(input.lines()) {
        let text = text.map_err(|error| EventsError::Read { line, error })?;
        let text = if line == 1 { strip_byte_order_mark(&text) } else { &text }.trim();
        if text.is_empty() {
            continue;
        }
        match convert(text) {
            Ok(converted) => writeln!(lines, "{converted}").map_err(EventsError::Write)?,
            Err(problem) => {
                match lines.flush() {
                    // A closed pipe must not hide the bad line.
                    Err(error) if !output::is_closed(&error) => return Err(EventsError::Write(error)),
                    _ => return Err(EventsError::Line { line, problem }),
                }
            }
        }
    }
    lines.flush().map_err(EventsError::Write)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::event::Kind;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        events: EventsArgs,
    }

    fn golden(extension: &str) -> String {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas/golden");
        let file = |kind: Kind| directory.join(format!("{}.{extension}", kind.name()));
        Kind::ALL.iter().map(|kind| std::fs::read_to_string(file(*kind)).unwrap()).collect()
    }

    fn to_text(result: Result<(), EventsError>, output: Vec<u8>) -> Result<String, String> {
        result.map(|()| String::from_utf8(output).unwrap()).map_err(|error| error.to_string())
    }

    fn encoded(input: &str) -> Result<String, String> {
        let mut output = Vec::new();
        to_text(encode(input.as_bytes(), &mut output), output)
    }

    fn decoded(input: &[u8]) -> Result<String, String> {
        let mut output = Vec::new();
        to_text(decode(input, &mut output), output)
    }

    #[test]
    fn golden_files_are_converted_into_each_other() {
        let (binary, json) = (golden("hex"), golden("jsonl"));
        assert_eq!(encoded(&json).as_ref(), Ok(&binary));
        assert_eq!(decoded(binary.as_bytes()), Ok(json));
    }

    #[test]
    fn empty_lines_line_ends_and_byte_order_marks_are_ignored() {
        let json = golden("jsonl");
        let spaced = format!("\r\n{}\n  \n", json.replace('\n', "\r\n"));
        assert_eq!(encoded(&spaced), encoded(&json));
        assert_eq!(encoded(""), Ok(String::new()));
        assert_eq!(encoded(&format!("\u{feff}{json}")), encoded(&json));
        let marked = format!("\u{feff}{}", golden("hex"));
        assert_eq!(decoded(marked.as_bytes()), Ok(golden("jsonl")));
    }

    #[test]
    fn a_bad_line_is_named_after_the_good_lines_are_written() {
        let good = golden("hex").lines().next().unwrap().to_owned();
        let mut output = Vec::new();
        let input = format!("{good}\n\n{}\n{good}\n", &good[..good.len() - 2]);
        let error = decode(input.as_bytes(), &mut output).unwrap_err();
        assert_eq!(error.to_string(), "line 3: validated.locked: the message ends 1 bytes too early");
        assert_eq!(String::from_utf8(output).unwrap().lines().count(), 1);
        assert_eq!(encoded("{}\n"), Err("line 1: event: is missing".into()));
        assert_eq!(decoded(b"zz\n"), Err("line 1: not hexadecimal: Invalid character 'z' at position 0".into()));
        assert_eq!(decoded(b"\n\xFF\n"), Err("cannot read line 2: stream did not contain valid UTF-8".into()));
    }

    #[test]
    fn a_missing_file_is_named() {
        let program = Program::try_parse_from(["events", "decode", "/nowhere/events.hex"]).unwrap_or_else(|error| {
            panic!("{error}");
        });
        let error = program.events.run().unwrap_err().to_string();
        assert!(error.starts_with("cannot open /nowhere/events.hex: "), "{error}");
    }

    #[test]
    fn help_has_an_example() {
        let mut command = Program::command();
        command.clone().debug_assert();
        assert!(command.render_help().to_string().contains("utxo-store events encode"));
        for direction in ["encode", "decode"] {
            let help = command.find_subcommand_mut(direction).unwrap().render_help().to_string();
            assert!(help.contains("utxo-store events decode schemas/golden"), "{help}");
        }
    }
}
