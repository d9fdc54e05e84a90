//! Events of real block files, compared with counts of an independent program (`tests/data/PROVENANCE.md`).

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    event::Event,
    tx::{Network, Outpoint, Transaction, has_slot},
};

fn file(name: &str) -> SourceFile {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    SourceFile { name: name.to_owned(), bytes: std::fs::read(path).unwrap() }
}

fn listed(name: &str) -> PreviousOutputs {
    PreviousOutputs::Listed(Parents::from_csv(name, &file(name).bytes).unwrap())
}

fn read_blocks(
    files: &[SourceFile],
    first_height: Option<u32>,
) -> Result<Vec<super::blocks::PlacedBlock<'_>>, GenerateError> {
    super::blocks::place_blocks(files, first_height).map(|placed| placed.blocks)
}

/// Counts of a [`Model`] after all events.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    blocks: u64,
    transactions: u64,
    inputs: u64,
    outputs: u64,
    slots: u64,
    spent_inside: u64,
    spent_outside: u64,
    unspent: u64,
    unspent_satoshis: u64,
}

/// Store in memory: maps of the unspent outputs.
#[derive(Default)]
struct Model {
    totals: Totals,
    unspent: BTreeMap<Outpoint, u64>,
    unspent_partial: BTreeMap<Outpoint, u64>,
    seen: BTreeSet<Txid>,
    last_sequence: u64,
}

impl Model {
    fn create(&mut self, transaction: &Transaction<'_>, height: u32) {
        let txid = transaction.txid();
        assert!(self.seen.insert(txid), "{txid} is produced twice");
        self.totals.transactions += 1;
        for (vout, output) in (0..).zip(transaction.outputs()) {
            self.totals.outputs += 1;
            if has_slot(&txid, output.script, height, Network::Main) {
                self.totals.slots += 1;
                self.unspent.insert(Outpoint { txid, vout }, output.satoshis);
            }
        }
    }

    fn validate(&mut self, key: Txid, tx: &[u8], height: u32) {
        let transaction = Transaction::parse(tx).unwrap();
        assert!(transaction.is_extended());
        assert_eq!(transaction.txid(), key);
        transaction.check().unwrap();
        for input in transaction.inputs() {
            self.totals.inputs += 1;
            let previous = input.previous.unwrap();
            if let Some(satoshis) = self.unspent.remove(&input.outpoint) {
                self.totals.spent_inside += 1;
                assert_eq!(satoshis, previous.satoshis);
            } else {
                let satoshis = self.unspent_partial.remove(&input.outpoint).expect("a parent precedes its child");
                self.totals.spent_outside += 1;
                assert_eq!(satoshis, previous.satoshis);
            }
        }
        self.create(&transaction, height);
    }

    fn apply(&mut self, message: &Message) {
        match Event::decode(&message.payload).unwrap() {
            Event::Seeded(seeded) => {
                assert_eq!((message.topic, message.key), (Topic::ValidatedTxs, Some(seeded.txid)));
                assert_eq!(self.totals.transactions, 0, "partial transactions come first");
                for output in seeded.outputs {
                    self.unspent_partial.insert(Outpoint { txid: seeded.txid, vout: output.vout }, output.satoshis);
                }
            }
            Event::Validated(validated) => {
                assert_eq!(message.topic, Topic::ValidatedTxs);
                self.validate(message.key.unwrap(), validated.tx, validated.height);
            }
            Event::BlockMined(mined) => {
                assert_eq!((message.topic, message.key), (Topic::BlockMined, None));
                self.last_sequence += 1;
                assert_eq!(mined.sequence, self.last_sequence);
                let block = mined.block;
                self.totals.blocks += 1;
                self.create(&Transaction::parse(block.coinbase).unwrap(), block.height);
                for txid in block.subtrees.iter().flat_map(|subtree| subtree.transactions.inline().unwrap()) {
                    assert!(self.seen.contains(&txid));
                }
            }
            other => panic!("{:?}", other.kind()),
        }
    }
}

fn totals(files: &[SourceFile], previous: PreviousOutputs) -> Totals {
    let chain = Chain::new(files, None, previous).unwrap();
    let mut model = Model::default();
    chain.messages().for_each(|message| model.apply(&message));
    let counts = chain.counts();
    let Totals { blocks, transactions, inputs, outputs, .. } = model.totals;
    assert_eq!((counts.blocks, counts.transactions, counts.inputs), (blocks, transactions, inputs));
    assert_eq!(counts.outputs, outputs);
    model.totals.unspent = model.unspent.len() as u64;
    model.totals.unspent_satoshis = model.unspent.values().sum();
    model.totals
}

