//! How the system schedules I/O workers. They are woken by the engine's scheduler thread while it has work of its own;
//! as batch threads they get the same share of the CPUs, but do not take its CPU away at the moment they wake (I8).

#![expect(unsafe_code, reason = "a system call that no safe wrapper of ours has")]

/// Makes the calling thread one that waits for a CPU to be free rather than preempting another thread. Where the
/// system refuses, nothing changes.
pub(crate) fn be_patient() {
    // SAFETY: every field of `sched_param` may be zero, and the call reads it only.
    let _ = unsafe {
        let param: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param)
    };
}
