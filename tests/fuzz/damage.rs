//! Damage to inputs, as libFuzzer would try, but without coverage feedback.

use utxo_store::rng::SplitMix64;

/// Numbers at the limits of the formats.
const EDGES: [u64; 12] = [0, 1, 0x7f, 0x80, 0xfc, 0xfd, 0xff, 0xffff, 0x1_0000, 0x7fff_ffff, u32::MAX as u64, u64::MAX];

/// Length at which inputs are cut: a short input finds the same faults sooner.
const LONGEST: usize = 8_192;

/// Returns one of `inputs` with one to four defects.
pub fn damaged(random: &mut SplitMix64, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(inputs).clone();
    for _ in 0..1 + random.below(4) {
        damage(random, &mut bytes, inputs);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn damage(random: &mut SplitMix64, bytes: &mut Vec<u8>, inputs: &[Vec<u8>]) {
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

/// Returns the end of a piece that starts at `at`, mostly a short piece.
fn end(random: &mut SplitMix64, at: usize, len: usize) -> usize {
    let longest = if random.below(4) == 0 { len } else { 40 };
    (at + random.below(longest as u64 + 1) as usize).min(len)
}

/// Writes a limit number over the bytes, in any width and either byte order.
fn put_number(random: &mut SplitMix64, bytes: &mut [u8]) {
    let width = (1 << random.below(4)).min(bytes.len());
    let edge = random.pick(&EDGES).to_le_bytes();
    bytes[..width].copy_from_slice(&edge[..width]);
    if random.below(2) == 0 {
        bytes[..width].reverse();
    }
}
