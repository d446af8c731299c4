//! What an entry of the index tells beyond fingerprint, state and pins: twelve bytes and two marks, which only the tier
//! that wrote them can read. The index knows no directory and no slot.

/// The opaque part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Body {
    /// Twelve bytes.
    pub(crate) words: [u32; 3],
    /// Which of the catalog's policies ranks the entry.
    pub(crate) rank: Rank,
    /// A mark of the tier's.
    pub(crate) mark: bool,
}

/// Stores of slots that a catalog can tell apart.
pub(crate) const MAX_SLOT_STORES: usize = 15;

/// A policy of a catalog: entries of one kind are weighed against each other, and each kind by its own unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rank {
    /// Blocks with files, or objects, of their own: by weight.
    #[default]
    Whole,
    /// Blocks in slots of one size, by the number of those slots' store: each of weight 1.
    Slot(u8),
}
