//! What `verify` finds, and how grave it is.

use crate::root::names::{Part, extent_part};
use serde::Serialize;

/// What may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The page behind the block is torn or foreign.
    DamagedTrailer,
    /// The block's bytes are not those that were stored.
    DamagedPayload,
    /// Another key's block lies under this name.
    WrongKey,
    /// Another namespace's block lies in this directory.
    WrongNamespace,
    /// Neither a block's length nor that of a block with trailer.
    WrongSize,
    /// Nothing in it.
    ZeroLength,
    /// A temporary of ours that nobody writes.
    LeftoverTemporary,
    /// A directory of the layout without entries.
    EmptyDirectory,
    /// The first page of an extent is not a header that was written whole.
    DamagedHeader,
    /// What an extent's table says of a slot is neither a record nor nothing.
    DamagedRecord,
    /// A file of an extent ends before its last slot.
    TruncatedExtent,
    /// Only one of the two files of an extent is there.
    HalfExtent,
    /// A whole block, but of another length than its namespace's others: a miss to the engine. Stays.
    OtherSize,
    /// A trailer of a version that this program does not know. Stays.
    NewerFormat,
    /// The system would not let it be read. Stays.
    Unreadable,
    /// A block file that no journal knows: counted by nobody. Stays; a repair lets the next start walk and count it.
    NotInJournal,
    /// An extent that takes more bytes than its journal counts. Stays, as above.
    CountedTooLow,
    /// A journal counts an extent that is not there. A repair lets the next start walk and count what is.
    ExtentGone,
    /// A journal whose bytes are not what was written. A repair gives all journals up.
    DamagedJournal,
    /// A ledger whose bytes are not what was written. A repair gives it up.
    DamagedLedger,
    /// More bytes lie below the root than its bound: what is there is not what members count. A repair lets the next
    /// start walk, count and trim.
    AboveBound,
}

impl Fault {
    /// The words for people and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DamagedTrailer => "damaged_trailer",
            Self::DamagedPayload => "damaged_payload",
            Self::WrongKey => "wrong_key",
            Self::WrongNamespace => "wrong_namespace",
            Self::WrongSize => "wrong_size",
            Self::ZeroLength => "zero_length",
            Self::LeftoverTemporary => "leftover_temporary",
            Self::EmptyDirectory => "empty_directory",
            Self::DamagedHeader => "damaged_header",
            Self::DamagedRecord => "damaged_record",
            Self::TruncatedExtent => "truncated_extent",
            Self::HalfExtent => "half_extent",
            Self::OtherSize => "other_size",
            Self::NewerFormat => "newer_format",
            Self::Unreadable => "unreadable",
            Self::NotInJournal => "not_in_journal",
            Self::CountedTooLow => "counted_too_low",
            Self::ExtentGone => "extent_gone",
            Self::DamagedJournal => "damaged_journal",
            Self::DamagedLedger => "damaged_ledger",
            Self::AboveBound => "above_bound",
        }
    }

    /// Whether it proves that nothing is lost by removing the file.
    pub const fn is_provable(self) -> bool {
        !self.is_of_journals() && !matches!(self, Self::OtherSize | Self::NewerFormat | Self::Unreadable)
    }

    /// Whether it is mended by the next start, when it walks the root.
    pub const fn is_of_journals(self) -> bool {
        matches!(
            self,
            Self::NotInJournal
                | Self::CountedTooLow
                | Self::ExtentGone
                | Self::DamagedJournal
                | Self::DamagedLedger
                | Self::AboveBound
        )
    }
}

/// What a finding means for whoever keeps the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Nothing is lost: a leftover, as every kill leaves some. `gc`, a repair or the next start tidies up.
    Tidy,
    /// No block is lost, but bytes are not counted as they are: the bound may not be kept until the next walk.
    Bound,
    /// A block is lost, or cannot be served as it is.
    Block,
}

impl Weight {
    /// The words for people and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tidy => "tidy",
            Self::Bound => "bound",
            Self::Block => "block",
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// What.
    pub fault: Fault,
    /// What it means.
    pub weight: Weight,
    /// Where, relative to the root.
    pub path: String,
    /// The slot of the extent at `path`, where one is meant and not the file.
    pub slot: Option<u32>,
    /// In words.
    pub detail: String,
}

impl Finding {
    pub(crate) fn new(fault: Fault, path: String, slot: Option<u32>, detail: String) -> Self {
        // without its table a data file is an extent in the making
        let in_the_making = || matches!(extent_part_of(&path), Some(Part::Data));
        let weight = match fault {
            Fault::LeftoverTemporary | Fault::EmptyDirectory => Weight::Tidy,
            Fault::HalfExtent if in_the_making() => Weight::Tidy,
            f if f.is_of_journals() => Weight::Bound,
            _ => Weight::Block,
        };
        Self {
            fault,
            weight,
            path,
            slot,
            detail,
        }
    }
}

fn extent_part_of(path: &str) -> Option<Part> {
    let name = path.rsplit('/').next()?;
    extent_part(name).map(|(part, _)| part)
}
