//! The room where bytes move, and the only one with `unsafe`: page-aligned memory ([`buffer`]), the primary
//! tier's [`region`], the [`disk`] seam with the operating system behind it ([`os`]), the [`engine`]s that move
//! batches, and the worker threads ([`pool`]). Nothing here knows keys, budgets or policies.

pub mod buffer;
pub mod disk;
pub mod engine;
#[cfg(any(test, feature = "testing"))]
pub mod fault;
pub mod os;
pub mod pool;
pub mod process;
pub mod region;
mod sched;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
pub(crate) mod tree;

pub use buffer::PageBuffer;
pub use disk::{Disk, DiskFile, Space, Stat};
pub use os::{OsDisk, boot_id};
pub use region::{Region, SlotRead, SlotWrite};

/// The alignment, in bytes, that direct I/O needs of addresses, lengths and offsets; also the page size assumed
/// by on-disk formats.
pub const PAGE: usize = 4096;

/// `n` rounded up to a multiple of `unit` bytes; saturates at `u64::MAX`.
pub const fn round_up(n: u64, unit: u64) -> u64 {
    match n % unit {
        0 => n,
        r => n.saturating_add(unit - r),
    }
}

/// Whether address and length of `bytes` allow direct I/O.
pub fn is_aligned(bytes: &[u8]) -> bool {
    bytes.len().is_multiple_of(PAGE) && bytes.as_ptr().addr().is_multiple_of(PAGE)
}
