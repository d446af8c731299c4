//! A tier of Python in a process of its own, as a contender: `peer.py` runs there.

use std::{
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result};
use kvweir::io::Region;
use serde_json::{Value, json};

use super::side::{Side, Took, Work};

/// A tier of Python in a process of its own.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What it says of itself.
    pub(super) about: String,
}

impl Peer {
    /// Starts the process; `path` is where more Python lies.
    pub(super) fn start(python: &Path, script: &Path, path: Option<&PathBuf>, kind: &str) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(script).arg(kind);
        command.envs([("OMP_NUM_THREADS", "1"), ("VLLM_NO_USAGE_STATS", "1")]);
        command.envs([("LMCACHE_TRACK_USAGE", "false"), ("HF_HUB_OFFLINE", "1")]);
        command.envs([("VLLM_LOGGING_LEVEL", "ERROR"), ("LMCACHE_LOG_LEVEL", "ERROR")]);
        if let Some(path) = path {
            command.env("PYTHONPATH", path);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", python.display()))?;
        let to = child.stdin.take().context("its input")?;
        let from = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self {
            child,
            to,
            from,
            about: String::new(),
        })
    }

    /// Ends the tier it has and opens one below `root` over `region`, which lies in the file `memory`.
    pub(super) fn open(&mut self, root: &Path, memory: &Path, region: &Region, max_bytes: u64) -> Result<()> {
        let said = self.ask(&json!({
            "op": "open", "root": root, "region": memory, "max_bytes": max_bytes,
            "slots": region.num_slots(), "row": region.block_len(),
        }))?;
        self.about = said.get("about").map(Value::to_string).unwrap_or_default();
        Ok(())
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        writeln!(self.to, "{question}")?;
        self.to.flush()?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("it ended")?;
        match said.get("error").and_then(Value::as_str) {
            Some(e) => anyhow::bail!("{e}"),
            None => Ok(said),
        }
    }

    fn timed(&mut self, question: &Value) -> Result<Took> {
        let said = self.ask(question)?;
        let number = |name| {
            said.get(name)
                .and_then(Value::as_f64)
                .context("a number is missing")
        };
        let jobs = said
            .get("jobs_s")
            .and_then(Value::as_array)
            .context("times are missing")?;
        Ok(Took {
            seconds: number("seconds")?,
            cpu_s: number("cpu_s")?,
            jobs_s: jobs.iter().filter_map(Value::as_f64).collect(),
        })
    }
}

fn as_json(op: &str, w: Work) -> Value {
    json!({
        "op": op, "salt": w.salt, "first": w.first, "slot": w.slot, "blocks": w.blocks, "batch": w.batch,
        "depth": w.depth.min(1 << 30),
    })
}

impl Side for &mut Peer {
    fn store(&mut self, work: Work) -> Result<Took> {
        self.timed(&as_json("store", work))
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.timed(&as_json("load", work))
    }

    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took> {
        self.timed(&json!({
            "op": "duel", "loads": loads, "store": as_json("store", store), "load": as_json("load", load),
        }))
    }

    fn close(&mut self) -> Result<()> {
        self.ask(&json!({"op": "close"})).map(|_| ())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
