//! How far a root is that is being opened.

use crate::error::Error;

/// How far the keeper is.
#[derive(Debug, Default)]
pub(crate) enum Phase {
    /// What is there is being read.
    #[default]
    Loading,
    /// There is no journal to be believed: the tree is being walked.
    Walking,
    /// All is known; what is above the bound is being removed.
    Trimming,
    /// Stores are taken.
    Open,
    /// It cannot be opened; the error, until somebody took it.
    Failed(Option<Error>),
}
