//! Which outputs can be spent and so get a slot.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

const OP_FALSE: u8 = 0x00;
const OP_RETURN: u8 = 0x6a;

/// Before Genesis a longer locking script could not be executed, so its output could never be spent.
const MAX_SCRIPT_BEFORE_GENESIS: usize = 10_000;

/// Which chain: it decides from which height the Genesis rules hold, and the magic of block files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// The main chain.
    #[default]
    Main,
    /// The public test chain.
    Test,
    /// Private chains of tests.
    Regtest,
}

/// The text names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: main, test or regtest")]
pub struct UnknownNetwork(String);

impl Network {
    /// All of them.
    pub const ALL: [Network; 3] = [Network::Main, Network::Test, Network::Regtest];

    /// The first height at which the Genesis rules hold, as the Bitcoin SV node has it.
    pub const fn genesis_activation_height(self) -> u32 {
        match self {
            Network::Main => 620_538,
            Network::Test => 1_344_302,
            Network::Regtest => 10_000,
        }
    }

    /// The four bytes in front of each block in the node's block files.
    pub const fn block_file_magic(self) -> [u8; 4] {
        match self {
            Network::Main => [0xf9, 0xbe, 0xb4, 0xd9],
            Network::Test => [0x0b, 0x11, 0x09, 0x07],
            Network::Regtest => [0xfa, 0xbf, 0xb5, 0xda],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Network::Main => "main",
            Network::Test => "test",
            Network::Regtest => "regtest",
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Network {
    type Err = UnknownNetwork;

    fn from_str(text: &str) -> Result<Self, UnknownNetwork> {
        Network::ALL.into_iter().find(|network| network.name() == text).ok_or_else(|| UnknownNetwork(text.to_owned()))
    }
}

/// Whether an output with this locking script, created at `height`, gets a slot. From Genesis on all do but those that
/// start with `OP_FALSE OP_RETURN`; before, also not those that start with `OP_RETURN` or are longer than 10,000 bytes.
pub fn has_slot(script: &[u8], height: u32, network: Network) -> bool {
    if script.starts_with(&[OP_FALSE, OP_RETURN]) {
        return false;
    }
    let genesis = height >= network.genesis_activation_height();
    genesis || (script.first() != Some(&OP_RETURN) && script.len() <= MAX_SCRIPT_BEFORE_GENESIS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_changes_at_genesis() {
        for network in Network::ALL {
            let genesis = network.genesis_activation_height();
            let (longest, too_long) = (vec![0x51; 10_000], vec![0x51; 10_001]);
            let scripts: [(&[u8], bool, bool); 8] = [
                (&[], true, true),
                (&[0x51], true, true),
                (&[0x00], true, true),
                (&[0x51, 0x6a], true, true),
                (&[0x00, 0x6a, 0x01], false, false),
                (&[0x6a, 0x01], false, true),
                (&longest, true, true),
                (&too_long, false, true),
            ];
            for (script, before, after) in scripts {
                assert_eq!(has_slot(script, genesis - 1, network), before, "{network}, {} bytes", script.len());
                assert_eq!(has_slot(script, genesis, network), after, "{network}, {} bytes", script.len());
            }
        }
    }

    #[test]
    fn networks_have_names() {
        for network in Network::ALL {
            assert_eq!(network.to_string().parse(), Ok(network));
            assert_eq!(serde_json::to_string(&network).unwrap(), format!("\"{network}\""));
        }
        assert_eq!(
            "mainnet".parse::<Network>().unwrap_err().to_string(),
            "`mainnet` is no network: main, test or regtest"
        );
    }
}
