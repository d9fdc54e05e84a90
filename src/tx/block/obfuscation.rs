//! [`ObfuscationKey`]: block files that are written XOR a key, as Bitcoin Core does from version 28 on.

use super::network::FileNetwork;

/// Magic and length.
const FRAME: usize = 8;

/// The key of a directory of block files (`xor.dat`): each byte of a file is written XOR the byte of the key that its
/// place in the file chooses. A key of zeros changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObfuscationKey(pub [u8; 8]);

impl ObfuscationKey {
    /// The key in `xor.dat`.
    ///
    /// # Errors
    /// How many bytes there are instead of 8.
    pub fn from_file(bytes: &[u8]) -> Result<Self, usize> {
        <[u8; 8]>::try_from(bytes).map(ObfuscationKey).map_err(|_| bytes.len())
    }

    /// Turns the bytes of a file into what was written, frame by frame. Zeros between frames stay zeros: the node
    /// reserves room without obfuscating it. Bytes that begin with a magic as they are were not obfuscated.
    pub fn reveal(self, bytes: &mut [u8]) {
        let plain = bytes.first_chunk().is_some_and(|magic| FileNetwork::of_magic(*magic).is_some());
        if plain || self.0 == [0; 8] {
            return;
        }
        let mut at = 0;
        while at < bytes.len() {
            let end = match self.frame_at(bytes, at) {
                Some(end) => end,
                None if bytes[at] == 0 => {
                    at += 1;
                    continue;
                }
                None => at + 1,
            };
            for (place, byte) in (at..end).zip(&mut bytes[at..end]) {
                *byte ^= self.byte(place);
            }
            at = end;
        }
    }

    fn byte(self, place: usize) -> u8 {
        self.0[place % self.0.len()]
    }

    /// Where the frame ends that begins at `at`, or the file does.
    fn frame_at(self, bytes: &[u8], at: usize) -> Option<usize> {
        let frame: &[u8; FRAME] = bytes.get(at..)?.first_chunk()?;
        let mut revealed = *frame;
        for (place, byte) in (at..).zip(&mut revealed) {
            *byte ^= self.byte(place);
        }
        let [m0, m1, m2, m3, l0, l1, l2, l3] = revealed;
        FileNetwork::of_magic([m0, m1, m2, m3])?;
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).ok()?;
        Some(at.saturating_add(FRAME).saturating_add(length).min(bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ObfuscationKey = ObfuscationKey([0x5a, 0, 0xff, 1, 2, 3, 4, 0x80]);

    fn xored(bytes: &[u8], from: usize) -> Vec<u8> {
        (from..).zip(bytes).map(|(place, byte)| byte ^ KEY.byte(place)).collect()
    }

    #[test]
    fn frames_are_revealed_by_their_place_and_gaps_stay_zeros() {
        let frame = [&FileNetwork::Main.block_file_magic()[..], &5_u32.to_le_bytes(), &[0x5a, 0, 0, 7, 0]].concat();
        let gap = [0; 11];
        let second = xored(&frame, frame.len() + gap.len());
        let mut file = [&xored(&frame, 0)[..], &gap, &second, &gap].concat();
        KEY.reveal(&mut file);
        assert_eq!(file, [&frame[..], &gap, &frame, &gap].concat());
        let plain = file.clone();
        KEY.reveal(&mut file);
        assert_eq!(file, plain, "a file that is not obfuscated stays as it is");
        let mut half = xored(&frame[..10], 0);
        KEY.reveal(&mut half);
        assert_eq!(half, frame[..10]);
    }

    #[test]
    fn a_key_is_eight_bytes() {
        assert_eq!(ObfuscationKey::from_file(&[1; 8]), Ok(ObfuscationKey([1; 8])));
        assert_eq!(ObfuscationKey::from_file(&[1; 7]), Err(7));
        let mut bytes = [1, 2, 3];
        ObfuscationKey([0; 8]).reveal(&mut bytes);
        assert_eq!(bytes, [1, 2, 3]);
    }
}
