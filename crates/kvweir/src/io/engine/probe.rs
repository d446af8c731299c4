//! Whether io_uring works here: found out by trying, since sysctl, seccomp and the kernel's age all have a say.

#![expect(unsafe_code, reason = "hands addresses to the kernel")]

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use io_uring::{Probe, opcode};
use rustix::fs::MemfdFlags;

use super::{fixed::descriptor, flight::Flight, ring};

/// What the file that is read holds.
const WORDS: &[u8] = b"io_uring reads";
/// Whose completions come.
const NOP: u64 = 1;
const READ: u64 = 2;

/// Makes a ring, does nothing in it and reads a file of memory.
///
/// # Errors
/// Why io_uring is not to be had, in words.
pub fn probe() -> Result<(), String> {
    let mut ring = ring::create(4).map_err(|e| why(&e))?;
    let mut known = Probe::new();
    let asked = ring.submitter().register_probe(&mut known);
    let needed = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
    ];
    if asked.is_err() || !needed.iter().all(|&op| known.is_supported(op)) {
        return Err("this kernel's io_uring is too old: 5.6 or later is needed".into());
    }
    ring::enable(&ring).map_err(|e| why(&e))?;
    let file = words().map_err(|e| format!("no file to try it with: {e}"))?;
    let mut bytes = [0; WORDS.len()];
    let entries = [
        opcode::Nop::new().build().user_data(NOP),
        opcode::Read::new(descriptor(file.as_fd()), bytes.as_mut_ptr(), bytes.len() as u32)
            .build()
            .user_data(READ),
    ];
    let mut seen = (None, None);
    let mut broken = false;
    {
        let mut flight = Flight::new(&mut ring, &mut broken);
        for entry in &entries {
            // SAFETY: `bytes` and `file` live until the flight has been dropped, and nobody looks at them before.
            if !unsafe { flight.push(entry) } {
                return Err("its queue is full from the start".into());
            }
        }
        while flight.under_way() > 0 {
            flight.enter(flight.under_way()).map_err(|e| why(&e))?;
            while let Some((whose, outcome)) = flight.next() {
                match whose {
                    NOP => seen.0 = Some(outcome),
                    _ => seen.1 = Some(outcome),
                }
            }
        }
    }
    match seen {
        (Some(Ok(_)), Some(Ok(n))) if n == WORDS.len() && bytes == WORDS => Ok(()),
        (Some(Err(e)), _) | (_, Some(Err(e))) => Err(format!("an operation failed: {e}")),
        other => Err(format!("operations ended otherwise than they must: {other:?}")),
    }
}

fn words() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("kvweir-probe", MemfdFlags::CLOEXEC)?;
    match rustix::io::pwrite(&file, WORDS, 0)? {
        n if n == WORDS.len() => Ok(file),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The error, with what is known to cause it.
fn why(e: &io::Error) -> String {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let cause = match (e.raw_os_error(), sysctl.trim()) {
        (Some(libc::EPERM), "2") => "kernel.io_uring_disabled is 2",
        (Some(libc::EPERM), "1") => "kernel.io_uring_disabled is 1 and this process is not of its group",
        (Some(libc::EPERM | libc::EACCES), _) => "a seccomp filter or security module forbids it",
        (Some(libc::ENOSYS), "") => "this kernel has none, or a seccomp filter hides it",
        (Some(libc::ENOSYS), _) => "a seccomp filter hides it",
        (Some(libc::ENOMEM), _) => "too little memory may be locked (ulimit -l)",
        (Some(libc::EMFILE | libc::ENFILE), _) => "too many files are open",
        _ => return e.to_string(),
    };
    format!("{cause} ({e})")
}

#[cfg(test)]
mod tests {
    use crate::io::engine::{EngineKind, Engines};

    /// From here on, this thread's `io_uring_setup` fails with `errno`, as in a container.
    fn forbid(errno: u32) {
        let (load, equal, end) = (
            libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::BPF_RET | libc::BPF_K,
        );
        let op = |code: u32, k: u32, (jt, jf)| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let mut filter = [
            op(load, 0, (0, 0)),
            op(equal, libc::SYS_io_uring_setup as u32, (0, 1)),
            op(end, libc::SECCOMP_RET_ERRNO | errno, (0, 0)),
            op(end, libc::SECCOMP_RET_ALLOW, (0, 0)),
        ];
        let program = libc::sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: both calls change what this thread may do and nothing else; `program` is read during the call.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_MODE_FILTER;
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
        }
    }

    #[test]
    fn where_seccomp_forbids_it_threads_are_used_and_the_reason_is_told() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            std::thread::scope(|s| {
                s.spawn(|| {
                    forbid(errno as u32);
                    let engines = Engines::choose(EngineKind::IoUring);
                    assert_eq!(engines.kind(), EngineKind::Threads);
                    assert_eq!(engines.engine().name(), "threads");
                    let reason = engines.refused().unwrap();
                    let known = ["seccomp", "io_uring_disabled", "this kernel has none"];
                    assert!(known.iter().any(|k| reason.contains(k)), "{reason}");
                });
            });
        }
    }
}
