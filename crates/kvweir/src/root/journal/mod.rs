//! The journal of a member of a root: what it wrote and removed, so that the next start needs no walk (I6).
//!
//! | file | what it holds |
//! |---|---|
//! | `files.rs`, `header.rs`, `record.rs`, `fields.rs` | names of the files; the format |
//! | `older.rs`, `window.rs` | a file that counts and is not written any more; reading one front to back |
//! | `write.rs`, `out.rs` | [`Journal`]: appends; the file that is written |
//! | `rotate.rs` | its next generation, and its end |
//! | `snapshot.rs` | [`Snapshot`]: what a generation begins with, being written |
//! | `read.rs`, `state.rs`, `blocks.rs` | the files of a member that count, and their frames folded into what it owns |
//! | `replay.rs`, `unusable.rs` | [`replay()`]: what a dead member owned; why its journal cannot be used |
//! | `mark.rs` | [`Mark`]: what the ledger knows of it |
//! | `merge.rs` | [`merge()`]: the next snapshot |
//! | `follow.rs` | [`Follower`]: a live member's journal as it grows |
//!
//! Two files per generation: a snapshot of all that was there when it began (none for generation 0), and the journal of
//! what happened since. A `begin` precedes the making of directories and the publishing of a file, a `stored` follows;
//! an `evict` precedes a removal, a `gone` follows. Whatever was begun and not ended when the process died is in
//! doubt: its leaf directory is looked at again, all else is known to the byte. Nothing is synced: the page cache
//! outlives a process, and after a restart of the machine the tree is walked.

mod blocks;
mod fields;
mod files;
mod follow;
pub(crate) mod header;
mod mark;
mod merge;
mod older;
mod out;
mod read;
pub(crate) mod record;
mod replay;
mod rotate;
mod snapshot;
mod state;
mod unusable;
mod window;
pub(crate) mod write;

pub(crate) use self::{older::Resume, out::CREDIT_BLOCKS, write::Journal};
pub(crate) use self::{read::files_of, unusable::Unusable};
pub(crate) use blocks::Owned;
pub(crate) use fields::{Reader, units};
pub(crate) use files::{parse_name, path};
pub(crate) use follow::{Follower, Step};
pub(crate) use mark::{MARK_BYTES, Mark};
pub(crate) use merge::merge;
pub(crate) use record::{DirCosts, Facts};
pub(crate) use replay::{Replayed, replay};
pub(crate) use snapshot::Snapshot;
