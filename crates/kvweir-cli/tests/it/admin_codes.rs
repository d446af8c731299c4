//! What the exit codes of commands on a root tell apart: nothing, leftovers, lost blocks, and that a command could not
//! run.

use std::{fs, path::Path, process::Command};

use crate::{
    admin::{blocks, made},
    run::{Ran, kvweir_in, words},
};

fn run(dir: &Path, line: &str) -> Ran {
    kvweir_in(dir, words(line), b"")
}

/// Runs it with so few file descriptors.
fn with_descriptors(dir: &Path, n: u32, line: &str) -> Ran {
    let exe = env!("CARGO_BIN_EXE_kvweir");
    let script = format!("ulimit -n {n}; exec {exe} {line}");
    let out = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    Ran {
        code: out.status.code().unwrap(),
        stdout: String::from_utf8(out.stdout).unwrap(),
        stderr: String::from_utf8(out.stderr).unwrap(),
    }
}

/// `ulimit -n 8`: `verify` once told of thousands of unreadable blocks, and `convert` counted what it could list.
#[test]
fn too_few_file_descriptors_are_no_damage_and_the_advice_is_to_raise_them() {
    let dir = made();
    let root = dir.path().join("kv");
    let before = blocks(&root).len();
    let mut refused = 0;
    for line in [
        "verify kv",
        "verify kv --json",
        "verify kv --repair --yes",
        "inspect kv",
        "doctor kv",
        "trim kv --to 1GiB",
        "gc kv --older-than 1s --no-shm",
        "convert kv --to pack",
        "convert kv --to pack --yes --max-bytes 64MiB",
        "import kv",
    ] {
        for n in [4, 5, 6, 7, 8, 10] {
            let r = with_descriptors(dir.path(), n, line);
            let context = format!("{line} with {n}: {} {} {}", r.code, r.stdout, r.stderr);
            if r.code == 2 {
                refused += 1;
                assert!(
                    r.stderr.contains("Too many open files") && r.stderr.contains("ulimit -n"),
                    "{context}"
                );
                if line.contains("--json") {
                    assert_eq!(r.json()["error"]["exit_code"], 2, "{context}");
                }
            } else {
                assert!(!r.stdout.contains("unreadable"), "{context}");
                assert!(r.code == 0 || line.starts_with("doctor"), "{context}");
            }
        }
    }
    assert!(refused > 20, "{refused} refused: there was enough for the others");
    run(dir.path(), "convert kv --to fs --yes --max-bytes 64MiB");
    assert_eq!(blocks(&root).len(), before, "nothing went");
}

#[test]
fn leftovers_end_with_3_and_lost_blocks_with_1_and_words_tell_them_apart() {
    let dir = made();
    let block = blocks(&dir.path().join("kv")).remove(0);
    assert_eq!(run(dir.path(), "verify kv").code, 0);
    fs::write(block.with_extension("bin.00000000000000aa.kvweir"), b"x").unwrap();
    let r = run(dir.path(), "verify kv");
    assert_eq!(r.code, 3, "{}", r.stdout);
    assert!(r.stdout.contains("no block is lost"), "{}", r.stdout);
    assert!(r.stdout.contains("tidy  leftover_temporary"), "{}", r.stdout);
    let json = run(dir.path(), "verify kv --json");
    assert_eq!((json.code, &json.json()["weights"]["tidy"]), (3, &1.into()));
    fs::write(&block, b"").unwrap();
    let r = run(dir.path(), "verify kv");
    assert_eq!(r.code, 1, "{}", r.stdout);
    assert!(r.stdout.contains("block  zero_length"), "{}", r.stdout);
    assert_eq!(run(dir.path(), "verify kv --repair --yes").code, 1);
    assert_eq!(run(dir.path(), "verify kv").code, 0);
}

#[test]
fn a_root_above_its_bound_is_said_loudly() {
    let dir = made();
    fs::write(dir.path().join("kv/foreign"), vec![1; 65 << 20]).unwrap();
    for line in [
        "inspect kv",
        "verify kv",
        "doctor kv",
        "inspect kv --json",
        "verify kv --json",
    ] {
        let r = run(dir.path(), line);
        assert_eq!(r.code, 1, "{line}: {}", r.stdout);
        let said = format!("{}{}", r.stdout, r.stderr);
        assert!(said.to_lowercase().contains("above the bound"), "{line}: {said}");
    }
    let above = run(dir.path(), "inspect kv --json").json()["above_bound_bytes"].as_u64();
    assert!(above.is_some_and(|n| n > 1 << 20), "{above:?}");
}

#[test]
fn shared_memory_that_is_not_there_is_refused_and_reasons_are_told_once() {
    let dir = made();
    let r = run(dir.path(), "gc kv --shm /nonexist --yes");
    assert!(
        r.code == 2 && r.stderr.contains("/nonexist"),
        "{} {}",
        r.code,
        r.stderr
    );
    let shm = dir.path().join("shm");
    fs::create_dir(&shm).unwrap();
    for n in 0..5 {
        fs::write(shm.join(format!("vllm_offload_{n}.mmap")), b"x").unwrap();
    }
    // all are too young, or processes cannot be seen
    let r = run(dir.path(), "gc kv --shm shm");
    let lines = r.stdout.lines().filter(|l| l.contains("vllm_offload_")).count();
    assert_eq!((r.code, lines), (0, 1), "{}", r.stdout);
    assert!(r.stdout.contains("5 regions"), "{}", r.stdout);
}

/// A name with an escape sequence in it steered the terminal of whoever looked at the root.
#[test]
fn what_would_steer_a_terminal_is_shown_and_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("kv");
    let made = kvweir_in(
        dir.path(),
        words("replay --root kv --max-bytes 64MiB --requests 2 --quiet"),
        b"",
    );
    assert_eq!(made.code, 0, "{}", made.stderr);
    fs::create_dir(root.join("\u{1b}[31mred_000000000000_r0")).unwrap();
    fs::write(root.join("\u{1b}]0;title\u{7}"), "x").unwrap();
    let mut shown = 0;
    for command in [
        "inspect kv",
        "verify kv",
        "doctor kv",
        "gc kv --no-shm",
        "verify kv --namespace \u{1b}[31m",
    ] {
        let ran = kvweir_in(dir.path(), words(command), b"");
        let said = ran.stdout + &ran.stderr;
        assert!(!said.contains(['\u{1b}', '\u{7}']), "{command}: {said:?}");
        shown += usize::from(said.contains("\\u{1b}["));
    }
    assert!(shown >= 2, "the names are told");
}
