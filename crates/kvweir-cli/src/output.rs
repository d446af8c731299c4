//! The only way out: results to stdout, everything said to people to stderr.

use std::{
    borrow::Cow,
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

/// Whether errors go to stdout too, as JSON.
static JSON: AtomicBool = AtomicBool::new(false);
/// Whether a result went to stdout: it is one object.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Whoever reads stdout wants JSON.
pub(crate) fn want_json(yes: bool) {
    JSON.fetch_or(yes, Ordering::Relaxed);
}

/// Writes to stdout. A reader that went away is not an error.
pub(crate) fn result(text: &str) -> io::Result<()> {
    TOLD.store(true, Ordering::Relaxed);
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", shown(text).trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes a line to stderr. If even that fails there is nobody left to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", shown(text));
}

/// Names below a root may hold anything: control characters are shown, not sent to the terminal.
fn shown(text: &str) -> Cow<'_, str> {
    let steers = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match steers(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// An error and its causes in one line.
pub(crate) fn line(e: &anyhow::Error) -> String {
    format!("{e:#}").replace('\n', " ")
}

/// Tells an error and, in the next line, what to do about it; as an object too where JSON is wanted.
pub(crate) fn error(message: &str, hint: Option<&str>, code: u8) {
    say(&format!("error: {message}"));
    if let Some(hint) = hint {
        say(&format!("help: {hint}"));
    }
    error_object(message, hint, code);
}

/// Tells an error as an object, where JSON is wanted.
pub(crate) fn error_object(message: &str, hint: Option<&str>, code: u8) {
    if JSON.load(Ordering::Relaxed) && !TOLD.load(Ordering::Relaxed) {
        let error = serde_json::json!({ "message": message, "help": hint, "exit_code": code });
        // nobody is left to tell if that fails
        let _ = result(&serde_json::json!({ "error": error }).to_string());
    }
}
