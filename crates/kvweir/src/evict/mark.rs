//! What ARC and S3-FIFO note about an entry, in four bytes: which of two queues it is on, a frequency up to 3, and
//! the request that touched it last. A request's number is folded to 29 bits; two requests 2^29 apart look alike,
//! which costs one uncounted access.

use super::{
    RequestTag,
    list::{LINKS, Note},
};

const QUEUE: u32 = 1 << 31;
const FREQ_SHIFT: u32 = 29;
const TAG: u32 = (1 << FREQ_SHIFT) - 1;

/// A packed note; see the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mark(u32);

impl Mark {
    /// An entry on the first or second queue, inserted by `tag`, frequency 0.
    pub(super) const fn new(second: bool, tag: RequestTag) -> Self {
        let queue = if second { QUEUE } else { 0 };
        Self(queue | fold(tag))
    }

    /// Whether the entry is on the second queue (T2, main).
    pub(super) const fn second(self) -> bool {
        self.0 & QUEUE != 0
    }

    pub(super) const fn freq(self) -> u32 {
        (self.0 >> FREQ_SHIFT) & 3
    }

    /// Whether an access by `tag` is another request's than the last, or nobody's.
    pub(super) const fn counts(self, tag: RequestTag) -> bool {
        tag.0 == 0 || self.0 & TAG != fold(tag)
    }

    #[must_use]
    pub(super) const fn on(self, second: bool) -> Self {
        Self(if second { self.0 | QUEUE } else { self.0 & !QUEUE })
    }

    #[must_use]
    pub(super) const fn touched_by(self, tag: RequestTag) -> Self {
        Self(self.0 & !TAG | fold(tag))
    }

    /// The frequency set to `freq`, at most 3.
    #[must_use]
    pub(super) const fn with_freq(self, freq: u32) -> Self {
        let freq = if freq > 3 { 3 } else { freq };
        Self(self.0 & !(3 << FREQ_SHIFT) | freq << FREQ_SHIFT)
    }
}

impl Note for Mark {
    const NODE: usize = LINKS + 4;

    fn words(self) -> [u32; 2] {
        [self.0, 0]
    }

    fn of_words([word, _]: [u32; 2]) -> Self {
        Self(word)
    }
}

/// 0 stays 0 (nobody) and nothing else becomes 0.
const fn fold(tag: RequestTag) -> u32 {
    if tag.0 == 0 { 0 } else { (tag.0 - 1) % TAG + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        for tag in [0, 1, TAG - 1, TAG, TAG + 1, u32::MAX] {
            let tag = RequestTag(tag);
            let m = Mark::new(true, RequestTag::NONE).with_freq(7).touched_by(tag);
            assert_eq!(
                (m.second(), m.freq(), m.counts(tag)),
                (true, 3, tag == RequestTag::NONE)
            );
            assert!(m.counts(RequestTag::NONE) && m.counts(RequestTag(5)));
            let m = m.on(false).with_freq(1);
            assert_eq!(
                (m.second(), m.freq(), m.counts(tag)),
                (false, 1, tag == RequestTag::NONE)
            );
        }
    }
}
