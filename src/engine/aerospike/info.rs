//! Parsing of the text that nodes answer to info commands. Pure.

/// Pairs `name=value`, separated by `;`. An answer has hundreds of pairs and few are used, so each look-up searches the
/// text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InfoPairs(String);

impl InfoPairs {
    pub fn new(text: &str) -> Self {
        InfoPairs(text.to_owned())
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.split(';').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.all().find_map(|(found, value)| (found == name).then_some(value))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Returns the numbers of all names that end in `.` and one of `lasts`, for example one for each device.
    pub fn numbers_ending_in(&self, lasts: &[&str]) -> impl Iterator<Item = u64> {
        let matches = move |name: &str| name.rsplit_once('.').is_some_and(|(_, name)| lasts.contains(&name));
        self.all().filter(move |(name, _)| matches(name)).filter_map(|(_, value)| value.parse().ok())
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }
}

/// Returns whether an answer to `cluster-stable` is a key as a whole. A server whose cluster changes during the answer
/// sends an error with a key behind the error.
pub fn is_cluster_key(answer: &str) -> bool {
    u64::from_str_radix(answer, 16).is_ok_and(|key| key != 0)
}

/// The first two numbers of a release, for example 8 and 1 of 8.1.0.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u16, pub u16);

impl Release {
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(['.', '-']).map(str::parse);
        Some(Release(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_by_name() {
        let text = "nsup-period=120;stop_writes=false;storage-engine=memory;storage-engine.file[0]=/a;x";
        let pairs = InfoPairs::new(text);
        assert_eq!(pairs.number("nsup-period"), Some(120));
        assert_eq!(pairs.get("storage-engine"), Some("memory"));
        assert!(!pairs.is_true("stop_writes"));
        assert_eq!(pairs.number("x"), None);
    }

    #[test]
    fn releases_order_by_number_not_by_text() {
        let release = |text| Release::parse(text).unwrap();
        assert!(release("8.1.0.3") > release("7.10.0.0-rc1"));
        assert!(release("10.0") > release("9.9"));
        assert_eq!(Release::parse("unknown"), None);
    }
}
