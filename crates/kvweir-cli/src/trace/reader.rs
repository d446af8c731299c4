//! Streaming reader of Mooncake-format JSON lines, plain or compressed. No byte sequence makes it panic, and memory is
//! bounded by the longest line allowed.

use std::{
    fmt,
    io::{self, BufRead, Read},
    path::Path,
    time::Duration,
};

use serde::Deserialize;

use super::{Request, input::Input, notes::Notes, unpack::unpack};
use crate::interrupt;

/// Longer lines are refused: 16 MiB hold about two million block ids.
const LINE_MAX: usize = 16 << 20;
const MILLIS_MAX: f64 = 1e15;

/// What to do with a malformed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadLines {
    /// End with an error that names the line.
    Refuse,
    /// Pass over it and count it.
    Skip,
}

/// A line (or the file itself) that cannot be used, and why.
#[derive(Debug)]
pub(crate) struct LineError {
    file: String,
    line: u64,
    why: String,
    skippable: bool,
}

impl LineError {
    /// Whether `skip_bad_lines` would get past it.
    pub(crate) fn skippable(&self) -> bool {
        self.skippable
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} line {}: {}", self.file, self.line, self.why)
    }
}

impl std::error::Error for LineError {}

/// Iterator over the requests of a trace. After an error it is at its end.
pub(crate) struct TraceReader {
    input: Box<dyn BufRead + Send>,
    file: String,
    line: u64,
    buf: Vec<u8>,
    previous: Duration,
    bad: BadLines,
    notes: Notes,
    done: bool,
}

impl TraceReader {
    /// Opens `path`; `-` is stdin. What is compressed is known by its first bytes, not by the name.
    pub(crate) fn open(path: &Path, bad: BadLines) -> io::Result<Self> {
        if path == Path::new("-") {
            return Self::new(Input::stdin()?, "stdin", bad);
        }
        Self::new(Input::open(path)?, &path.display().to_string(), bad)
    }

    /// Reads `raw`, called `name` in messages.
    pub(crate) fn new(raw: impl Read + Send + 'static, name: &str, bad: BadLines) -> io::Result<Self> {
        let input = unpack(raw)?;
        let (file, notes) = (name.to_owned(), Notes::default());
        Ok(Self {
            input,
            file,
            line: 0,
            buf: Vec::new(),
            previous: Duration::ZERO,
            bad,
            notes,
            done: false,
        })
    }

    /// A handle to what the reader notices on its way.
    pub(crate) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    fn error(&self, why: impl Into<String>, skippable: bool) -> LineError {
        LineError {
            file: self.file.clone(),
            line: self.line,
            why: why.into(),
            skippable,
        }
    }

    /// Fills `self.buf` with the next line, without its end. `Ok(false)`: there is none. A line that is too long
    /// is read to its end but not kept.
    fn read_line(&mut self) -> Result<bool, LineError> {
        self.buf.clear();
        self.line += 1;
        let (mut any, mut too_long) = (false, false);
        loop {
            let (used, ended) = match self.input.fill_buf() {
                Ok([]) => break,
                Ok(chunk) => {
                    any = true;
                    let end = chunk.iter().position(|&b| b == b'\n');
                    let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
                    too_long |= self.buf.len() + part.len() > LINE_MAX;
                    if !too_long {
                        self.buf.extend_from_slice(part);
                    }
                    (end.map_or(chunk.len(), |e| e + 1), end.is_some())
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.error(format!("cannot be read: {e}"), false)),
            };
            self.input.consume(used);
            if ended {
                break;
            }
        }
        if too_long {
            return Err(self.error(format!("longer than {} MiB", LINE_MAX >> 20), true));
        }
        Ok(any)
    }

    fn next_request(&mut self) -> Result<Option<Request>, LineError> {
        loop {
            if !self.read_line()? {
                return Ok(None);
            }
            let text = self.buf.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let request = parse(text).map_err(|why| self.error(why, true))?;
            if request.at < self.previous {
                self.notes.disorder();
            }
            self.previous = request.at;
            return Ok(Some(request));
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<Request, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.next_request() {
                // what a signal cut off is not judged
                _ if interrupt::came() => self.done = true,
                Ok(Some(request)) => return Some(Ok(request)),
                Ok(None) => self.done = true,
                Err(e) if e.skippable && self.bad == BadLines::Skip => self.notes.skip(&e),
                Err(e) => {
                    self.done = true;
                    return Some(Err(e));
                }
            }
        }
        None
    }
}

#[derive(Deserialize)]
struct Line {
    timestamp: serde_json::Number,
    input_length: serde_json::Number,
    output_length: serde_json::Number,
    hash_ids: Vec<u64>,
}

/// One line of the trace, or why it is none.
fn parse(line: &[u8]) -> Result<Request, String> {
    let text = std::str::from_utf8(line).map_err(|e| format!("not UTF-8 at byte {}", e.valid_up_to() + 1))?;
    if !text.starts_with('{') {
        return Err(String::from("not a JSON object"));
    }
    let line: Line = serde_json::from_str(text).map_err(|e| {
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        format!("{what} (column {})", e.column())
    })?;
    if line.hash_ids.is_empty() {
        return Err(String::from("`hash_ids` is empty"));
    }
    Ok(Request {
        at: millis(&line.timestamp)?,
        input_tokens: whole("input_length", &line.input_length)?,
        output_tokens: whole("output_length", &line.output_length)?,
        blocks: line.hash_ids,
    })
}

fn millis(n: &serde_json::Number) -> Result<Duration, String> {
    if let Some(ms) = n.as_u64() {
        return Ok(Duration::from_millis(ms));
    }
    match n.as_f64() {
        Some(ms) if ms < 0.0 => Err(format!("`timestamp` is negative: {n}")),
        Some(ms) if ms <= MILLIS_MAX => Ok(Duration::from_secs_f64(ms / 1e3)),
        _ => Err(format!("`timestamp` is out of range: {n}")),
    }
}

fn whole(field: &str, n: &serde_json::Number) -> Result<u64, String> {
    n.as_u64().ok_or_else(|| {
        let negative = n.as_f64().is_some_and(|v| v < 0.0);
        format!(
            "`{field}` is {}: {n}",
            if negative {
                "negative"
            } else {
                "not a whole number"
            }
        )
    })
}

#[cfg(test)]
mod tests;
