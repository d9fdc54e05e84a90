//! [`ObfuscationKey`]: key of obfuscated block files, which Bitcoin Core writes from version 28 on.

use super::{FRAME_LEN, network::FileNetwork};

/// Key of a directory of block files (`xor.dat`). The node writes the byte at position `i` of a file XOR byte `i` mod 8
/// of the key. A key of zeros changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObfuscationKey(pub [u8; 8]);

impl ObfuscationKey {
    /// Reads the key from the content of `xor.dat`.
    ///
    /// # Errors
    /// Returns the length of the content where it is not 8 bytes.
    pub fn from_file(bytes: &[u8]) -> Result<Self, usize> {
        <[u8; 8]>::try_from(bytes).map(ObfuscationKey).map_err(|_| bytes.len())
    }

    /// Restores the plain bytes of a file, frame by frame. Zeros between frames stay zeros, because the node allocates
    /// space without obfuscation. A file that begins with a known magic was not obfuscated and stays unchanged.
    pub fn reveal(self, bytes: &mut [u8]) {
        let is_plain = bytes.first_chunk().is_some_and(|magic| FileNetwork::from_magic(*magic).is_some());
        if is_plain || self.0 == [0; 8] {
            return;
        }
        let mut at = 0;
        while at < bytes.len() {
            let end = match self.find_frame_end(bytes, at) {
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

    /// Returns the end of the frame that begins at byte `at`, at most the end of the file; `None`: no frame begins
    /// there.
    fn find_frame_end(self, bytes: &[u8], at: usize) -> Option<usize> {
        let frame: &[u8; FRAME_LEN] = bytes.get(at..)?.first_chunk()?;
        let mut revealed = *frame;
        for (place, byte) in (at..).zip(&mut revealed) {
            *byte ^= self.byte(place);
        }
        let [m0, m1, m2, m3, l0, l1, l2, l3] = revealed;
        FileNetwork::from_magic([m0, m1, m2, m3])?;
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).ok()?;
        Some(at.saturating_add(FRAME_LEN).saturating_add(length).min(bytes.len()))
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
