//! [`FileNetwork`]: networks whose nodes write block files, and the magic of their frames.

use strum::{Display, EnumIter, IntoEnumIterator};

use super::{BlockHeader, RawBlock};
use crate::tx::Network;

const OP_0: u8 = 0x00;
const OP_1: u8 = 0x51;
const OP_16: u8 = 0x60;
/// Length of the longest push that nodes read as a height, in bytes.
const LONGEST_HEIGHT: u8 = 4;
/// First block version whose coinbase begins with the height of the block (BIP 34).
const VERSION_WITH_HEIGHT: u32 = 2;

/// Network whose node writes block files. Several nodes use another magic for their files than for their messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumIter)]
#[strum(serialize_all = "lowercase")]
pub enum FileNetwork {
    /// The main network; nodes of Bitcoin Core, Bitcoin SV and Bitcoin Cash use the same magic for their files.
    Main,
    /// The third test network, of all three nodes.
    #[strum(to_string = "testnet3")]
    Test,
    /// The fourth test network, of Bitcoin Core.
    Testnet4,
    /// The default signet, of Bitcoin Core. A signet with a challenge of its own has a magic of its own.
    Signet,
    /// Private chains of tests, of all three nodes.
    Regtest,
    /// The scaling test network, of Bitcoin SV.
    #[strum(to_string = "stn (Bitcoin SV)")]
    Stn,
    /// The fourth test network and chipnet, of Bitcoin Cash.
    #[strum(to_string = "testnet4 or chipnet (Bitcoin Cash)")]
    CashTestnet4,
    /// The scaling test network, of Bitcoin Cash.
    #[strum(to_string = "scalenet (Bitcoin Cash)")]
    CashScalenet,
}

/// Start of a network's enforcement of BIP 34, and bounds that a claimed height must agree with.
struct Bip34 {
    /// First height at which nodes refuse a block without its height in the coinbase.
    from_height: u32,
    /// Time of the first such block; no later block is older.
    from_time: u32,
    /// Time of the genesis block, seconds since the epoch.
    genesis_time: u32,
    /// Seconds per block: over its whole life the chain has never grown faster.
    least_spacing: u32,
}

impl FileNetwork {
    /// Returns the four bytes in front of each block in the node's block files (`chainparams.cpp`: `diskMagic`, or
    /// `pchMessageStart` where a node has no other).
    pub const fn block_file_magic(self) -> [u8; 4] {
        match self {
            FileNetwork::Main => [0xf9, 0xbe, 0xb4, 0xd9],
            FileNetwork::Test => [0x0b, 0x11, 0x09, 0x07],
            FileNetwork::Testnet4 => [0x1c, 0x16, 0x3f, 0x28],
            FileNetwork::Signet => [0x0a, 0x03, 0xcf, 0x40],
            FileNetwork::Regtest => [0xfa, 0xbf, 0xb5, 0xda],
            FileNetwork::Stn => [0xfb, 0xce, 0xc4, 0xf9],
            FileNetwork::CashTestnet4 => [0xcd, 0x22, 0xa7, 0x92],
            FileNetwork::CashScalenet => [0xba, 0xc2, 0x2d, 0xc4],
        }
    }

    /// Returns the network with this magic.
    pub fn from_magic(magic: [u8; 4]) -> Option<Self> {
        FileNetwork::iter().find(|network| network.block_file_magic() == magic)
    }

    /// Returns the network whose rules a store has to apply to these blocks; the rules differ only in the height of
    /// Genesis. `None`: no network of the store has the same rules. The test networks of nodes without Genesis are
    /// below the height of Genesis.
    pub const fn store_network(self) -> Option<Network> {
        match self {
            FileNetwork::Main => Some(Network::Main),
            FileNetwork::Test | FileNetwork::Testnet4 | FileNetwork::Signet => Some(Network::Test),
            FileNetwork::Regtest => Some(Network::Regtest),
            FileNetwork::Stn | FileNetwork::CashTestnet4 | FileNetwork::CashScalenet => None,
        }
    }

