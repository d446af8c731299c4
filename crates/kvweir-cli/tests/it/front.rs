//! The front door: what a newcomer meets first must work as it is written.

use std::{fs, path::Path};

use crate::run::{kvweir_in, words};

fn project() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn every_shell_has_completions_that_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = kvweir_in(Path::new("."), ["completions", shell], b"");
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}");
        for word in ["replay", "convert", "doctor", "max-bytes", "hit-rate-only"] {
            assert!(ran.stdout.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(kvweir_in(Path::new("."), ["completions", "tcsh"], b"").code, 2);
}

#[test]
fn there_is_one_manual_page_per_command_with_its_flags_and_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let ran = kvweir_in(dir.path(), ["man", "."], b"");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let commands = [
        "replay", "bench", "inspect", "verify", "trim", "gc", "doctor", "import", "convert",
    ];
    for command in commands {
        let name = format!("kvweir-{command}.1");
        assert!(ran.stdout.lines().any(|l| l == name), "{name}: {}", ran.stdout);
        let page = fs::read_to_string(dir.path().join(&name)).unwrap();
        assert!(
            page.contains("Exit codes") && page.contains(".SH OPTIONS"),
            "{name}"
        );
    }
    assert!(
        fs::read_to_string(dir.path().join("kvweir.1"))
            .unwrap()
            .contains("convert")
    );
    let none = kvweir_in(dir.path(), ["man", "none"], b"");
    assert!(none.code != 0 && none.stderr.contains("none"), "{}", none.stderr);
}

#[test]
fn the_settings_files_of_the_examples_are_read_and_say_what_they_set() {
    let mut seen = 0;
    for entry in fs::read_dir(project().join("examples/replay")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        seen += 1;
        let dir = tempfile::tempdir().unwrap();
        let args = ["replay", "--config", path.to_str().unwrap(), "--print-config"];
        let ran = kvweir_in(dir.path(), args, b"");
        assert_eq!(ran.code, 0, "{}: {}", path.display(), ran.stderr);
        let from_file = ran.stdout.lines().filter(|l| l.contains(".toml line ")).count();
        assert!(from_file >= 3, "{}: {}", path.display(), ran.stdout);
    }
    assert!(seen >= 3, "{seen} examples");
}

/// The README told of an install line and a dependency that did not exist, and not of the compiler it needs.
#[test]
fn the_readme_names_the_compiler_and_commands_that_are_there() {
    let readme = fs::read_to_string(project().join("README.md")).unwrap();
    let manifest = fs::read_to_string(project().join("Cargo.toml")).unwrap();
    let version = manifest
        .lines()
        .find_map(|l| l.strip_prefix("rust-version = "))
        .unwrap();
    assert!(
        readme.contains(&format!("Rust {}", version.trim_matches('"'))),
        "{version}"
    );
    assert!(readme.contains("cargo install --locked --path crates/kvweir-cli"));
    assert!(!readme.contains("kvweir = \"0"), "nothing is published");
    let help = kvweir_in(Path::new("."), words("--help"), b"").stdout;
    for line in readme
        .lines()
        .filter(|l| l.starts_with("kvweir ") || l.contains("`kvweir "))
    {
        for part in line.split("kvweir ").skip(1) {
            let command: String = part.chars().take_while(char::is_ascii_lowercase).collect();
            assert!(
                command.is_empty() || help.contains(&format!("  {command} ")),
                "{command}: {line}"
            );
        }
    }
}

#[test]
fn the_test_script_helps() {
    let script = project().join("scripts/test");
    let out = std::process::Command::new(script).arg("--help").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text.contains("--vllm") && text.contains("KVWEIR_CACHE"), "{text}");
}

#[test]
fn the_curve_of_hit_rates_has_a_report() {
    let dir = tempfile::tempdir().unwrap();
    let line = "replay --hit-rate-only --capacity-blocks 4000,1000,2000 --report r.html";
    let ran = kvweir_in(dir.path(), words(line), b"");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let html = fs::read_to_string(dir.path().join("r.html")).unwrap();
    assert_eq!(html.matches("<svg").count(), 1);
    assert!(html.contains("Prefix hit rate by capacity") && html.contains("prefers-color-scheme"));
}

#[test]
fn forty_columns_are_enough() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("kv")).unwrap();
    for line in [
        "replay --hit-rate-only --capacity-blocks 1000,5000",
        "replay --requests 5 --primary-bytes 8MiB",
        "inspect kv",
        "verify kv",
    ] {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_kvweir"))
            .args(words(line))
            .current_dir(dir.path())
            .env("TMPDIR", dir.path())
            .env("COLUMNS", "40")
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(0), "{line}");
        // a word that is longer, such as a path, stays whole
        let is_wide = |l: &&str| l.chars().count() > 40 && l.trim().contains(' ');
        assert_eq!(text.lines().find(is_wide), None, "{line}: {text}");
    }
}