fn expected(counts: [u64; 9]) -> Totals {
    let [blocks, transactions, inputs, outputs, slots, spent_inside, spent_outside, unspent, unspent_satoshis] = counts;
    Totals { blocks, transactions, inputs, outputs, slots, spent_inside, spent_outside, unspent, unspent_satoshis }
}

#[test]
fn the_first_blocks_need_no_previous_outputs() {
    let files = [file("mainnet-0-4312.blk")];
    let counted = expected([4_313, 4_371, 247, 4_397, 4_396, 247, 0, 4_149, 21_560_000_000_000]);
    assert_eq!(totals(&files, PreviousOutputs::InTheFiles), counted);
    let chain = Chain::new(&files, None, PreviousOutputs::Invented).unwrap();
    assert_eq!(chain.counts().seeded, 0);
    let places: Vec<_> = chain.blocks().iter().map(|placed| (placed.height, placed.block_id)).collect();
    assert_eq!(places, (0..4_313).map(|height| (height, height)).collect::<Vec<_>>());
}

#[test]
fn listed_previous_outputs_outside_the_files_become_partial_transactions() {
    let files = [file("mainnet-277647.block")];
    let counted = expected([1, 213, 732, 769, 769, 62, 670, 707, 172_129_169_749]);
    assert_eq!(totals(&files, listed("mainnet-277647.prevouts.csv")), counted);
    let chain = Chain::new(&files, None, listed("mainnet-277647.prevouts.csv")).unwrap();
    assert_eq!((chain.blocks()[0].height, chain.blocks()[0].block_id), (277_647, 1));
}

#[test]
fn previous_outputs_of_two_blocks_are_invented() {
    let files = [file("mainnet-384188.block"), file("mainnet-384189.block")];
    let counted = expected([2, 1_920, 7_348, 4_984, 4_972, 1_026, 6_322, 3_946, 1_107_962_672_096]);
    assert_eq!(totals(&files, PreviousOutputs::Invented), counted);
    let chain = Chain::new(&files, None, PreviousOutputs::Invented).unwrap();
    let places: Vec<_> = chain.blocks().iter().map(|placed| (placed.height, placed.block_id)).collect();
    assert_eq!(places, [(384_188, 1), (384_189, 2)]);
    let seeded: Vec<Message> = chain.messages().take(chain.counts().seeded as usize).collect();
    for message in &seeded {
        let Event::Seeded(seeded) = Event::decode(&message.payload).unwrap() else { panic!("parents come first") };
        assert!((384_187..=384_188).contains(&seeded.height) && !seeded.coinbase);
    }
}

#[test]
fn the_first_height_takes_precedence_over_the_coinbase() {
    let files = [file("mainnet-384188.block"), file("mainnet-384189.block")];
    let chain = Chain::new(&files, Some(100), PreviousOutputs::Invented).unwrap();
    assert_eq!(chain.blocks().iter().map(|placed| placed.height).collect::<Vec<_>>(), [100, 101]);
}

fn error(files: &[SourceFile], previous: PreviousOutputs) -> String {
    let text = Chain::new(files, None, previous).unwrap_err().to_string();
    assert!(!text.contains('\n'));
    text
}

#[test]
fn the_error_of_an_unknown_previous_output_names_the_options() {
    let text = error(&[file("mainnet-277647.block")], PreviousOutputs::InTheFiles);
    assert!(text.starts_with("block 277647: input 0 of "), "{text}");
    assert!(text.contains("--prevouts CSV") && text.contains("--synthesize-prevouts"), "{text}");
}

#[test]
fn a_list_that_contradicts_the_files_is_refused() {
    let files = [file("mainnet-277647.block")];
    let PreviousOutputs::Listed(mut parents) = listed("mainnet-277647.prevouts.csv") else { unreachable!() };
    let (txid, _) = read_blocks(&files, None).map(|blocks| (blocks[0].txids.clone(), ())).unwrap();
    let inside = parents.0.iter_mut().find(|(parent, _)| txid.contains(parent)).unwrap();
    inside.1.outputs.values_mut().next().unwrap().0 += 1;
    let text = error(&files, PreviousOutputs::Listed(parents));
    assert!(text.contains("contradict the files"), "{text}");
}

