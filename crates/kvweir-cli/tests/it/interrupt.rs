//! Signals: the first ends the run with what is done so far, one that comes over a second later ends the process.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::run::{kvweir_in, line, words};

const HIT_RATE: &str = "replay - --hit-rate-only --capacity-blocks 5 --json";
const WITH_IO: &str = "replay - --json --block-bytes 16KiB --primary-bytes 4MiB --max-bytes 24MiB";

fn start(args: &str, dir: &Path) -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(words(args))
        .current_dir(dir)
        .env("TMPDIR", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // SIGTERM is the last one listened to.
    wait(&child, "SigCgt:", |mask| mask & 0x4000 != 0);
    child
}

/// Waits until a signal mask in the process's status is as wanted.
fn wait(child: &Child, field: &str, wanted: impl Fn(u64) -> bool) {
    until(field, || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status
            .lines()
            .find_map(|l| l.strip_prefix(field))
            .unwrap_or("0")
            .trim();
        wanted(u64::from_str_radix(mask, 16).unwrap())
    });
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if done() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{what} never came to be as wanted");
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    let bit = 1 << (signal.as_raw() - 1);
    wait(child, "ShdPnd:", |mask| mask & bit == 0);
}

/// Gives a request, so that who waits for one sees the flag, and ends the input.
fn end(child: &mut Child, mut stdin: ChildStdin) -> (Option<i32>, Value) {
    let _ = stdin.write_all(line(0, &[1, 2]).as_bytes());
    drop(stdin);
    let code = child.wait().unwrap().code();
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    (
        code,
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}")),
    )
}

fn left(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn the_first_ends_cleanly_with_the_code_of_the_signal() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = start(HIT_RATE, dir.path());
        send(&child, signal);
        let stdin = child.stdin.take().unwrap();
        // the trace's end, seen before the signal, would be an end of the run like any other
        until("it ends", || child.try_wait().unwrap().is_some());
        let (ended, json) = end(&mut child, stdin);
        assert_eq!(ended, Some(code));
        assert_eq!(json["results"][0]["interrupted"], true);
    }
}

/// `timeout` sends its signal twice, to the process and to its group: the output was lost and the temporary directory
/// stayed.
#[test]
fn signals_that_come_together_are_one() {
    for (second, other) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let dir = tempfile::tempdir().unwrap();
        let mut child = start(WITH_IO, dir.path());
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(line(0, &[1, 2, 3]).as_bytes()).unwrap();
        until("the temporary directory", || !left(dir.path()).is_empty());
        send(&child, Signal::TERM);
        send(&child, second);
        let (code, json) = end(&mut child, stdin);
        // both may wait when the process looks, and then have no order
        assert!(code == Some(143) || code == Some(other), "{code:?}");
        assert_eq!(json["interrupted"], true);
        assert_eq!(left(dir.path()), [""; 0], "nothing is left behind");
    }
}

