//! The file system below the root: kind, mount options, direct I/O, space, inodes, quota.

use std::{
    ffi::OsString,
    io::IoSliceMut,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::Check;
use crate::io::{Disk, OsDisk, PAGE, PageBuffer, disk::OpenMode};

/// Less than this part of space or inodes free is a warning.
const LOW: f64 = 0.05;

pub(super) fn checks(root: &Path, some_file: Option<&Path>) -> Vec<Check> {
    let mut out = Vec::new();
    match std::fs::read("/proc/self/mountinfo") {
        Ok(text) => match mount_of(&text, root) {
            Some(m) => out.extend([kind(&m), options(&m), quota(&m)]),
            None => out.push(Check::warn(
                "file system",
                "no mount leads to the root",
                "mount /proc",
            )),
        },
        Err(e) => out.push(Check::warn(
            "file system",
            format!("/proc/self/mountinfo: {e}"),
            "mount /proc",
        )),
    }
    out.push(direct(root, some_file));
    out.extend(space(root));
    out
}

/// A line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    kind: String,
    source: PathBuf,
    options: Vec<String>,
}

/// The mount that `root` lies on: the longest of those that lead to it, the last of equals.
fn mount_of(text: &[u8], root: &Path) -> Option<Mount> {
    let mounts = text.split(|&b| b == b'\n').filter_map(|line| {
        let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let dash = words.iter().position(|w| *w == b"-")?;
        let (left, right) = words.split_at_checked(dash)?;
        let lossy = |w: &&[u8]| String::from_utf8_lossy(w).into_owned();
        let split = |w: &&[u8]| lossy(w).split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut options = left.get(5).map(split)?;
        options.extend(right.get(3).map(split).unwrap_or_default());
        Some(Mount {
            point: unescape(left.get(4)?),
            kind: right.get(1).map(lossy)?,
            source: unescape(right.get(2)?),
            options,
        })
    });
    mounts
        .filter(|m| root.starts_with(&m.point))
        .max_by_key(|m| m.point.as_os_str().len())
}

/// Blanks and the like are escaped as `\040`; other bytes are literal, UTF-8 or not.
fn unescape(text: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.first_chunk::<3>().filter(|_| first == b'\\');
        let code = octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(code.unwrap_or(first));
        rest = after
            .get(if code.is_some() { 3 } else { 0 }..)
            .unwrap_or_default();
    }
    OsString::from_vec(out).into()
}

fn kind(m: &Mount) -> Check {
    let found = format!("{} ({} at {})", m.kind, m.source.display(), m.point.display());
    match m.kind.as_str() {
        "ext4" | "xfs" | "btrfs" | "zfs" | "f2fs" | "bcachefs" => Check::ok("file system", found),
        "tmpfs" | "ramfs" => Check::warn(
            "file system",
            found,
            "this is memory, not a disk: give it to the primary tier, or put the root on a disk",
        ),
        "overlay" => Check::warn(
            "file system",
            found,
            "this is a container's own layer: mount a volume, or the cache goes with the container",
        ),
        k if k.starts_with("nfs")
            || k.starts_with("fuse")
            || ["ceph", "lustre", "cifs", "9p"].contains(&k) =>
        {
            Check::warn(
                "file system",
                found,
                "reached over a network or through a process: set `high_water_s` to 0.05, `low_water_s` to 0.01, and \
                 see that flock works there",
            )
        }
        _ => Check::warn("file system", found, "not tried: run `kvweir replay` on it first"),
    }
}

fn options(m: &Mount) -> Check {
    let has = |o: &str| m.options.iter().any(|x| x == o);
    let found = m.options.join(",");
    if has("ro") {
        return Check::bad("mount options", found, "mount it read-write");
    }
    if has("sync") || has("dirsync") {
        return Check::warn(
            "mount options",
            found,
            "mount it without sync and dirsync: a cache need not survive a power loss",
        );
    }
    if m.kind != "btrfs" && (has("discard") || has("discard=sync")) {
        return Check::warn(
            "mount options",
            found,
            "the device is told of every block that is evicted, which slows stores of a full tier with files: mount it \
             without discard and let fstrim.timer do that, or use layout = pack, which evicts without removing files",
        );
    }
    Check::ok("mount options", found)
}

fn quota(m: &Mount) -> Check {
    let on = |o: &&String| {
        [
            "usrquota",
            "grpquota",
            "prjquota",
            "uquota",
            "gquota",
            "pquota",
            "quota",
            "usrjquota",
            "grpjquota",
        ]
        .iter()
        .any(|q| o.split('=').next() == Some(q))
    };
    match m.options.iter().find(on) {
        Some(o) => Check::warn(
            "quota",
            format!("the mount has {o}"),
            "see that the quota lies above `max_bytes` (`quota`, `xfs_quota`): beyond it every store fails",
        ),
        None => Check::ok("quota", "none in the mount options"),
    }
}

