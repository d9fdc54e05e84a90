//! Timestamps in options: RFC 3339, or milliseconds since 1970.

use std::str::FromStr;

use chrono::DateTime;

/// A time in milliseconds since 1970, parsed from RFC 3339 or from such a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp(pub i64);

/// Error of a text that is not a timestamp.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimestampError {
    /// The text is neither RFC 3339 nor a number.
    #[error("not a timestamp: write RFC 3339, such as 2026-11-23T10:00:00Z, or milliseconds since 1970")]
    Malformed,
    /// The number is a likely time only in seconds.
    #[error("{0} looks like seconds: write milliseconds since 1970 ({0}000), or RFC 3339")]
    Seconds(i64),
}

/// Smallest number that is taken for milliseconds. A smaller number of milliseconds is a day of 1973 or earlier; the
/// same number of seconds is any day up to the year 5138.
const LIKELY_MS: i64 = 100_000_000_000;

impl FromStr for Timestamp {
    type Err = TimestampError;

    fn from_str(text: &str) -> Result<Self, TimestampError> {
        match text.parse::<i64>() {
            Ok(number) if (1..LIKELY_MS).contains(&number) => Err(TimestampError::Seconds(number)),
            Ok(number) if number >= 0 => Ok(Timestamp(number)),
            Ok(_) => Err(TimestampError::Malformed),
            // A leap second counts as the second after it.
            Err(_) => match DateTime::parse_from_rfc3339(text) {
                Ok(time) => Ok(Timestamp(time.timestamp_millis())),
                Err(_) => Err(TimestampError::Malformed),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_as_rfc_3339_and_milliseconds() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-23T10:00:00Z", 1_795_428_000_000),
            ("2026-11-23 11:00:00.250+01:00", 1_795_428_000_250),
            ("2026-11-23t09:30:00.1239-00:30", 1_795_428_000_123),
            ("2000-02-29T23:59:60Z", 951_868_800_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
            ("1795428000000", 1_795_428_000_000),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Timestamp(expected)), "{text}");
        }
        for text in [
            "",
            "now",
            "-1",
            "2026-11-23",
            "2026-11-23T10:00:00",
            "2026-11-23T10:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-04-31T00:00:00Z",
            "2026-11-23T24:00:00Z",
            "2026-11-23T10:60:00Z",
            "2026-11-23T10:00:00.Z",
            "2026-11-23T10:00:00+24:00",
            "2026-11-23T10:00:00+1:00",
            "2026-11-23T10:00:00Zz",
            "+026-11-23T10:00:00Z",
            "2026-11-23T10:00:0€Z",
            "2026-1-23T10:00:00Z",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(TimestampError::Malformed), "{text}");
        }
        let seconds = "1795428000".parse::<Timestamp>().unwrap_err().to_string();
        assert!(seconds.contains("seconds") && seconds.contains("1795428000000"), "{seconds}");
    }
}
