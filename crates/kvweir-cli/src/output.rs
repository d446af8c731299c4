//! The only way out: results to stdout, everything said to people to stderr.

use std::io::{self, Write};

/// Writes to stdout. A reader that went away is not an error.
pub(crate) fn result(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// Writes a line to stderr. If even that fails there is nobody left to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Tells an error, its causes in the same line, and what to do about it in the next.
pub(crate) fn error(e: &anyhow::Error, hint: Option<&str>) {
    let line = format!("{e:#}").replace('\n', " ");
    say(&format!("error: {line}"));
    if let Some(hint) = hint {
        say(&format!("help: {hint}"));
    }
}
