//! Shared memory that engines left behind. vLLM names it `vllm_offload_<engine>.mmap`, further pieces of the same
//! region with `.1`, `.2`... behind; kvweir's own regions are anonymous and go with their process. A region goes only
//! if no process maps or has open any of its pieces, and only if that can be known: where the processes of others, or
//! of other containers, cannot be seen, it stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::{age_s, notes::is_spent};

/// The PID namespace that sees every process of the machine, as the kernel numbers it.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What becomes of a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "why")]
pub enum RegionState {
    /// Nobody uses it: removed, or would be.
    Gone,
    /// Processes with these ids use it.
    InUse(Vec<u32>),
    /// Left alone for this reason.
    Left(String),
}

/// A region of shared memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RegionInfo {
    /// Its files.
    pub paths: Vec<String>,
    /// Memory they take.
    pub bytes: u64,
    /// What becomes of it.
    #[serde(flatten)]
    pub state: RegionState,
}

/// Device and inode.
type FileId = (u64, u64);
/// Processes that use a file.
type Users = BTreeMap<FileId, Vec<u32>>;

/// What to do where processes cannot be seen.
const HOW: &str = "run `kvweir gc` as root on the host, or in a container with --pid=host, --cap-add=SYS_PTRACE and \
                   the host's /dev/shm";

struct Piece {
    path: PathBuf,
    id: FileId,
    bytes: u64,
    changed_ns: i128,
}

/// The engine that a file's name tells, if it is a region of vLLM's.
fn engine_of(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("vllm_offload_")?;
    let engine = match rest.strip_suffix(".mmap") {
        Some(engine) => engine,
        None => {
            let (head, piece) = rest.rsplit_once('.')?;
            let number: u32 = piece.parse().ok().filter(|&n| n > 0)?;
            head.strip_suffix(".mmap")
                .filter(|_| number.to_string() == piece)?
        }
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    (!engine.is_empty() && engine.bytes().all(plain)).then_some(engine)
}

/// Looks at the regions in `dir`, and with `remove` removes those that nobody uses.
pub(super) fn collect(
    dir: &Path,
    proc: &Path,
    grace: Duration,
    now_ns: i128,
    remove: bool,
) -> io::Result<Vec<RegionInfo>> {
    let regions = pieces(dir)?;
    if regions.is_empty() {
        return Ok(Vec::new());
    }
    let files = regions.values().flatten().map(|p| (&*p.path, p.id)).collect();
    let users = users(proc, &files)?;
    let mut out = Vec::new();
    for pieces in regions.values() {
        let young = pieces
            .iter()
            .any(|p| age_s(now_ns, p.changed_ns) < grace.as_secs());
        let mut state = match &users {
            Ok(users) => {
                let pids: BTreeSet<u32> = pieces
                    .iter()
                    .filter_map(|p| users.get(&p.id))
                    .flatten()
                    .copied()
                    .collect();
                match pids.is_empty() {
                    true if young => RegionState::Left(format!("made less than {} s ago", grace.as_secs())),
                    true => RegionState::Gone,
                    false => RegionState::InUse(pids.into_iter().collect()),
                }
            }
            Err(why) => RegionState::Left(why.clone()),
        };
        if remove && state == RegionState::Gone {
            // the first piece last: an engine that starts under this name makes it first
            for p in pieces.iter().rev() {
                if let Err(e) = std::fs::remove_file(&p.path)
                    && e.kind() != io::ErrorKind::NotFound
                {
                    state = RegionState::Left(format!("cannot be removed: {e}"));
                }
            }
        }
        out.push(RegionInfo {
            paths: pieces.iter().map(|p| p.path.display().to_string()).collect(),
            bytes: pieces.iter().map(|p| p.bytes).sum(),
            state,
        });
    }
    Ok(out)
}

/// The files of each region, the first piece first.
fn pieces(dir: &Path) -> io::Result<BTreeMap<String, Vec<Piece>>> {
    let mut regions: BTreeMap<String, Vec<Piece>> = BTreeMap::new();
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(regions),
        r => r?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(engine) = name.to_str().and_then(engine_of) else {
            continue;
        };
        let Ok(meta) = entry.path().symlink_metadata() else {
            continue;
        };
        if !meta.is_file() {
            continue;
        }
        let ns = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
        regions.entry(engine.to_owned()).or_default().push(Piece {
            path: entry.path(),
            id: (meta.dev(), meta.ino()),
            bytes: meta.blocks() * 512,
            changed_ns: ns(meta.mtime(), meta.mtime_nsec()).max(ns(meta.ctime(), meta.ctime_nsec())),
        });
    }
    for pieces in regions.values_mut() {
        pieces.sort_by(|a, b| {
            let key = |p: &Piece| (p.path.as_os_str().len(), p.path.clone());
            key(a).cmp(&key(b))
        });
    }
    Ok(regions)
}

