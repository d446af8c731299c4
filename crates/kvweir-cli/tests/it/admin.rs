//! The commands on a root, on one that a real tier made, healthy, damaged, and held.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use kvweir::{
    Key,
    block::Fingerprint,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::{PAGE, Region},
    namespace::{Identity, Namespace},
    tier::{JobId, RequestId, StoreBlock, StoreJob, Tier},
};
use serde_json::Value;

use crate::run::{Ran, kvweir_in, words};

const BLOCKS: u64 = 64;
const LEN: usize = 2 * PAGE;

fn key(n: u64) -> Key {
    let mut bytes: Vec<u8> = (0..2u64)
        .flat_map(|i| Fingerprint::of(&n.to_le_bytes(), i).0.to_le_bytes())
        .collect();
    bytes.extend([0; 4]);
    Key::new(&bytes).unwrap()
}

/// A directory with the root `kv` in it, made by a tier that stored all blocks and is still open.
fn opened() -> (tempfile::TempDir, FsTier) {
    let dir = tempfile::tempdir().unwrap();
    let settings = FsSettings {
        max_bytes: Some(64 << 20),
        layout: Layout::Fs,
        ..FsSettings::new(dir.path().join("kv"))
    };
    let ns = Namespace::new(&Identity::default()).unwrap();
    let mut tier = FsBuilder::new(settings, ns, LEN).open().unwrap();
    let region = Region::new(BLOCKS as u32, LEN, false).unwrap();
    let blocks = (0..BLOCKS).map(|n| {
        region.write(n as u32).unwrap().fill(n as u8);
        StoreBlock {
            key: key(n),
            slot: region.read(n as u32).unwrap(),
        }
    });
    let (id, req) = (JobId(1), RequestId(1));
    tier.submit_store(StoreJob {
        id,
        req,
        blocks: blocks.collect(),
    });
    tier.drain();
    let mut reports = Vec::new();
    tier.poll(&mut reports);
    assert!(reports[0].all_ok());
    tier.on_request_finished(req, &[]);
    (dir, tier)
}

pub(crate) fn made() -> tempfile::TempDir {
    opened().0
}

