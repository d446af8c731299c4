//! `kvweir doctor --stanza`: every mistake of a vLLM configuration in one run, without vLLM.

use std::{fs, path::Path};

use crate::run::{Ran, kvweir_in, words};

const GOOD: &str = r#"{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
    "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1073741824, "secondary_tiers": [
    {"type": "KvweirTier", "module_path": "kvweir.vllm", "root_dir": "/mnt/nvme/kv", "max_bytes": "500GiB",
     "backpressure": {"backpressure_cls": "kvweir.vllm.KvweirDetector", "max_inflight_bytes": "512MiB"}}]}}"#;

fn doctor(dir: &Path, args: &str, stdin: &str) -> Ran {
    kvweir_in(dir, words(&format!("doctor {args}")), stdin.as_bytes())
}

/// Three mistakes cost three starts of two minutes each; here they are three lines of one run.
#[test]
fn all_mistakes_come_at_once_in_text_and_json_and_end_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let bad = GOOD
        .replace("KvweirTier", "KvweirTeir")
        .replace("\"500GiB\"", "\"much\", \"n_reads_threads\": 4")
        .replace("\"512MiB\"", "-5, \"failure_threshold\": true");
    fs::write(dir.path().join("s.json"), &bad).unwrap();
    let text = doctor(dir.path(), "--stanza s.json", "");
    let json = doctor(dir.path(), "--stanza - --json", &bad);
    assert_eq!((text.code, json.code), (1, 1), "{}", text.stderr);
    let json = json.json();
    let told: Vec<&str> = json["mistakes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["message"].as_str().unwrap())
        .collect();
    let expected = [
        "type = \"KvweirTeir\": did you mean 'KvweirTier'?",
        "max_bytes = \"much\": is not a size",
        "unknown setting 'n_reads_threads' of the kvweir tier; did you mean 'n_read_threads'?",
        "failure_threshold = true: ",
        "max_inflight_bytes = -5: is negative",
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for part in expected {
        assert!(told.iter().any(|t| t.starts_with(part)), "{part}: {told:?}");
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    assert_eq!(
        json["mistakes"][0]["at"],
        "kv_connector_extra_config.secondary_tiers[0]"
    );
}

/// It was accepted in silence: both tiers join one root, and packed blocks are stored twice.
#[test]
fn one_directory_for_two_tiers_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let twice = GOOD.replace(
        "\"secondary_tiers\": [",
        "\"secondary_tiers\": [{\"type\": \"kvweir\", \"root_dir\": \"/mnt/nvme/kv\", \"max_bytes\": \"500GiB\"},",
    );
    let ran = doctor(dir.path(), "--stanza -", &twice);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("tiers of kvweir: 2"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("note  ") && ran.stdout.contains("both are members of one root"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_good_stanza_ends_with_0_and_names_what_was_left_unchecked() {
    let dir = tempfile::tempdir().unwrap();
    let ran = doctor(dir.path(), "--stanza -", GOOD);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("tiers of kvweir: 1"), "{}", ran.stdout);
    let with_stock = GOOD.replace(
        "\"secondary_tiers\": [",
        "\"secondary_tiers\": [{\"type\": \"fs\"},",
    );
    let ran = doctor(dir.path(), "--stanza - --json", &with_stock);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    assert!(ran.stdout.contains("not kvweir's, not checked"), "{}", ran.stdout);
}

#[test]
fn the_primary_is_held_against_the_longest_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let at = |len: u32| {
        let flags = format!("--stanza - --json --max-model-len {len} --bytes-per-token 128KiB");
        let ran = doctor(dir.path(), &flags, GOOD);
        (ran.code, ran.json())
    };
    // 16 tokens of 128 KiB: 2 MiB per slot, 512 slots
    let (code, json) = at(8192);
    assert_eq!(
        (code, &json["primary"]["slots"], &json["primary"]["prompt_slots"]),
        (0, &512.into(), &512.into())
    );
    let (code, json) = at(8208);
    assert_eq!(code, 1);
    let message = json["mistakes"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("takes 513; 1075838976 or more is needed"),
        "{message}"
    );
}

#[test]
fn what_cannot_be_read_ends_with_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, stdin, part) in [
        ("--stanza none.json", "", "stanza none.json cannot be read"),
        ("--stanza .", "", "cannot be read"),
        ("--stanza -", "", "stanza stdin is not JSON"),
        ("--stanza -", "{'a': 1}", "is not JSON"),
        ("--stanza -", "\u{1}", "is not JSON"),
        ("--stanza - /root", GOOD, "cannot be used with"),
        ("--stanza - --max-model-len 1", GOOD, "--bytes-per-token"),
        (
            "--stanza - --max-model-len 0 --bytes-per-token 1",
            GOOD,
            "--max-model-len",
        ),
        (
            "/root --max-model-len 1 --bytes-per-token 1",
            "",
            "cannot be used with",
        ),
        ("/root --block-size 1", "", "cannot be used with"),
        ("", "", "ROOT"),
    ] {
        let ran = doctor(dir.path(), args, stdin);
        assert_eq!(ran.code, 2, "{args}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{args}: {}", ran.stderr);
    }
    // odd, and JSON: mistakes, not failures
    for odd in ["null", "[]", "3", "{}", "\"x\"", "{\"kv_connector\": []}"] {
        let ran = doctor(dir.path(), "--stanza -", odd);
        assert_eq!(ran.code, 1, "{odd}: {}", ran.stderr);
    }
}
