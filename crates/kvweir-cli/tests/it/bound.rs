//! I1 seen from outside: a replay with its root on a file system of its own, which another process (this one) samples
//! as fast as it can. One `statvfs` is an exact, atomic reading of everything below the root, temporaries, trailers,
//! lock file and directories included. Needs the right to mount; says so where it is missing.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

struct Mount(tempfile::TempDir);

impl Mount {
    fn tmpfs() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let ok = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=2G", "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        ok.is_ok_and(|s| s.success()).then(|| Self(dir))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn used(&self) -> u64 {
        let s = rustix::fs::statvfs(self.path()).unwrap();
        (s.f_blocks - s.f_bfree) * s.f_frsize
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}

/// Nothing is shed: what is asked is whether a full tier holds its bound, and a machine that is busy elsewhere would
/// shed so many stores that the tier never fills.
const STORE_ALL: [&str; 3] = ["--backpressure=false", "--max-inflight-bytes", "16MiB"];

fn watched(args: &[&str], bound: u64) {
    let Some(mount) = Mount::tmpfs() else {
        println!("skipped: no right to mount a tmpfs");
        return;
    };
    let empty = mount.used();
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(["replay", "--json", "--root"])
        .arg(mount.path())
        .args(args)
        .args(STORE_ALL)
        .args(["--max-bytes", &bound.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut peak, mut samples) = (0, 0u64);
    let status = loop {
        for _ in 0..100 {
            peak = peak.max(mount.used() - empty);
            samples += 1;
        }
        if let Some(s) = child.try_wait().unwrap() {
            break s;
        }
    };
    let out = child.wait_with_output().unwrap();
    let s: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    println!("{samples} samples, peak {peak} of {bound} bytes");
    assert!(status.success());
    assert!(peak <= bound, "{peak} bytes seen, {bound} allowed");
    assert!(peak > bound / 2, "the bound was never near: nothing was shown");
    assert!(s["tiers"][0]["evicted_blocks"].as_u64().unwrap() > 0);
    assert_eq!(
        (s["wrong_blocks"].as_u64(), s["events_match_directory"].as_bool()),
        (Some(0), Some(true)),
        "{}",
        s["events_note"]
    );
}

#[test]
fn an_outside_watcher_never_sees_more_than_the_bound() {
    watched(
        &[
            "--block-bytes",
            "16KiB",
            "--primary-bytes",
            "16MiB",
            "--restart-every",
            "200",
        ],
        40 << 20,
    );
}

#[test]
fn an_outside_watcher_never_sees_more_than_the_bound_on_a_real_trace() {
    let trace: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "../../../shared/traces/mooncake-conversation.jsonl.gz",
    ]
    .iter()
    .collect();
    if !trace.is_file() {
        println!("skipped: {} is not there", trace.display());
        return;
    }
    let args = [
        trace.to_str().unwrap(),
        "--block-bytes",
        "4KiB",
        "--primary-bytes",
        "16MiB",
        "--requests",
        "1500",
    ];
    watched(&args, 96 << 20);
}