/// Every block file.
pub(crate) fn blocks(root: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut stack = vec![root.to_owned()];
    while let Some(p) = stack.pop() {
        for e in fs::read_dir(&p).unwrap() {
            let path = e.unwrap().path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|e| e == "bin") {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}

/// Flips a bit in one block, empties another, and leaves a temporary an hour old and an empty directory.
fn damage(root: &Path) {
    let all = blocks(root);
    let mut bytes = fs::read(&all[3]).unwrap();
    bytes[100] ^= 1;
    fs::write(&all[3], bytes).unwrap();
    fs::write(&all[5], b"").unwrap();
    let temp = all[7].with_extension("bin.00000000000000aa.kvweir");
    fs::write(&temp, b"half").unwrap();
    let f = fs::File::open(&temp).unwrap();
    let at = f.metadata().unwrap().modified().unwrap() - Duration::from_secs(3600);
    f.set_modified(at).unwrap();
    let ns = all[0].ancestors().nth(3).unwrap();
    fs::create_dir_all(ns.join("fff/ff_g9")).unwrap();
}

fn run(dir: &Path, line: &str) -> Ran {
    kvweir_in(dir, words(line), b"")
}

/// Runs with and without `--json`; the code must be this one. Returns the object and the text.
fn both(dir: &Path, line: &str, code: i32) -> (Value, String) {
    let text = run(dir, line);
    let json = run(dir, &format!("{line} --json"));
    let context = format!(
        "{line}: {} {} {} {}",
        text.stdout, text.stderr, json.stdout, json.stderr
    );
    assert_eq!((text.code, json.code), (code, code), "{context}");
    assert!(text.stdout.is_ascii() && !text.stdout.is_empty(), "{context}");
    assert_eq!(json.stderr, "", "{context}");
    (json.json(), text.stdout)
}

#[test]
fn inspect_tells_a_healthy_and_a_damaged_root() {
    let dir = made();
    let (json, text) = both(dir.path(), "inspect kv", 0);
    assert_eq!(
        (&json["blocks"]["files"], &json["temporaries"]["files"]),
        (&64.into(), &0.into())
    );
    assert_eq!(json["namespaces"][0]["written_by"], "kvweir");
    assert_eq!(json["namespaces"][0]["identity"]["model_name"], "model");
    assert!(
        text.contains("nobody; last pid") && text.contains("written by"),
        "{text}"
    );
    damage(&dir.path().join("kv"));
    let (json, _) = both(dir.path(), "inspect kv", 0);
    assert_eq!(
        (&json["temporaries"]["files"], &json["empty_directories"]),
        (&1.into(), &1.into())
    );
    assert_eq!(json["namespaces"][0]["other_length"], 1);
}

#[test]
fn verify_finds_and_repairs() {
    let dir = made();
    let (json, text) = both(dir.path(), "verify kv", 0);
    assert_eq!(
        (&json["good"], &json["findings"]),
        (&64.into(), &Value::Array(vec![]))
    );
    assert!(
        json["gb_s"].as_f64().unwrap() > 0.0 && text.contains("GB/s"),
        "{text}"
    );
    let root = dir.path().join("kv");
    damage(&root);
    let (json, text) = both(dir.path(), "verify kv --threads 2", 1);
    for fault in [
        "damaged_payload",
        "zero_length",
        "leftover_temporary",
        "empty_directory",
    ] {
        assert_eq!(json["faults"][fault], 1, "{json}");
        assert!(text.contains(fault), "{text}");
    }
    let (json, _) = both(dir.path(), "verify kv --repair", 1);
    assert_eq!(
        (&json["repair"]["done"], blocks(&root).len()),
        (&false.into(), 64)
    );
    let said = run(dir.path(), "verify kv --repair");
    assert!(said.stderr.contains("--yes"), "{}", said.stderr);
    let done = run(dir.path(), "verify kv --repair --yes --json");
    assert_eq!(
        (done.code, done.json()["repair"]["files"]["files"].as_u64()),
        (1, Some(3))
    );
    assert_eq!(blocks(&root).len(), 62);
    both(dir.path(), "verify kv", 0);
    let ns = Namespace::new(&Identity::default()).unwrap();
    both(dir.path(), &format!("verify kv --namespace {}", ns.dir()), 0);
    let refused = run(dir.path(), "verify kv --namespace x");
    assert!(
        refused.code == 2 && refused.stderr.contains("no namespace x"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        run(dir.path(), "verify kv --yes").code,
        2,
        "--yes without --repair"
    );
}

#[test]
fn trim_comes_down_to_the_size_only_with_yes() {
    let dir = made();
    damage(&dir.path().join("kv"));
    let root = dir.path().join("kv");
    let (json, _) = both(dir.path(), "trim kv --to 256KiB", 0);
    assert!(json["after_bytes"].as_u64().unwrap() <= 256 << 10);
    assert_eq!(blocks(&root).len(), 64);
    let done = run(dir.path(), "trim kv --to 256KiB --yes");
    assert_eq!(done.code, 0, "{}", done.stderr);
    let inspected = run(dir.path(), "inspect kv --json").json();
    assert!(inspected["bytes"].as_u64().unwrap() <= 256 << 10, "{inspected}");
    assert!(blocks(&root).len() > 4);
    let all = run(dir.path(), "trim kv --to 0 --yes --json");
    assert_eq!((all.code, blocks(&root).len()), (1, 0), "what is no block stays");
    for bad in [
        "trim kv",
        "trim kv --to -1",
        "trim kv --to much",
        "trim none --to 1",
    ] {
        assert_eq!(run(dir.path(), bad).code, 2, "{bad}");
    }
}

#[test]
fn gc_removes_leftovers_and_old_namespaces_only_with_yes() {
    let dir = made();
    let root = dir.path().join("kv");
    both(dir.path(), "gc kv --no-shm", 0);
    damage(&root);
    // never the machine's own shared memory in a test
    fs::create_dir(dir.path().join("shm")).unwrap();
    let region = dir.path().join("shm/vllm_offload_x.mmap");
    fs::write(&region, b"x").unwrap();
    let (json, text) = both(dir.path(), "gc kv --shm shm --older-than 30d", 0);
    assert_eq!(
        (&json["temporaries"]["files"], &json["done"]),
        (&1.into(), &false.into())
    );
    assert_eq!(
        (&json["regions"][0]["state"], &json["namespaces"]),
        (&"left".into(), &Value::Array(vec![]))
    );
    assert!(text.contains("vllm_offload_x.mmap"), "{text}");
    let done = run(dir.path(), "gc kv --shm shm --yes --json");
    assert_eq!(
        (done.code, done.json()["temporaries"]["files"].as_u64()),
        (0, Some(1))
    );
    assert!(region.exists(), "too young to tell");
    assert_eq!(blocks(&root).len(), 64);
    let old = run(dir.path(), "gc kv --no-shm --older-than 0s --yes --json");
    assert_eq!((old.code, blocks(&root).len()), (0, 0), "{}", old.stdout);
    assert_eq!(run(dir.path(), "gc kv --older-than soon").code, 2);
}

#[test]
fn doctor_says_what_to_do() {
    use std::os::unix::fs::PermissionsExt;
    let dir = made();
    let json = run(dir.path(), "doctor kv --json").json();
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.len() >= 14, "{json}");
    assert!(
        checks.iter().all(|c| (c["level"] == "ok") == (c["advice"] == "")),
        "{json}"
    );
    fs::set_permissions(dir.path().join("kv"), fs::Permissions::from_mode(0o777)).unwrap();
    let (json, text) = both(dir.path(), "doctor kv", 1);
    assert_eq!(json["level"], "bad");
    assert!(text.contains("chmod 700"), "{text}");
}

#[test]
fn import_gives_stock_blocks_trailers_in_place_and_into_another_root() {
    let dir = made();
    let root = dir.path().join("kv");
    for file in blocks(&root) {
        fs::OpenOptions::new()
            .write(true)
            .open(file)
            .unwrap()
            .set_len(LEN as u64)
            .unwrap();
    }
    fs::create_dir(dir.path().join("new")).unwrap();
    let (json, _) = both(dir.path(), "import kv --into new", 0);
    assert_eq!(
        (&json["namespaces"][0]["imported"], &json["done"]),
        (&64.into(), &false.into())
    );
    assert!(blocks(&dir.path().join("new")).is_empty());
    assert_eq!(run(dir.path(), "import kv --into new --yes").code, 0);
    assert_eq!(run(dir.path(), "verify new --json").json()["good"], 64);
    assert_eq!(run(dir.path(), "verify kv --json").json()["unverified"], 64);
    assert_eq!(run(dir.path(), "import kv --yes").code, 0);
    assert_eq!(run(dir.path(), "verify kv --json").json()["good"], 64);
    fs::write(&blocks(&root)[0], b"").unwrap();
    both(dir.path(), "import kv", 1);
    assert_eq!(run(dir.path(), "import kv --into kv").code, 2);
}

#[test]
fn convert_moves_blocks_there_and_back_only_with_yes() {
    let dir = made();
    let root = dir.path().join("kv");
    let content = |p: &PathBuf| (p.clone(), fs::read(p).unwrap());
    let before: Vec<_> = blocks(&root).iter().map(content).collect();
    let (json, text) = both(dir.path(), "convert kv --to pack", 0);
    assert_eq!(
        (
            &json["namespaces"][0]["moved"],
            &json["done"],
            &json["bound_bytes"]
        ),
        (&64.into(), &false.into(), &(64 << 20).into())
    );
    assert!(
        text.contains("after, about") && blocks(&root).len() == 64,
        "{text}"
    );
    let done = run(dir.path(), "convert kv --to pack --apply");
    assert!(
        done.code == 0 && done.stdout.contains("MB/s"),
        "{} {}",
        done.stdout,
        done.stderr
    );
    assert_eq!(blocks(&root).len(), 2, "the files of one extent");
    let (json, text) = both(dir.path(), "inspect kv", 0);
    let n = &json["namespaces"][0];
    assert_eq!(
        (&n["layout"], &n["packed_blocks"], &n["extents"]["files"]),
        (&"pack".into(), &64.into(), &1.into())
    );
    assert!(text.contains("pack: slots of extents"), "{text}");
    assert_eq!(
        json["bytes"],
        json["extents"]["bytes"].as_u64().unwrap()
            + json["directory_bytes"].as_u64().unwrap()
            + json["own_bytes"].as_u64().unwrap()
    );
    let (json, _) = both(dir.path(), "verify kv", 0);
    assert_eq!((&json["packed_blocks"], &json["good"]), (&64.into(), &64.into()));
    both(dir.path(), "import kv", 0);
    let back = run(dir.path(), "convert kv --to fs --yes");
    assert!(
        back.code == 2 && back.stderr.contains("the bound is not known"),
        "{}",
        back.stderr
    );
    let back = run(dir.path(), "convert kv --to fs --yes --max-bytes 64MiB --json");
    assert_eq!(
        (back.code, &back.json()["namespaces"][0]["moved"]),
        (0, &64.into())
    );
    assert_eq!(blocks(&root).iter().map(content).collect::<Vec<_>>(), before);
    for bad in [
        "convert kv",
        "convert kv --to auto",
        "convert kv --to fs --max-bytes 1KiB",
        "convert kv --to pack --max-bytes 64MiB --namespace x",
    ] {
        assert_eq!(run(dir.path(), bad).code, 2, "{bad}");
    }
}

#[test]
fn beside_a_live_tier_looking_works_and_changing_is_refused_with_its_name() {
    let (dir, tier) = opened();
    let (json, text) = both(dir.path(), "inspect kv", 0);
    let m = &json["members"][0];
    assert_eq!(
        (&m["number"], &m["live"], &m["pid"]),
        (&0.into(), &true.into(), &std::process::id().into())
    );
    let ns = Namespace::new(&Identity::default()).unwrap();
    assert_eq!((&m["namespace"], &m["generation"]), (&ns.dir().into(), &0.into()));
    assert!(m["journal_bytes"].as_u64().unwrap() > 0, "{m}");
    assert!(m["lease_bytes"].as_u64() >= m["held_bytes"].as_u64(), "{m}");
    assert_eq!(json["ledger"]["bound_bytes"], 64 << 20);
    assert!(text.contains("wanted beyond") && text.contains("lease"), "{text}");
    let (json, text) = both(dir.path(), "verify kv", 0);
    assert_eq!(json["journals"]["compared"], false);
    assert!(text.contains("uses the root and writes its journal"), "{text}");
    assert!(
        run(dir.path(), "inspect kv")
            .stdout
            .contains("(live, .kvweir/member-00.lock)")
    );
    let me = format!("pid {} on ", std::process::id());
    for line in [
        "verify kv --repair",
        "verify kv --repair --yes",
        "trim kv --to 1MiB",
        "trim kv --to 1MiB --yes",
        "gc kv --no-shm",
        "gc kv --no-shm --yes",
        "import kv",
        "import kv --yes",
        "convert kv --to pack",
        "convert kv --to fs --yes",
    ] {
        let ran = run(dir.path(), line);
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{line}");
        assert!(
            ran.stderr.contains("is in use by") && ran.stderr.contains(&me),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("help: "), "{}", ran.stderr);
    }
    assert_eq!(blocks(&dir.path().join("kv")).len(), 64);
    drop(tier);
    both(dir.path(), "gc kv --no-shm", 0);
}

#[test]
fn files_are_compared_with_journals_and_a_change_gives_these_up() {
    let dir = made();
    let root = dir.path().join("kv");
    let all = blocks(&root);
    fs::remove_file(&all[0]).unwrap();
    let (json, text) = both(dir.path(), "verify kv", 3);
    assert_eq!(
        (
            &json["journals"]["compared"],
            &json["journals"]["journal_without_file"]
        ),
        (&true.into(), &1.into()),
        "{json}"
    );
    assert_eq!(json["faults"], serde_json::json!({"empty_directory": 1}));
    assert!(text.contains("without file, no fault"), "{text}");
    let ledger = root.join(".kvweir/ledger");
    let mut bytes = fs::read(&ledger).unwrap();
    bytes[20] ^= 1;
    fs::write(&ledger, bytes).unwrap();
    let (json, _) = both(dir.path(), "verify kv", 1);
    assert_eq!(json["faults"]["damaged_ledger"], 1);
    let (json, text) = both(dir.path(), "inspect kv", 0);
    assert_eq!(json["ledger"]["state"], "damaged");
    assert!(text.contains("damaged: the next start walks the root"), "{text}");
    let said = run(dir.path(), "verify kv --repair");
    assert!(
        said.stdout.contains("given up: the next start walks the root"),
        "{}",
        said.stdout
    );
    let done = run(dir.path(), "verify kv --repair --yes --json");
    assert_eq!(
        (done.code, &done.json()["repair"]["next_start_walks"]),
        (1, &true.into())
    );
    let (json, text) = both(dir.path(), "verify kv", 0);
    assert_eq!(json["journals"]["compared"], false);
    assert!(text.contains("there is no ledger"), "{text}");
    assert!(fs::read(&ledger).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn every_command_has_examples_and_says_its_exit_codes_and_refuses_what_is_no_directory() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    for command in ["inspect", "verify", "trim", "gc", "doctor", "import", "convert"] {
        let help = run(dir.path(), &format!("{command} --help"));
        assert_eq!(help.code, 0);
        for part in [
            "Examples:",
            "Exit codes: 0 ",
            &format!("kvweir {command} /mnt"),
            "--json",
        ] {
            assert!(
                help.stdout.contains(part),
                "{command}: no {part} in {}",
                help.stdout
            );
        }
        let to = match command {
            "trim" => " --to 1",
            "convert" => " --to fs",
            _ => "",
        };
        for root in ["none", "file"] {
            let ran = run(dir.path(), &format!("{command} {root}{to}"));
            assert_eq!(
                (ran.code, ran.stdout.as_str()),
                (2, ""),
                "{command} {root}: {}",
                ran.stderr
            );
            assert!(
                ran.stderr.starts_with("error: ") && ran.stderr.contains(root),
                "{}",
                ran.stderr
            );
        }
    }
}