    /// Returns the start of BIP 34 (`BIP34Height` of `chainparams.cpp`). `None`: enforcement is unknown. On regtest
    /// Bitcoin Core enforces BIP 34 from height 1, Bitcoin SV from 100,000,000, and both nodes write files with one
    /// magic.
    const fn bip34(self) -> Option<Bip34> {
        match self {
            // The last block of version 1 is 227,835, of 24 March 2013, 15:49:13 (BIP 34).
            FileNetwork::Main => Some(Bip34 {
                from_height: 227_931,
                from_time: 1_364_140_153,
                genesis_time: 1_231_006_505,
                least_spacing: 300,
            }),
            // A test network grows by thousands of blocks a day at its least difficulty.
            FileNetwork::Test => Some(Bip34 {
                from_height: 21_111,
                from_time: 1_296_688_602,
                genesis_time: 1_296_688_602,
                least_spacing: 30,
            }),
            FileNetwork::Testnet4 => {
                Some(Bip34 { from_height: 1, from_time: 1_714_777_860, genesis_time: 1_714_777_860, least_spacing: 30 })
            }
            FileNetwork::Signet => {
                Some(Bip34 { from_height: 1, from_time: 1_598_918_400, genesis_time: 1_598_918_400, least_spacing: 30 })
            }
            FileNetwork::CashTestnet4 => {
                Some(Bip34 { from_height: 2, from_time: 1_597_811_185, genesis_time: 1_597_811_185, least_spacing: 30 })
            }
            FileNetwork::CashScalenet => {
                Some(Bip34 { from_height: 2, from_time: 1_598_282_438, genesis_time: 1_598_282_438, least_spacing: 30 })
            }
            FileNetwork::Regtest | FileNetwork::Stn => None,
        }
    }

    /// Returns the height in a block's coinbase, where this network's nodes would have refused any other number.
    ///
    /// A coinbase of an earlier block may begin with any number: block 176,684 of the main network begins with 490,897,
    /// others begin with the compact target. The version and the time of the header therefore have to agree with the
    /// height.
    pub fn enforced_height(self, block: &RawBlock<'_>) -> Option<u32> {
        let coinbase = block.transactions().next().filter(|transaction| transaction.is_coinbase())?;
        let height = read_script_height(coinbase.inputs().next()?.script)?;
        self.bip34()?.agrees(height, block.header()).then_some(height)
    }
}

impl Bip34 {
    fn agrees(&self, height: u32, header: &BlockHeader) -> bool {
        let age = header.time.saturating_sub(self.genesis_time);
        // Nodes compare the version as a signed number.
        let has_version = header.version.cast_signed() >= VERSION_WITH_HEIGHT.cast_signed();
        has_version && height >= self.from_height && header.time >= self.from_time && height <= age / self.least_spacing
    }
}

