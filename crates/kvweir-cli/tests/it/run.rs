//! Runs `kvweir` and keeps what it said.

use std::{
    ffi::OsStr,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The one JSON object on stdout.
    pub(crate) fn json(&self) -> serde_json::Value {
        let value: serde_json::Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: stdout {:?}, stderr {:?}", self.stdout, self.stderr));
        assert!(value.is_object());
        assert_eq!(self.stdout.trim_end().lines().count(), 1);
        value
    }
}

/// Runs the command in `dir` with `stdin`.
pub(crate) fn kvweir_in<S: AsRef<OsStr>>(dir: &Path, args: impl IntoIterator<Item = S>, stdin: &[u8]) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(args)
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses its settings does not read its input.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    let out = child.wait_with_output().unwrap();
    Ran {
        code: out.status.code().unwrap(),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

/// Words of a command line.
pub(crate) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A trace line.
pub(crate) fn line(timestamp: u64, ids: &[u64]) -> String {
    format!(
        "{{\"timestamp\": {timestamp}, \"input_length\": {}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n",
        ids.len() * 512
    )
}
