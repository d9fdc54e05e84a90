//! Timestamps in options: RFC 3339, or milliseconds since 1970.

use std::str::FromStr;

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
            Err(_) => parse_rfc_3339(text).map(Timestamp).ok_or(TimestampError::Malformed),
        }
    }
}

/// Parses a time such as `2026-11-23T10:00:00.25+01:00` to milliseconds since 1970. A leap second counts as the second
/// after it.
fn parse_rfc_3339(text: &str) -> Option<i64> {
    let (date, rest) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = parse_numbers(date, '-', [4, 2, 2])?;
    let at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = parse_numbers(clock, ':', [2, 2, 2])?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) || fraction.is_empty() {
        return None;
    }
    let ms: i64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let zone_minutes = match zone.split_at(1) {
        ("Z" | "z", "") => 0,
        (sign @ ("+" | "-"), zone) => {
            let [hours, minutes] = parse_numbers(zone, ':', [2, 2])?;
            let minutes = (hours <= 23 && minutes <= 59).then_some(hours * 60 + minutes)?;
            if sign == "+" { minutes } else { -minutes }
        }
        _ => return None,
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let minutes = (days_since_1970(year, month, day) * 24 + hour) * 60 + minute - zone_minutes;
    Some((minutes * 60 + second) * 1_000 + ms)
}

/// Parses numbers with exactly these counts of digits and the separator between them.
fn parse_numbers<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut numbers = [0; N];
    let mut parts = text.split(separator);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part =
            parts.next().filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// Counts days in the Gregorian calendar. Years begin in March here, so that the leap day is the last day of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
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