/// Which processes map or have open which of `files`; or why that cannot be known.
///
/// # Errors
/// What ran out meanwhile: it tells nothing of the processes.
fn users(proc: &Path, files: &BTreeMap<&Path, FileId>) -> io::Result<Result<Users, String>> {
    let told = |path: &Path, e: io::Error| match is_spent(&e) {
        true => Err(e),
        false => Ok(format!("{}: {e}; {HOW}", path.display())),
    };
    let own = proc.join("self/ns/pid");
    match std::fs::read_link(&own) {
        Ok(ns) if ns.as_os_str() == FIRST_PID_NAMESPACE => {}
        Ok(ns) => {
            return Ok(Err(format!(
                "this is a container: processes outside of its {} have pids that cannot be seen here, and may use it; \
                 {HOW}",
                ns.display()
            )));
        }
        Err(e) => return told(&own, e).map(Err),
    }
    let mut users = Users::new();
    let entries = match std::fs::read_dir(proc) {
        Ok(entries) => entries,
        Err(e) => return told(proc, e).map(Err),
    };
    let (mut seen, mut hidden, mut first) = (0u32, 0u32, None);
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => return told(proc, e).map(Err),
        };
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        seen += 1;
        match files_of(&entry.path(), files) {
            Ok(used) => {
                for id in used {
                    users.entry(id).or_default().push(pid);
                }
            }
            // ended while we looked
            Err(e) if matches!(e.raw_os_error(), Some(2 | 3)) => {}
            Err(e) if is_spent(&e) => return Err(e),
            Err(_) => {
                hidden += 1;
                first.get_or_insert(pid);
            }
        }
    }
    // a mount of /proc may hide the processes of others altogether
    let sees_first = proc.join("1").exists();
    if let Some(pid) = first {
        let name = std::fs::read_to_string(proc.join(pid.to_string()).join("comm")).unwrap_or_default();
        let others = match hidden - 1 {
            0 => String::new(),
            n => format!(" and {n} others"),
        };
        return Ok(Err(format!(
            "pid {pid} ({}){others} cannot be looked into, and may use it; {HOW}",
            name.trim_end()
        )));
    }
    if seen == 0 || !sees_first {
        return Ok(Err(format!(
            "pid 1 cannot be seen: {} hides the processes of others; {HOW}",
            proc.display()
        )));
    }
    Ok(Ok(users))
}

/// The files, of `files`, that a process maps or has open.
fn files_of(process: &Path, files: &BTreeMap<&Path, FileId>) -> io::Result<BTreeSet<FileId>> {
    let mut used = BTreeSet::new();
    let maps = std::fs::read(process.join("maps"))?;
    for line in maps.split(|&b| b == b'\n') {
        used.extend(mapped(&String::from_utf8_lossy(line)));
        // layered file systems tell another device there than elsewhere
        let path = line.iter().position(|&b| b == b'/').and_then(|at| line.get(at..));
        used.extend(files.get(Path::new(OsStr::from_bytes(path.unwrap_or_default()))));
    }
    for fd in std::fs::read_dir(process.join("fd"))? {
        match std::fs::metadata(fd?.path()) {
            Ok(m) => {
                used.insert((m.dev(), m.ino()));
            }
            // closed meanwhile, or a file on a mount of its own that is gone
            Err(e) if matches!(e.raw_os_error(), Some(2 | 3 | 9 | 107 | 116)) => {}
            Err(e) => return Err(e),
        }
    }
    used.retain(|id| files.values().any(|f| f == id));
    Ok(used)
}

/// Device and inode of a line of `maps`.
fn mapped(line: &str) -> Option<FileId> {
    let mut words = line.split_ascii_whitespace().skip(3);
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok().filter(|&i| i > 0)?;
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    Some((rustix::fs::makedev(hex(major)?, hex(minor)?), inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_names_of_vllm_are_regions() {
        for (name, engine) in [
            ("vllm_offload_7ba20c29-218f-49f5.mmap", Some("7ba20c29-218f-49f5")),
            ("vllm_offload_x_dp1.mmap.12", Some("x_dp1")),
            ("vllm_offload_.mmap", None),
            ("vllm_offload_x.mmap.0", None),
            ("vllm_offload_x.mmap.01", None),
            ("vllm_offload_x.mmap.bak", None),
            ("vllm_offload_x.mmap.1.2", None),
            ("vllm_offload_x y.mmap", None),
            ("xvllm_offload_x.mmap", None),
            ("vllm_offload_x.mmaps", None),
            ("psm_2552bb3b", None),
            ("sem.mp-4sdy4kn5", None),
        ] {
            assert_eq!(engine_of(name), engine, "{name}");
        }
    }

    #[test]
    fn a_line_of_maps_names_device_and_inode() {
        let line = "7f1c2a000000-7f1c2a021000 rw-s 00000000 00:19 4711   /dev/shm/vllm_offload_x.mmap";
        assert_eq!(mapped(line), Some((rustix::fs::makedev(0, 0x19), 4711)));
        assert_eq!(mapped("7ffd1000-7ffd2000 rw-p 00000000 00:00 0   [stack]"), None);
        assert_eq!(mapped(""), None);
    }
}
