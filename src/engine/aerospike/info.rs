//! What nodes say of themselves, taken apart. Pure.

/// `name=value` pairs, separated by `;`. There are hundreds, of which few are asked for: the text is searched each time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(String);

impl Pairs {
    pub fn of(text: &str) -> Self {
        Pairs(text.to_owned())
    }

    fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.split(';').filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.all().find_map(|(there, value)| (there == name).then_some(value))
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// The numbers of all names that end in `.last`, such as those of each device.
    pub fn numbers_of(&self, last: &str) -> impl Iterator<Item = u64> {
        let is_meant = move |name: &str| name.rsplit_once('.').is_some_and(|(_, name)| name == last);
        self.all().filter(move |(name, _)| is_meant(name)).filter_map(|(_, value)| value.parse().ok())
    }

    pub fn is_true(&self, name: &str) -> bool {
        self.get(name) == Some("true")
    }
}

/// A release, such as 8.1.0.3: its first two numbers.
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
        let pairs = Pairs::of("nsup-period=120;stop_writes=false;storage-engine=memory;storage-engine.file[0]=/a;x");
        assert_eq!(pairs.number("nsup-period"), Some(120));
        assert_eq!(pairs.get("storage-engine"), Some("memory"));
        assert!(!pairs.is_true("stop_writes"));
        assert_eq!(pairs.number("x"), None);
    }

    #[test]
    fn releases_order_by_number_and_not_by_letter() {
        let release = |text| Release::parse(text).unwrap();
        assert!(release("8.1.0.3") > release("7.10.0.0-rc1"));
        assert!(release("10.0") > release("9.9"));
        assert_eq!(Release::parse("unknown"), None);
    }
}
