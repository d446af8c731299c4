//! Buffers between a file system that may hang and the engine's memory. A load into one can be given up at any moment:
//! whatever the file system still writes lands in memory of ours (I5). Costs one copy a block.

use std::{fmt, io, str::FromStr};

use crate::{
    error::{Error, Result},
    io::PageBuffer,
    sync::{Mutex, lock},
};

/// Whether loads go through a buffer of the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BounceMode {
    /// On network and FUSE file systems, and where the locality is remote.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: straight into the slot.
    Never,
}

impl BounceMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// The word in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }

    pub(crate) fn applies(self, may_hang: bool) -> bool {
        match self {
            Self::Auto => may_hang,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

impl fmt::Display for BounceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BounceMode {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|m| m.as_str() == s);
        known.ok_or_else(|| Error::invalid("read bounce", format!("{s:?} is none of auto, always, never")))
    }
}

/// The buffers of one tier: as many as workers ever read at one time.
#[derive(Debug)]
pub(crate) struct Bounce {
    /// Whether loads use them.
    pub(crate) on: bool,
    len: usize,
    spare: Mutex<Vec<PageBuffer>>,
}

impl Bounce {
    pub(crate) fn new(on: bool, len: usize) -> Self {
        Self {
            on,
            len,
            spare: Mutex::default(),
        }
    }

    /// Calls `f` with a buffer of a block's length. A buffer whose I/O hangs stays away until that ends.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut [u8]) -> R) -> io::Result<R> {
        let spare = lock(&self.spare).pop();
        let mut buffer = match spare {
            Some(b) => b,
            None => PageBuffer::new(self.len).map_err(|_| io::ErrorKind::OutOfMemory)?,
        };
        let out = f(buffer.as_mut_slice().get_mut(..self.len).unwrap_or_default());
        lock(&self.spare).push(buffer);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_setting_are_read_back() {
        for m in BounceMode::ALL {
            assert_eq!(m.as_str().parse::<BounceMode>().unwrap(), m);
        }
        assert!("sometimes".parse::<BounceMode>().is_err());
        assert!(BounceMode::Auto.applies(true) && !BounceMode::Auto.applies(false));
        assert!(BounceMode::Always.applies(false) && !BounceMode::Never.applies(true));
    }

    #[test]
    fn a_buffer_is_used_again_and_one_that_is_away_is_not_waited_for() {
        let b = Bounce::new(true, 5000);
        b.with(|one| {
            assert_eq!(one.len(), 5000);
            b.with(|other| assert_ne!(one.as_ptr(), other.as_ptr())).unwrap();
        })
        .unwrap();
        assert_eq!(lock(&b.spare).len(), 2);
    }
}
