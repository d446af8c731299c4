//! What the ledger knows of a member's journal: which file is the newest, how long it is at least, and what the member
//! held. A journal that is another's, shorter or older than that is not what its member wrote, however whole it is, and
//! what it does not tell of would be counted by nobody (I1).

use super::{
    fields::Reader,
    unusable::{Seen, Unusable},
};

/// Bytes of a mark without its checksum.
pub(crate) const MARK_BYTES: usize = 40;

/// A member's journal as it was when the ledger was last told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Mark {
    /// The owner who told it: what a later one wrote is not measured by it.
    pub(crate) incarnation: u32,
    pub(crate) generation: u32,
    /// Of the journal of that generation.
    pub(crate) nonce: u64,
    /// What its generations have in common; 0: not told.
    pub(crate) line: u64,
    /// Bytes up to the last whole frame.
    pub(crate) len: u64,
    /// Bytes that the member held, if it ended in order; else 0.
    pub(crate) held: u64,
}

impl Mark {
    pub(crate) fn fields(&self) -> [[u8; 8]; 5] {
        let first = u64::from(self.generation) << 32 | u64::from(self.incarnation);
        [first, self.nonce, self.line, self.len, self.held].map(u64::to_le_bytes)
    }

    /// Reads what [`fields`](Self::fields) wrote.
    pub(crate) fn read(r: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            incarnation: r.u32()?,
            generation: r.u32()?,
            nonce: r.u64()?,
            line: r.u64()?,
            len: r.u64()?,
            held: r.u64()?,
        })
    }

    /// Whether the journals that were read are those that the ledger was told of, or came after them.
    pub(super) fn fits(&self, seen: &[Seen]) -> Result<(), Unusable> {
        let other = |what: String| Err(Unusable::Damaged(format!("{what}, as the ledger knows")));
        let Some(newest) = seen.last().filter(|n| n.generation >= self.generation) else {
            return other(format!("generation {} is missing", self.generation));
        };
        if self.line != 0 && newest.line != self.line {
            return other("it is not the one that its member wrote".into());
        }
        match seen.iter().find(|s| s.generation == self.generation) {
            Some(s) if s.nonce != self.nonce => other("it is not the one that its member wrote".into()),
            Some(s) if s.len < self.len => other(format!(
                "it ends at byte {}, and was {} bytes long",
                s.len, self.len
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark {
        incarnation: 1,
        generation: 4,
        nonce: 44,
        line: 7,
        len: 1000,
        held: 0,
    };

    fn seen(generation: u32, len: u64) -> Seen {
        Seen {
            generation,
            nonce: u64::from(generation) * 11,
            line: 7,
            len,
        }
    }

    #[test]
    fn what_came_after_fits_and_what_is_older_shorter_or_anothers_does_not() {
        let fits = |s: &[Seen]| MARK.fits(s).is_ok();
        assert!(fits(&[seen(3, 9), seen(4, 1000)]) && fits(&[seen(4, 5000), seen(5, 64)]));
        assert!(fits(&[seen(6, 64)]), "folded since");
        assert!(!fits(&[]) && !fits(&[seen(3, 5000)]), "older");
        assert!(!fits(&[seen(4, 999), seen(5, 9000)]), "shorter");
        let of = |line, nonce| Seen {
            line,
            nonce,
            ..seen(4, 1000)
        };
        assert!(
            !fits(&[of(8, 44)]) && !fits(&[of(7, 45)]) && !fits(&[of(0, 44)]),
            "another's"
        );
        let old = Mark { line: 0, ..MARK };
        assert!(old.fits(&[of(9, 44)]).is_ok(), "begun by an older version");
    }

    #[test]
    fn a_mark_reads_back() {
        let bytes = MARK.fields().concat();
        assert_eq!(bytes.len(), MARK_BYTES);
        assert_eq!(Mark::read(&mut Reader(&bytes)), Some(MARK));
    }
}
