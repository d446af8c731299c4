//! Loading a root: from the journal of a dead member, or by a walk.
//!
//! | file | what it holds |
//! |---|---|
//! | `opening.rs` | `Opening`: a member that is about to load what it owns |
//! | `load.rs` | `load()`: journals believed, or a walk |
//! | `check.rs` | whether a sound journal can be gone on with |
//! | `doubt.rs` | leaves in which something was under way |
//! | `take.rs`, `taken.rs` | what was owned, taken into index, policy, directories and account |
//! | `note.rs` | what a start writes down |
//! | `level.rs` | walks of a root, or of its own level |

pub(crate) mod check;
pub(crate) mod doubt;
pub(crate) mod level;
pub(crate) mod load;
pub(crate) mod note;
pub(crate) mod opening;
pub(crate) mod take;
mod taken;
