//! How commands end.

/// How a command that did its work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Exit code 0.
    Good,
    /// It ran and found what must not be, such as wrong bytes. Exit code 1.
    Bad,
    /// It ran and found nothing but leftovers, which cost nothing. Exit code 3.
    Untidy,
    /// A signal ended it early. Exit code 128 and the signal's number.
    Interrupted,
}
