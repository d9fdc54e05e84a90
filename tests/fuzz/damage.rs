//! Damage to inputs: what libFuzzer would try, without what it learns.

use utxo_store::seeded::Seeded;

/// Numbers at which formats change their mind.
const EDGES: [u64; 12] = [0, 1, 0x7f, 0x80, 0xfc, 0xfd, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, u32::MAX as u64, u64::MAX];

/// Longer inputs are cut: a short one says as much, and sooner.
const LONGEST: usize = 8_192;

/// One of `inputs` with one to four things wrong with it.
pub fn damaged(random: &mut Seeded, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(inputs).clone();
    for _ in 0..1 + random.below(4) {
        damage(random, &mut bytes, inputs);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn damage(random: &mut Seeded, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
    let at = random.below(bytes.len() as u64) as usize;
    let Some(byte) = bytes.get_mut(at) else { return bytes.push(random.next_u64() as u8) };
    match random.below(10) {
        0 => *byte ^= 1 << random.below(8),
        1 => *byte = random.next_u64() as u8,
        2 => *byte = byte.wrapping_add(random.below(5) as u8).wrapping_sub(2),
        3 => bytes.truncate(at),
        4 => drop(bytes.drain(at..end(random, at, bytes.len()))),
        5 => {
            let again = bytes[at..end(random, at, bytes.len())].to_vec();
            drop(bytes.splice(at..at, again));
        }
        6 => put_number(random, &mut bytes[at..]),
        7 => {
            let other = random.pick(inputs);
            let from = random.below(other.len() as u64) as usize;
            let piece = other[from..end(random, from, other.len())].to_vec();
            let to = if random.below(2) == 0 { at } else { bytes.len().min(at + piece.len()) };
            drop(bytes.splice(at..to, piece));
        }
        // A VarInt in a longer form than it needs.
        8 => {
            let long = [0xfd, *byte, 0];
            drop(bytes.splice(at..=at, long));
        }
        _ => bytes.insert(at, random.next_u64() as u8),
    }
}

/// The end of a piece that starts at `at`: mostly a short one.
fn end(random: &mut Seeded, at: usize, len: usize) -> usize {
    let longest = if random.below(4) == 0 { len } else { 40 };
    (at + random.below(longest as u64 + 1) as usize).min(len)
}

/// An edge, of any width and in either byte order, over what is there.
fn put_number(random: &mut Seeded, bytes: &mut [u8]) {
    let width = (1 << random.below(4)).min(bytes.len());
    let edge = random.pick(&EDGES).to_le_bytes();
    bytes[..width].copy_from_slice(&edge[..width]);
    if random.below(2) == 0 {
        bytes[..width].reverse();
    }
}
