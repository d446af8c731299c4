//! `kvweir doctor --stanza`: a transfer configuration checked without an engine.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use kvweir::stanza::{self, Checked, Given, Model, PrimaryFit};

use crate::{
    admin,
    ending::Ending,
    table::{Section, bytes, count},
    usage::UsageError,
};

/// More than this is no stanza.
const LONGEST: u64 = 16 << 20;

/// Flags of `kvweir doctor --stanza`.
#[derive(Debug, clap::Args)]
#[group(id = "stanza_flags")]
#[command(next_help_heading = "Settings of vLLM")]
pub(crate) struct StanzaArgs {
    /// Check the JSON of --kv-transfer-config instead of a root; - reads stdin
    #[arg(long, value_name = "FILE|-")]
    pub(crate) stanza: Option<PathBuf>,

    /// Also check the primary against the longest prompt: tokens, as vLLM's flag of that name
    #[arg(long, value_name = "TOKENS", requires_all = ["stanza", "bytes_per_token"],
        value_parser = clap::value_parser!(u64).range(1..))]
    max_model_len: Option<u64>,

    /// KV bytes per token: layers x 2 x KV heads x head size x bytes per number, all workers together
    #[arg(long, value_name = "SIZE", requires_all = ["stanza", "max_model_len"], value_parser = kvweir::size::parse)]
    bytes_per_token: Option<u64>,

    /// Tokens per block, as vLLM's flag of that name
    #[arg(long, value_name = "TOKENS", requires = "max_model_len", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..))]
    block_size: u64,
}

/// Checks the stanza in `file`.
pub(crate) fn run(args: &StanzaArgs, file: &Path, json: bool) -> Result<Ending> {
    let model = args
        .max_model_len
        .zip(args.bytes_per_token)
        .map(|(max_model_len, bytes_per_token)| Model {
            max_model_len,
            bytes_per_token,
            block_tokens: args.block_size,
        });
    let found = stanza::check(&Given::json(&read(file)?), model);
    admin::show(json, &found, || sections(&found))?;
    Ok(if found.mistakes.is_empty() {
        Ending::Good
    } else {
        Ending::Bad
    })
}

fn read(file: &Path) -> Result<serde_json::Value> {
    let name = if file == Path::new("-") {
        "stdin".to_owned()
    } else {
        file.display().to_string()
    };
    let unreadable = |why: String, hint| UsageError {
        message: format!("stanza {name} {why}"),
        hint,
    };
    let mut text = Vec::new();
    let got = if file == Path::new("-") {
        std::io::stdin().lock().take(LONGEST).read_to_end(&mut text)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(LONGEST).read_to_end(&mut text))
    };
    got.map_err(|e| unreadable(format!("cannot be read: {e}"), None))?;
    let json = "write what follows --kv-transfer-config, without the shell's quotes";
    serde_json::from_slice(&text).map_err(|e| unreadable(format!("is not JSON: {e}"), Some(json)).into())
}

fn sections(found: &Checked) -> Vec<Section> {
    let mut lines: Vec<String> = found.mistakes.iter().map(|m| format!("bad   {m}")).collect();
    lines.extend(found.notes.iter().map(|n| format!("note  {n}")));
    if let Some(fit) = found.primary.filter(PrimaryFit::fits) {
        lines.push(format!(
            "ok    primary: {} slots of {} ({} tokens each); the longest prompt takes {}",
            count(fit.slots),
            bytes(fit.slot_bytes),
            count(fit.slot_tokens),
            count(fit.prompt_slots)
        ));
    }
    if found.mistakes.is_empty() {
        lines.push(format!("ok    tiers of kvweir: {}, every setting", found.tiers));
    }
    vec![Section {
        title: "settings",
        head: Vec::new(),
        rows: lines.into_iter().map(|l| vec![l]).collect(),
    }]
}
