//! The error of a command that cannot run as it was asked to.

/// The input is wrong, not the run: exit code 2, with a hint.
#[derive(Debug)]
pub(crate) struct UsageError {
    /// What is wrong.
    pub(crate) message: String,
    /// What to do instead.
    pub(crate) hint: Option<&'static str>,
}

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UsageError {}
