//! Names of blocks: the opaque [`Key`] an engine gives and the 128-bit [`Fingerprint`] under which indexes keep it. A
//! fingerprint only finds; wherever bytes are handed out the full key was compared too: that in a file's trailer, or,
//! of a packed block, the one that its tag was made of (I2).

use std::fmt;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::error::{Error, Result};

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 255;

/// Opaque bytes (1 to 255) that name a block within its namespace.
///
/// Keys of up to 40 bytes (a 32-byte hash and a group index) are held in place, longer ones on the heap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(SmallVec<[u8; 40]>);

impl Key {
    /// A key of these bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `bytes` is empty or longer than 255.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() || bytes.len() > MAX_KEY_BYTES {
            return Err(Error::invalid(
                "make key",
                format!(
                    "a key has 1 to {MAX_KEY_BYTES} bytes, this one has {}",
                    bytes.len()
                ),
            ));
        }
        Ok(Self(SmallVec::from_slice(bytes)))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The fingerprint of this key in the namespace numbered `seed`.
    pub fn fingerprint(&self, seed: u64) -> Fingerprint {
        Fingerprint::of(&self.0, seed)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Lower-case hexadecimal.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// XXH3-128 of a key, seeded by its namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// The fingerprint of `key` in the namespace numbered `seed`.
    #[inline]
    pub fn of(key: &[u8], seed: u64) -> Self {
        Self(xxh3_128_with_seed(key, seed))
    }

    /// The 64 bits that hash tables use.
    #[inline]
    pub const fn hash64(self) -> u64 {
        self.0 as u64
    }

    /// The other 64 bits, for choosing a part of a table.
    #[inline]
    pub const fn high64(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({:032x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_to_255_bytes_are_accepted_and_no_others() {
        assert!(Key::new(&[]).is_err());
        assert!(Key::new(&[0; 256]).is_err());
        for n in [1, 36, 40, 41, 255] {
            assert_eq!(Key::new(&vec![7; n]).unwrap().as_bytes().len(), n);
        }
    }

    #[test]
    fn a_key_has_another_fingerprint_in_another_namespace() {
        let k = Key::new(b"same").unwrap();
        assert_ne!(k.fingerprint(1), k.fingerprint(2));
        assert_eq!(k.fingerprint(1), Fingerprint::of(b"same", 1));
    }
}