#[test]
fn the_error_of_a_file_without_a_whole_block_names_file_and_offset() {
    let whole = file("mainnet-0-4312.blk");
    let cut = |bytes: &[u8]| error(&[SourceFile { name: "cut.blk".into(), bytes: bytes.to_vec() }], Default::default());
    assert!(cut(&whole.bytes[..200]).starts_with("cut.blk: block file cut in half at byte 200"));
    assert_eq!(cut(&[]), "cut.blk: block file is empty");
    assert!(cut(&[0; 100]).contains("no block in the 1 files"));
    let bare = file("mainnet-277647.block");
    assert!(cut(&bare.bytes[..bare.bytes.len() / 2]).contains("cut in half"));
    let unknown = [b"\x01\x02\x03\xff", &whole.bytes[4..293]].concat();
    assert!(cut(&unknown).starts_with("cut.blk: unknown magic 010203ff at byte 0: "), "{}", cut(&unknown));
    // One satoshi more in the coinbase of block 0: the header commits to another coinbase.
    let mut forged = whole.bytes[..293].to_vec();
    forged[8 + 80 + 1 + 120] ^= 1;
    let text = cut(&forged);
    assert!(text.contains("merkle root"), "{text}");
}

/// Returns the first `count` frames of the main network's file.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let whole = file("mainnet-0-4312.blk").bytes;
    let mut at = 0;
    let frames = (0..count).map(|_| {
        let length = u32::from_le_bytes(whole[at + 4..at + 8].try_into().unwrap()) as usize;
        let frame = whole[at..at + 8 + length].to_vec();
        at += frame.len();
        frame
    });
    frames.collect()
}

/// Returns a block with the same previous block and another reward, to which its header commits.
fn rival(frame: &[u8]) -> Vec<u8> {
    let mut rival = frame.to_vec();
    let coinbase_at = 8 + crate::tx::block::HEADER_LEN + 1;
    *rival.last_mut().unwrap() ^= 1;
    let txid = Transaction::parse(&rival[coinbase_at..]).unwrap().txid();
    rival[8 + 36..8 + 68].copy_from_slice(&txid.0);
    rival
}

#[test]
fn blocks_of_a_node_file_are_connected_by_previous_hash() {
    let frames = frames(5);
    let [genesis, first, second, third, fourth] = &frames[..] else { panic!() };
    let stale = rival(second);
    let far = file("mainnet-277647.block").bytes;
    let far = [&genesis[..4], &(far.len() as u32).to_le_bytes(), &far].concat();
    // A stale block before its rival, blocks in another order, a repeated block, an unconnected block, a gap, and half
    // a block at the end.
    let bytes =
        [&genesis[..], &first[..], &stale, &third[..], &[0; 64], &second[..], &first[..], &far, &fourth[..94]].concat();
    let files = [SourceFile { name: "node.blk".into(), bytes }];
    let chain = Chain::new(&files, None, PreviousOutputs::InTheFiles).unwrap();
    let places: Vec<_> = chain.blocks().iter().map(|placed| (placed.height, placed.block_id)).collect();
    assert_eq!(places, [(0, 0), (1, 1), (2, 2), (3, 3)]);
    for (placed, frame) in chain.blocks().iter().zip([genesis, first, second, third]) {
        assert_eq!(placed.block.raw(), &frame[8..]);
    }
    let left_out = chain.left_out();
    assert_eq!((left_out.stale_blocks, left_out.unconnected_blocks, left_out.repeated_blocks), (1, 1, 1));
    assert_eq!((left_out.pieces, left_out.bytes), (1, 94));
    let line = left_out.to_string();
    assert!(line.contains("node.blk: byte ") && line.contains("cut in half") && !line.contains('\n'), "{line}");
    assert!(
        Chain::new(&[file("mainnet-0-4312.blk")], None, PreviousOutputs::InTheFiles).unwrap().left_out().is_empty()
    );
}

