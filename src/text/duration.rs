//! Durations as the reference document writes them.

use std::time::Duration;

/// Units, longest name first where one begins another, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a duration such as `24h`, `7d` or `1m30s`: whole numbers with the units ms, s, m, h and d. `None`: the text is
/// no such duration, or is longer than 2⁶⁴ ms.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let (unit, ms) = UNITS.into_iter().find(|(unit, _)| after.starts_with(unit))?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(ms)?)?;
        rest = &after[unit.len()..];
    }
    Some(Duration::from_millis(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_sums_of_numbers_with_units() {
        let ms = |text| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!((ms("5s"), ms("500ms"), ms("1m30s")), (Some(5_000), Some(500), Some(90_000)));
        assert_eq!((ms("24h"), ms("7d"), ms("0s")), (Some(86_400_000), Some(604_800_000), Some(0)));
        for text in ["", "5", "s", "5 s", "5s ", "-5s", "1.5s", "5sm", "99999999999999999999s", "300000000000d"] {
            assert_eq!(ms(text), None, "{text:?}");
        }
    }
}