/// Tries direct I/O on a file without a name, else on a file that is there.
fn direct(root: &Path, some_file: Option<&Path>) -> Check {
    let what = "direct I/O";
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, root, flags, Mode::RUSR | Mode::WUSR);
    let none = || {
        Check::warn(
            what,
            "refused",
            "loads and stores go through the page cache: use a file system with O_DIRECT if memory is short",
        )
    };
    if let Ok(file) = &opened
        && let Ok(s) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && s.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let (mem, offset) = (s.stx_dio_mem_align, s.stx_dio_offset_align);
        let found = format!("memory aligned to {mem}, offsets to {offset} bytes");
        return match mem.max(offset) {
            0 => none(),
            a if a as usize > PAGE => Check::warn(
                what,
                found,
                format!("kvweir aligns to {PAGE} bytes, so I/O goes through the page cache here"),
            ),
            _ => Check::ok(what, found),
        };
    }
    let read = |path: &Path| {
        let file = OsDisk.open(path, OpenMode::Read, true).ok()?;
        let mut page = PageBuffer::new(PAGE).ok()?;
        file.read_at(&mut [IoSliceMut::new(page.as_mut_slice())], 0).ok()
    };
    match (opened, some_file.map(read)) {
        (Ok(_), _) | (_, Some(Some(_))) => Check::ok(what, "works; the kernel does not tell its alignment"),
        (_, Some(None)) => none(),
        (Err(e), None) => Check::warn(
            what,
            format!("not tried: no file here, and none could be made: {e}"),
            "run it as the engine's user",
        ),
    }
}

fn space(root: &Path) -> Vec<Check> {
    let s = match rustix::fs::statvfs(root) {
        Ok(s) => s,
        Err(e) => return vec![Check::bad("space", e.to_string(), "look at the mount")],
    };
    let part = |free: u64, all: u64| free as f64 / all.max(1) as f64;
    let bytes = |n: u64| bytesize::ByteSize::b(n.saturating_mul(s.f_frsize)).to_string();
    let found = format!("{} free of {}", bytes(s.f_bavail), bytes(s.f_blocks));
    let low = part(s.f_bavail, s.f_blocks) < LOW;
    let space = match low {
        false => Check::ok("space", found),
        true => Check::warn(
            "space",
            found,
            "lower `max_bytes`, set `min_free_bytes`, or `kvweir trim`: full file systems are slow",
        ),
    };
    // some file systems make inodes as they need them and tell none
    let inodes = match (s.f_files, part(s.f_favail, s.f_files) < LOW) {
        (0, _) => Check::ok("inodes", "without a fixed number"),
        (all, false) => Check::ok("inodes", format!("{} free of {all}", s.f_favail)),
        (all, true) => Check::warn(
            "inodes",
            format!("{} free of {all}", s.f_favail),
            "a block takes one, and up to two for directories: use larger blocks, or a file system with more",
        ),
    };
    vec![space, inodes]
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    use super::*;

    #[test]
    fn the_longest_mount_that_leads_to_the_root_is_its_own() {
        let text = "24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro\n\
                    30 24 0:25 / /mnt/my\\040disk rw,noatime - xfs /dev/nvme0n1 rw,prjquota\n\
                    31 24 0:26 / /mnt/my rw - tmpfs tmpfs rw\n";
        let mount_of = |text: &str, root| mount_of(text.as_bytes(), root);
        let m = mount_of(text, Path::new("/mnt/my disk/kv")).unwrap();
        assert_eq!(
            (m.kind.as_str(), m.point.as_path()),
            ("xfs", Path::new("/mnt/my disk"))
        );
        assert_eq!(m.options, ["rw", "noatime", "rw", "prjquota"]);
        assert_eq!(quota(&m).level, super::super::Level::Warn);
        assert_eq!(mount_of(text, Path::new("/mnt/myth")).unwrap().kind, "ext4");
        assert_eq!(mount_of("junk\n", Path::new("/")), None);
    }

    #[test]
    fn a_mount_whose_name_is_no_text_hides_no_other() {
        let text = b"24 1 254:0 / / rw - ext4 /dev/vda rw\n30 24 0:25 / /d\xe9\\134\\134\xe9 rw - xfs /dev/\xe9 rw\n";
        let root = Path::new(OsStr::from_bytes(b"/d\xe9\\\\\xe9/kv"));
        assert_eq!(mount_of(text, root).unwrap().kind, "xfs");
        assert_eq!(mount_of(text, Path::new("/kv")).unwrap().kind, "ext4");
    }

    #[test]
    fn mount_options_that_slow_a_cache_are_told() {
        let level = |kind: &str, given: &str| {
            let text = format!("24 1 254:0 / / rw - {kind} /dev/vda {given}\n");
            options(&mount_of(text.as_bytes(), Path::new("/kv")).unwrap()).level
        };
        use crate::admin::doctor::Level;
        for (kind, given, want) in [
            ("ext4", "rw", Level::Ok),
            ("ext4", "rw,discard", Level::Warn),
            ("xfs", "rw,sync", Level::Warn),
            ("btrfs", "rw,discard", Level::Ok),
            ("ext4", "ro", Level::Bad),
        ] {
            assert_eq!(level(kind, given), want, "{kind} {given}");
        }
    }
}
