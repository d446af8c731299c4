//! Values that remember where they came from, and the error that says so.

use std::{fmt, sync::Arc};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody gave it.
    Default,
    /// A line of the settings file.
    File {
        /// The file as it was named.
        path: Arc<str>,
        /// Counted from one.
        line: usize,
    },
    /// A flag, by its kebab-case name without dashes.
    Flag(&'static str),
    /// The positional argument.
    Argument,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path} line {line}"),
            Self::Flag(flag) => write!(f, "flag --{flag}"),
            Self::Argument => f.write_str("argument"),
        }
    }
}

/// How a value was written; a flag's text may be read as anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Text of a flag or a default.
    Any,
    /// A TOML string.
    Text,
    /// A TOML integer or float.
    Number,
    /// A TOML boolean.
    Bool,
    /// A TOML array, joined with commas.
    List,
}

/// A value before it is understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Raw {
    /// As written, without quotes.
    pub(crate) text: String,
    /// How it was written.
    pub(crate) shape: Shape,
    /// Where it was written.
    pub(crate) origin: Origin,
}

/// A setting that cannot be used: its name, its value, what is allowed and where it came from, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingError {
    message: String,
    hint: Option<String>,
}

impl Raw {
    /// "`key = value` (origin)", as it was written.
    pub(crate) fn tell(&self, key: &str) -> String {
        let quote = if matches!(self.shape, Shape::Text) {
            "\""
        } else {
            ""
        };
        format!("`{key} = {quote}{}{quote}` ({})", self.text, self.origin)
    }
}

impl SettingError {
    /// A setting whose value is refused. `why` continues the sentence "`key = value` ...".
    pub(crate) fn refused(key: &str, raw: &Raw, why: &str, allowed: &str) -> Self {
        let message = format!("{} {why}", raw.tell(key));
        Self {
            message,
            hint: Some(format!("allowed for `{key}`: {allowed}")),
        }
    }

    /// Any other fault in the settings.
    pub(crate) fn new(message: impl Into<String>, hint: Option<String>) -> Self {
        Self {
            message: message.into(),
            hint,
        }
    }

    /// What to do instead.
    pub(crate) fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SettingError {}