#[test]
fn the_branch_with_the_most_work_is_taken_and_of_equal_branches_the_first() {
    let frames = frames(3);
    let (stale, second) = (rival(&frames[2]), &frames[2]);
    for (order, taken) in [([&stale, second], &stale), ([second, &stale], second)] {
        let bytes = [&frames[0][..], &frames[1], order[0], order[1]].concat();
        let files = [SourceFile { name: "tie.blk".into(), bytes }];
        let blocks = read_blocks(&files, None).unwrap();
        assert_eq!(blocks[2].block.raw(), &taken[8..]);
    }
}

#[test]
fn blocks_of_several_files_form_one_chain_in_any_order_and_bare_blocks_stay() {
    let frames = frames(4);
    let named = |name: &str, frames: &[&Vec<u8>]| SourceFile {
        name: name.into(),
        bytes: frames.iter().flat_map(|frame| frame.iter().copied()).collect(),
    };
    let files = [named("b.blk", &[&frames[3], &frames[2]]), named("a.blk", &[&frames[1], &frames[0]])];
    let heights: Vec<u32> = read_blocks(&files, None).unwrap().iter().map(|placed| placed.height).collect();
    assert_eq!(heights, [0, 1, 2, 3]);
    let bare = [file("mainnet-277647.block"), file("mainnet-384188.block")];
    let heights: Vec<u32> = read_blocks(&bare, None).unwrap().iter().map(|placed| placed.height).collect();
    assert_eq!(heights, [277_647, 384_188]);
}

#[test]
fn the_error_of_an_unknown_height_names_the_option() {
    let headless = frames(2).pop().unwrap();
    let text = error(&[SourceFile { name: "one.blk".into(), bytes: headless.clone() }], Default::default());
    assert!(text.contains("--first-height"), "{text}");
    // A version-2 block before BIP 34: its coinbase begins with the compact target.
    let mut version_2 = headless;
    version_2[8] = 2;
    let files = [SourceFile { name: "two.blk".into(), bytes: version_2 }];
    let text = error(&files, Default::default());
    assert!(text.contains("is unknown") && text.contains("BIP 34"), "{text}");
    assert_eq!(read_blocks(&files, Some(1)).unwrap()[0].height, 1);
}

#[test]
fn each_rival_spends_the_output_of_its_pair_in_the_stated_order() {
    let files = [file("mainnet-277647.block")];
    let chain = Chain::new(&files, None, listed("mainnet-277647.prevouts.csv")).unwrap();
    let rivals = Rivals::new(&chain, 3, 0.3);
    let messages: Vec<Message> = rivals.interleave(chain.messages()).collect();
    let own: Vec<Message> = chain.messages().collect();
    let position = |txid: Txid| messages.iter().position(|message| message.key == Some(txid)).unwrap();
    let added: usize = rivals.pairs().iter().map(|pair| 2 + usize::from(pair.own_child.is_some())).sum();
    assert_eq!(messages.len(), own.len() + added);
    let unchanged: Vec<Message> = messages.iter().filter(|message| own.contains(message)).cloned().collect();
    assert_eq!(unchanged, own, "the blocks' own messages keep their order");

    let spends = |txid: Txid, outpoint: Outpoint| {
        let Event::Validated(validated) = Event::decode(&messages[position(txid)].payload).unwrap() else { panic!() };
        let transaction = Transaction::parse(validated.tx).unwrap();
        transaction.check().unwrap();
        assert_eq!(transaction.txid(), txid);
        transaction.inputs().any(|input| input.outpoint == outpoint)
    };
    for pair in rivals.pairs() {
        assert!(spends(pair.own, pair.outpoint) && spends(pair.rival, pair.outpoint) && pair.own != pair.rival);
        assert_eq!(position(pair.rival) < position(pair.own), pair.is_rival_first);
        assert!(spends(pair.rival_child, Outpoint { txid: pair.rival, vout: 0 }));
        assert!(position(pair.rival_child) > position(pair.rival));
        assert!(pair.own_child.is_none_or(|child| position(child) > position(pair.own)));
    }
    let first = rivals.pairs().iter().filter(|pair| pair.is_rival_first).count();
    assert!(first > 10 && rivals.pairs().len() - first > 10);
    assert_eq!(Rivals::new(&chain, 3, 0.3).pairs(), rivals.pairs());
    assert_ne!(Rivals::new(&chain, 4, 0.3).pairs(), rivals.pairs());
    assert_eq!(Rivals::new(&chain, 3, 0.0).pairs().len(), 1, "at least one pair");
}
