//! Addresses as locking scripts, by the crate `bitcoin`.

use std::str::FromStr;

use bitcoin::{Address, PublicKey, ScriptBuf};
use bytes::Bytes;

use super::scripts::NewScript;
use crate::tx::Network;

/// Text that is no address of a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptAddressError {
    /// The text is neither an address nor a public key.
    #[error("`{0}` is no address: write an address, a public key (P2PK) or a script in hexadecimal digits")]
    Malformed(String),
    /// The address belongs to another network.
    #[error("`{address}` is an address of another network than {network}")]
    OtherNetwork {
        /// Text of the address.
        address: String,
        /// Network of the store.
        network: Network,
    },
}

impl NewScript {
    /// Makes the script of an address (P2PKH, P2SH, P2WPKH, P2WSH, P2TR) or of a public key in hexadecimal digits
    /// (P2PK).
    ///
    /// # Errors
    /// The text is neither, or the address is of another network.
    pub fn of_address(text: &str, network: Network) -> Result<Self, ScriptAddressError> {
        let script = match PublicKey::from_str(text) {
            Ok(key) => ScriptBuf::new_p2pk(&key),
            Err(_) => {
                let malformed = |_| ScriptAddressError::Malformed(text.escape_debug().to_string());
                let address = Address::from_str(text).map_err(malformed)?;
                let other = |_| ScriptAddressError::OtherNetwork { address: text.to_owned(), network };
                address.require_network(network_of(network)).map_err(other)?.script_pubkey()
            }
        };
        Ok(NewScript { script: Bytes::from(script.into_bytes()), address: Some(text.to_owned()) })
    }
}

fn network_of(network: Network) -> bitcoin::Network {
    match network {
        Network::Main => bitcoin::Network::Bitcoin,
        Network::Test => bitcoin::Network::Testnet,
        Network::Regtest => bitcoin::Network::Regtest,
    }
}

/// Returns the address of a locking script; `None`: the script has none.
pub fn address_of(script: &[u8], network: Network) -> Option<String> {
    let address = Address::from_script(bitcoin::Script::from_bytes(script), network_of(network)).ok()?;
    Some(address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_address_has_its_script() {
        let key = "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        for (text, script) in [
            ("1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMH", "76a914751e76e8199196d454941c45d1b3a323f1433bd688ac"),
            ("3JvL6Ymt8MVWiCNHC7oWU6nLeHNJKLZGLN", "a914bcfeb728b584253d5f3f70bcb780e9ef218a68f487"),
            ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "0014751e76e8199196d454941c45d1b3a323f1433bd6"),
            (
                "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0",
                "512079be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
            ),
        ] {
            let made = NewScript::of_address(text, Network::Main).unwrap();
            assert_eq!((hex::encode(&made.script), made.address.as_deref()), (script.to_owned(), Some(text)));
            assert_eq!(address_of(&made.script, Network::Main).as_deref(), Some(text));
        }
        let p2pk = NewScript::of_address(key, Network::Main).unwrap();
        assert_eq!(hex::encode(p2pk.script), format!("21{key}ac"));
    }

    #[test]
    fn addresses_of_other_networks_and_other_texts_are_refused() {
        let main = "1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMH";
        let error = NewScript::of_address(main, Network::Regtest).unwrap_err().to_string();
        assert_eq!(error, format!("`{main}` is an address of another network than regtest"));
        for bad in ["", "1BgGZ9tcN4rm9KBzDn7KprQz87SZ26SAMI", "bc1", "x\ny"] {
            let error = NewScript::of_address(bad, Network::Main).unwrap_err().to_string();
            assert!(error.contains("is no address") && !error.contains('\n'), "{error}");
        }
        assert_eq!(address_of(&[0x6a], Network::Main), None);
    }
}
