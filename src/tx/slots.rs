//! Rules for spendable outputs: only a spendable output gets a slot.

use serde::{Deserialize, Serialize};
use strum::{Display, EnumIter, EnumString};

use super::Txid;

const OP_FALSE: u8 = 0x00;
const OP_RETURN: u8 = 0x6a;

/// Before Genesis nodes did not execute a longer locking script, so that its output can never be spent.
const MAX_SCRIPT_BEFORE_GENESIS: usize = 10_000;

/// The coinbase of the genesis block: 4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b.
const GENESIS_COINBASE: Txid = Txid([
    0x3b, 0xa3, 0xed, 0xfd, 0x7a, 0x7b, 0x12, 0xb2, 0x7a, 0xc7, 0x2c, 0x3e, 0x67, 0x76, 0x8f, 0x61, 0x7f, 0xc8, 0x1b,
    0xc3, 0x88, 0x8a, 0x51, 0x32, 0x3a, 0x9f, 0xb8, 0xaa, 0x4b, 0x1e, 0x5e, 0x4a,
]);

/// Chain of a store; determines the height from which the Genesis rules hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Display, EnumIter, EnumString)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", parse_err_ty = UnknownNetwork, parse_err_fn = UnknownNetwork::new)]
pub enum Network {
    /// The main chain, where coins have value.
    #[default]
    Main,
    /// The public test chain (testnet3).
    Test,
    /// A private chain of a test.
    Regtest,
}

/// Error of a text that names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: main, test or regtest")]
pub struct UnknownNetwork(String);

impl UnknownNetwork {
    fn new(name: &str) -> Self {
        UnknownNetwork(name.to_owned())
    }
}

impl Network {
    /// Returns the first height at which the Genesis rules hold, as in the Bitcoin SV node.
    pub const fn genesis_activation_height(self) -> u32 {
        match self {
            Network::Main => 620_538,
            Network::Test => 1_344_302,
            Network::Regtest => 10_000,
        }
    }

    /// Returns the coinbase of the genesis block. No node connects the outputs of that block, so that they can never be
    /// spent.
    pub const fn genesis_coinbase(self) -> Txid {
        match self {
            Network::Main | Network::Test | Network::Regtest => GENESIS_COINBASE,
        }
    }
}

/// Returns whether an output of this transaction with this locking script, created at `height`, gets a slot.
///
/// | locking script | before Genesis | from Genesis on |
/// |---|---|---|
/// | starts with `OP_FALSE OP_RETURN` | no slot | no slot |
/// | starts with `OP_RETURN` | no slot | slot |
/// | is longer than 10,000 bytes | no slot | slot |
/// | any other | slot | slot |
///
/// The output of the genesis block's coinbase never gets a slot.
pub fn has_slot(txid: &Txid, script: &[u8], height: u32, network: Network) -> bool {
    if script.starts_with(&[OP_FALSE, OP_RETURN]) || *txid == network.genesis_coinbase() {
        return false;
    }
    let genesis = height >= network.genesis_activation_height();
    genesis || (script.first() != Some(&OP_RETURN) && script.len() <= MAX_SCRIPT_BEFORE_GENESIS)
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    const ANY: Txid = Txid([7; 32]);

    #[test]
    fn the_coinbase_of_the_genesis_block_has_no_slot() {
        let text = "4a5e1e4baab89f3a32518a88c31bc87f618f76673e2cc77ab2127b7afdeda33b";
        for network in Network::iter() {
            assert_eq!(network.genesis_coinbase().to_string(), text);
            for height in [0, 1, network.genesis_activation_height()] {
                assert!(!has_slot(&network.genesis_coinbase(), &[0x51], height, network));
                assert!(has_slot(&ANY, &[0x51], height, network));
            }
        }
    }

    #[test]
    fn the_rule_changes_at_genesis() {
        for network in Network::iter() {
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
                assert_eq!(has_slot(&ANY, script, genesis - 1, network), before, "{network}, {} bytes", script.len());
                assert_eq!(has_slot(&ANY, script, genesis, network), after, "{network}, {} bytes", script.len());
            }
        }
    }

    #[test]
    fn networks_have_names() {
        for network in Network::iter() {
            assert_eq!(network.to_string().parse(), Ok(network));
            assert_eq!(serde_json::to_string(&network).unwrap(), format!("\"{network}\""));
        }
        assert_eq!(
            "mainnet".parse::<Network>().unwrap_err().to_string(),
            "`mainnet` is no network: main, test or regtest"
        );
    }
}