/// Whoever waits for more of a trace ends too: once only the next line, or a second signal, ended that.
#[test]
fn the_first_ends_a_run_that_waits_for_its_trace() {
    let pipe = format!("replay pipe {}", HIT_RATE.trim_start_matches("replay - "));
    for (args, some) in [
        (HIT_RATE, false),
        (HIT_RATE, true),
        (WITH_IO, true),
        (&*pipe, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        make_pipe(&dir.path().join("pipe"));
        let mut child = start(args, dir.path());
        let mut stdin = child.stdin.take().unwrap();
        if some {
            // a line and a half
            stdin
                .write_all((line(0, &[1, 2]) + "{\"timest").as_bytes())
                .unwrap();
        }
        send(&child, Signal::TERM);
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(143), "{args}: {out:?}");
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        let json = json.pointer("/results/0").unwrap_or(&json);
        assert_eq!(json["interrupted"], true, "{args}");
        assert_eq!(left(dir.path()), ["pipe"], "{args}: nothing is left behind");
        drop(stdin);
    }
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn one_that_comes_later_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    make_pipe(&dir.path().join("pipe"));
    let mut child = start(&format!("{HIT_RATE} --report pipe"), dir.path());
    send(&child, Signal::TERM);
    // Nobody reads its report: only a signal can end it.
    until("the end", || {
        std::thread::park_timeout(Duration::from_millis(100));
        let _ = kill_process(Pid::from_child(&child), Signal::INT);
        fs::read_to_string(format!("/proc/{}/stat", child.id())).is_ok_and(|s| s.contains(") Z "))
    });
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// Under nohup, and in the background of a script, whoever started us wants a signal ignored.
#[test]
fn a_signal_that_was_to_be_ignored_is() {
    let dir = tempfile::tempdir().unwrap();
    let command = format!("trap '' HUP; exec '{}' {HIT_RATE}", env!("CARGO_BIN_EXE_kvweir"));
    let mut child = Command::new("sh")
        .args(["-c", &command])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait(&child, "SigCgt:", |mask| mask & 0x4000 != 0);
    send(&child, Signal::HUP);
    let stdin = child.stdin.take().unwrap();
    let (code, json) = end(&mut child, stdin);
    assert_eq!(
        (code, &json["results"][0]["interrupted"]),
        (Some(0), &Value::Bool(false))
    );
}

/// A kill leaves 256 MiB in the directory of temporaries, or beside the root that was measured.
#[test]
fn what_a_kill_left_is_removed_by_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let runs = [
        (WITH_IO, "replay --json --requests 1 --primary-bytes 4MiB"),
        (
            "bench . --block-size 16KiB --batch 4 --bytes 2MiB --seconds 600 --json",
            "bench . --block-size 16KiB --batch 4 --bytes 1MiB --json",
        ),
    ];
    for (killed, next) in runs {
        let mut child = start(killed, dir.path());
        if let Some(stdin) = &mut child.stdin {
            let _ = stdin.write_all(line(0, &[1, 2, 3]).as_bytes());
        }
        let in_use = || {
            left(dir.path())
                .first()
                .is_some_and(|n| dir.path().join(n).join("in-use").exists())
        };
        until("the temporary directory", in_use);
        let beside = kvweir_in(dir.path(), words(next), b"");
        assert_eq!(beside.code, 0, "{}", beside.stderr);
        assert_eq!(left(dir.path()).len(), 1, "one that is used stays");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(left(dir.path()).len(), 1, "killed");
        assert_eq!(kvweir_in(dir.path(), words(next), b"").code, 0);
        assert_eq!(left(dir.path()), [""; 0], "{next}");
    }
}

/// An operator who ends a command wants to know whether the rest is worth another evening.
#[test]
fn an_interrupted_operator_command_says_how_far_it_came() {
    let dir = tempfile::tempdir().unwrap();
    let filled = kvweir_in(
        dir.path(),
        words(
            "replay --json --root kv --max-bytes 512MiB --layout fs --block-bytes 256KiB --requests 150 --backpressure=false",
        ),
        b"",
    );
    assert_eq!(filled.code, 0, "{}", filled.stderr);
    let mut told = 0;
    for json in ["", " --json"] {
        for command in ["verify kv --threads 1", "convert kv --to pack --threads 1 --yes"] {
            let child = start(&format!("{command}{json}"), dir.path());
            kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
            let out = child.wait_with_output().unwrap();
            // a fast machine may be through
            if out.status.code() != Some(143) {
                continue;
            }
            told += 1;
            let said = String::from_utf8(out.stderr).unwrap();
            assert!(
                said.starts_with("error: interrupted") && said.contains("goes on from there"),
                "{said}"
            );
            if !json.is_empty() {
                let object: Value = serde_json::from_slice(&out.stdout).unwrap();
                assert_eq!(object["error"]["exit_code"], 143);
            }
        }
    }
    assert!(told > 0, "none was interrupted: nothing was shown");
}