/// Returns the height at the start of a coinbase script, in the only form that nodes accept: `CScript() << height`.
/// That is the shortest push of a little-endian number with a sign bit, or one opcode for 0 to 16.
fn read_script_height(script: &[u8]) -> Option<u32> {
    match script.split_first()? {
        (&OP_0, _) => Some(0),
        (&opcode @ OP_1..=OP_16, _) => Some(u32::from(opcode - OP_1 + 1)),
        (&length @ 1..=LONGEST_HEIGHT, rest) => {
            let pushed = rest.get(..usize::from(length))?;
            let (&sign, lower) = pushed.split_last()?;
            let positive = sign & 0x80 == 0;
            // A last byte of zero is needed only where the bit before would be the sign.
            let shortest = sign != 0 || lower.last().is_some_and(|last| last & 0x80 != 0);
            let height = pushed.iter().rev().fold(0, |height, byte| height << 8 | u32::from(*byte));
            (positive && shortest && height > 16).then_some(height)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tx::{Outpoint, TransactionBuilder, Txid};

    #[test]
    fn only_the_shortest_push_of_a_positive_number_is_a_height() {
        let cases: [(&[u8], Option<u32>); 17] = [
            (&[3, 0x8f, 0x3c, 0x04, 0xff], Some(277_647)),
            (&[4, 1, 2, 3, 4], Some(0x0403_0201)),
            (&[0x51], Some(1)),
            (&[0x60, 9], Some(16)),
            (&[1, 17], Some(17)),
            (&[2, 0x80, 0], Some(128)),
            (&[0], Some(0)),
            (&[1, 16], None),
            (&[1, 0], None),
            (&[2, 17, 0], None),
            (&[4, 0x8f, 0x3c, 0x04, 0], None),
            (&[2, 0x7f], None),
            (&[3, 0, 0, 0x80], None),
            (&[5, 1, 1, 1, 1, 1], None),
            (&[0x4c, 1, 17], None),
            (&[0x61], None),
            (&[], None),
        ];
        for (script, height) in cases {
            assert_eq!(read_script_height(script), height, "{script:02x?}");
        }
    }

    fn block(version: u32, time: u32, script: &[u8]) -> Vec<u8> {
        let coinbase = TransactionBuilder::default()
            .input(Outpoint { txid: Txid([0; 32]), vout: u32::MAX }, script, u32::MAX, None)
            .output(5_000_000_000, &[0x51])
            .standard();
        let header = [&version.to_le_bytes()[..], &[0; 64], &time.to_le_bytes(), &[0; 8]].concat();
        [&header[..], &[1], &coinbase].concat()
    }

    fn push(height: u32) -> Vec<u8> {
        let bytes = height.to_le_bytes();
        [&[3], &bytes[..3]].concat()
    }

    #[test]
    fn a_height_counts_from_where_the_network_enforces_it() {
        const APRIL_2013: u32 = 1_364_774_400;
        const NOW: u32 = 1_795_600_000;
        let target = [4, 0xff, 0xff, 0, 0x1d, 1, 4];
        for (network, version, time, script, height) in [
            (FileNetwork::Main, 2, APRIL_2013, &push(227_931)[..], Some(227_931)),
            (FileNetwork::Main, 0x2000_0000, NOW, &push(900_000), Some(900_000)),
            (FileNetwork::Main, 2, APRIL_2013, &push(227_930), None),
            (FileNetwork::Main, 1, APRIL_2013, &push(227_931), None),
            (FileNetwork::Main, u32::MAX, APRIL_2013, &push(227_931), None),
            // Bits of the compact target, before and after the rule, and the number of block 176,684.
            (FileNetwork::Main, 2, 1_231_006_505, &target, None),
            (FileNetwork::Main, 2, NOW, &target, None),
            (FileNetwork::Main, 2, 1_334_000_000, &push(490_897), None),
            (FileNetwork::Main, 2, 1_355_000_000, &push(230_000), None),
            (FileNetwork::Test, 2, APRIL_2013, &push(21_111), None),
            (FileNetwork::Test, 2, APRIL_2013, &[2, 0x77, 0x52], Some(21_111)),
            (FileNetwork::Test, 2, APRIL_2013, &[2, 0x76, 0x52], None),
            (FileNetwork::Test, 4, NOW, &target, None),
            (FileNetwork::Testnet4, 4, NOW, &[0x51], Some(1)),
            (FileNetwork::Signet, 4, NOW, &[0x51], Some(1)),
            (FileNetwork::Signet, 4, NOW, &[0], None),
            (FileNetwork::Regtest, 4, NOW, &[0x51], None),
            (FileNetwork::Stn, 4, NOW, &push(200_000), None),
        ] {
            let bytes = block(version, time, script);
            let found = network.enforced_height(&RawBlock::parse(&bytes).unwrap());
            assert_eq!(found, height, "{network}, version {version}, time {time}, {script:02x?}");
        }
    }

    #[test]
    fn each_magic_belongs_to_one_network() {
        for network in FileNetwork::iter() {
            assert_eq!(FileNetwork::from_magic(network.block_file_magic()), Some(network));
        }
        assert_eq!(FileNetwork::from_magic([0xe3, 0xe1, 0xf3, 0xe8]), None, "the magic of Bitcoin Cash's messages");
    }
}
