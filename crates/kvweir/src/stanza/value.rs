//! Values, as written and as understood.

use std::{borrow::Cow, fmt};

/// The longest text of a value that a message repeats.
const SHOWN: usize = 120;

/// A value as it was written, and how it looked.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// What it is.
    pub value: Value,
    /// As messages repeat it, in the words of where it was written.
    pub shown: String,
}

/// What a value is, before it is understood.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number; those beyond 128 bits are the largest.
    Int(i128),
    /// Another number, perhaps NaN.
    Real(f64),
    /// A text.
    Text(String),
    /// A text that is not Unicode, as far as it is. Good for paths only.
    Raw(String),
    /// A list.
    List(Vec<Given>),
    /// Names and values.
    Map(Vec<(String, Given)>),
    /// Anything else.
    Other,
}

impl Given {
    /// A value and how it looked; a long one is cut.
    pub fn new(value: Value, shown: impl Into<String>) -> Self {
        let mut shown = shown.into();
        if let Some((cut, _)) = shown.char_indices().nth(SHOWN) {
            shown.truncate(cut);
            shown.push_str("...");
        }
        // one line, whatever is in it
        if shown.contains(char::is_control) {
            shown = shown.replace(char::is_control, " ");
        }
        Self { value, shown }
    }

    /// A value of JSON.
    pub fn json(value: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let plain = match value {
            Json::Null => Value::Null,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match (n.as_u64(), n.as_i64()) {
                (Some(n), _) => Value::Int(n.into()),
                (None, Some(n)) => Value::Int(n.into()),
                // whole numbers beyond 64 bits come as fractions
                (None, None) => Value::Real(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::Text(s.clone()),
            Json::Array(items) => Value::List(items.iter().map(Self::json).collect()),
            Json::Object(fields) => {
                Value::Map(fields.iter().map(|(k, v)| (k.clone(), Self::json(v))).collect())
            }
        };
        Self::new(plain, value.to_string())
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(s) => Some(s),
            _ => None,
        }
    }

    pub(super) fn map(&self) -> Option<&[(String, Self)]> {
        match &self.value {
            Value::Map(fields) => Some(fields),
            _ => None,
        }
    }
}

/// The value written under `name`, if one was.
pub(super) fn get<'a>(fields: &'a [(String, Given)], name: &str) -> Option<&'a Given> {
    fields.iter().find(|(n, _)| n == name).map(|(_, given)| given)
}

/// A value that was understood.
#[derive(Debug, Clone, PartialEq)]
pub enum Parsed {
    /// Unset.
    Null,
    /// True or false.
    Bool(bool),
    /// A whole number, of bytes where it is a size.
    Int(u64),
    /// A finite number.
    Real(f64),
    /// A text, path or word.
    Text(Cow<'static, str>),
}

impl Parsed {
    pub(super) fn int(&self) -> Option<u64> {
        match self {
            Self::Int(n) => Some(*n),
            _ => None,
        }
    }

    pub(super) fn real(&self) -> Option<f64> {
        match self {
            Self::Real(x) => Some(*x),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(s) => Some(s),
            _ => None,
        }
    }
}

impl fmt::Display for Parsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("none"),
            Self::Bool(b) => b.fmt(f),
            Self::Int(n) => n.fmt(f),
            Self::Real(x) => x.fmt(f),
            Self::Text(s) if s.is_empty() => f.write_str("(empty)"),
            Self::Text(s) => f.write_str(s),
        }
    }
}
