//! What the system lets a process have: io_uring, open files, locked memory, the cgroup's memory and CPUs, shared
//! memory. All of it is that of this process: run it where the engine runs.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::Check;
use crate::io::{engine::probe, pool::usable_cpus};

const MIB: u64 = 1 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![
        io_uring(),
        open_files(),
        locked_memory(),
        memory(),
        cpus(),
        shared_memory(),
    ]
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn show(bytes: u64) -> String {
    bytesize::ByteSize::b(bytes).to_string()
}

/// By trying it.
fn io_uring() -> Check {
    let what = "io_uring";
    match probe() {
        Ok(()) => Check::ok(what, "works"),
        Err(reason) => Check::warn(
            what,
            reason,
            "nothing as long as the engine is `threads`; `io_uring` falls back to them here, and needs `sysctl \
             kernel.io_uring_disabled=0` and a seccomp profile that allows it",
        ),
    }
}

fn open_files() -> Check {
    let soft = getrlimit(Resource::Nofile).current;
    match soft {
        None => Check::ok("open files", "no limit"),
        Some(n) if n < 1024 => Check::bad(
            "open files",
            format!("at most {n}"),
            "ulimit -n 65536: an engine needs hundreds beside the tier's threads",
        ),
        Some(n) => Check::ok("open files", format!("at most {n}")),
    }
}

fn locked_memory() -> Check {
    match getrlimit(Resource::Memlock).current {
        None => Check::ok("locked memory", "no limit"),
        Some(n) if n < 64 * MIB => Check::warn(
            "locked memory",
            format!("at most {}", show(n)),
            "ulimit -l unlimited, if the engine pins its host memory itself (drivers of accelerators mostly do it \
             without)",
        ),
        Some(n) => Check::ok("locked memory", format!("at most {}", show(n))),
    }
}

/// The directories, innermost first, of the cgroup that governs `controller`.
fn cgroups(controller: &str) -> Vec<PathBuf> {
    let text = read("/proc/self/cgroup").unwrap_or_default();
    let mut out = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(names), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let base = match names {
            "" => PathBuf::from("/sys/fs/cgroup"),
            n if n.split(',').any(|n| n == controller) => Path::new("/sys/fs/cgroup").join(controller),
            _ => continue,
        };
        let at = base.join(path.trim_start_matches('/'));
        out.extend(
            at.ancestors()
                .take_while(|p| p.starts_with(&base))
                .map(Path::to_owned),
        );
    }
    out
}

/// The tightest of the limits that `limit` reads from a cgroup's directory.
fn tightest<T: PartialOrd>(controller: &str, limit: impl Fn(&Path) -> Option<T>) -> Option<T> {
    let all = cgroups(controller).into_iter().filter_map(|c| limit(&c));
    all.reduce(|a, b| if b < a { b } else { a })
}

fn memory() -> Check {
    let what = "memory of the cgroup";
    let limit = tightest("memory", |c| {
        let text = read(c.join("memory.max")).or_else(|| read(c.join("memory.limit_in_bytes")))?;
        // version 1 writes "none" as a very large number
        text.parse::<u64>().ok().filter(|&n| n < 1 << 60)
    });
    match limit {
        None => Check::ok(what, "no limit"),
        Some(n) if n < 4096 * MIB => Check::warn(
            what,
            format!("at most {}", show(n)),
            "the primary tier, its shared memory and the page cache all count here: raise it, or keep the tier small",
        ),
        Some(n) => Check::ok(what, format!("at most {}", show(n))),
    }
}

fn cpus() -> Check {
    let what = "CPUs";
    let quota = tightest("cpu", |c| {
        if let Some(text) = read(c.join("cpu.max")) {
            let (quota, period) = text.split_once(' ')?;
            return Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?);
        }
        let quota = read(c.join("cpu.cfs_quota_us"))?
            .parse::<f64>()
            .ok()
            .filter(|&q| q > 0.0)?;
        Some(quota / read(c.join("cpu.cfs_period_us"))?.parse::<f64>().ok()?)
    });
    let usable = usable_cpus();
    match quota {
        Some(q) if q < 2.0 => Check::warn(
            what,
            format!("{usable} usable, the cgroup gives the time of {q:.1}"),
            "give the engine at least two: checksums and I/O threads need one beside the scheduler",
        ),
        Some(q) => Check::ok(
            what,
            format!("{usable} usable, the cgroup gives the time of {q:.1}"),
        ),
        None if usable < 2 => Check::warn(what, "1 usable", "give the engine at least two"),
        None => Check::ok(what, format!("{usable} usable")),
    }
}

fn shared_memory() -> Check {
    let what = "/dev/shm";
    match rustix::fs::statvfs("/dev/shm") {
        Err(e) => Check::warn(
            what,
            e.to_string(),
            "mount a tmpfs there: vLLM's host memory lies in it",
        ),
        Ok(s) => {
            let (size, free) = (
                s.f_blocks.saturating_mul(s.f_frsize),
                s.f_bavail.saturating_mul(s.f_frsize),
            );
            let found = format!("{} free of {}", show(free), show(size));
            match size < 1024 * MIB {
                true => Check::warn(
                    what,
                    found,
                    "vLLM's host memory lies in it: docker run --shm-size, or an emptyDir of medium Memory",
                ),
                false => Check::ok(what, found),
            }
        }
    }
}
