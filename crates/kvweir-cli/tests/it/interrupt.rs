//! Signals: the first ends the run with what is done so far, the second ends the process.

use std::{
    fs,
    io::{Read as _, Write as _},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{line, words};

fn start() -> Child {
    let child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(words("replay - --hit-rate-only --capacity-blocks 5 --json"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // SIGTERM is the last one listened to.
    wait(&child, "SigCgt:", |mask| mask & 0x4000 != 0);
    child
}

/// Waits until a signal mask in the process's status is as wanted.
fn wait(child: &Child, field: &str, wanted: impl Fn(u64) -> bool) {
    for _ in 0..2_000 {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status
            .lines()
            .find_map(|l| l.strip_prefix(field))
            .unwrap_or("0")
            .trim();
        if wanted(u64::from_str_radix(mask, 16).unwrap()) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{field} never came to be as wanted");
}

fn signal(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

#[test]
fn the_first_ends_cleanly() {
    let mut child = start();
    signal(&child);
    wait(&child, "ShdPnd:", |mask| mask & 2 == 0);
    let mut stdin = child.stdin.take().unwrap();
    let _ = stdin.write_all(line(0, &[1, 2]).as_bytes());
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["results"][0]["interrupted"], true);
}

#[test]
fn the_second_ends_at_once() {
    let mut child = start();
    signal(&child);
    wait(&child, "ShdPnd:", |mask| mask & 2 == 0);
    signal(&child);
    // Its stdin is still open: only the signal can have ended it.
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
