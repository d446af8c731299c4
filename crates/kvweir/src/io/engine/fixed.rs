//! Registered memory: a region known to the kernel, in chunks, so that operations name it by index.

#![expect(unsafe_code, reason = "tells the kernel of memory by address")]

use std::io;

use io_uring::{IoUring, types};

use crate::io::Region;

/// The longest chunk the kernel takes.
const MAX_CHUNK: usize = 1 << 30;
/// The most chunks it takes.
const MAX_CHUNKS: usize = 1 << 14;

/// The region registered with a ring.
#[derive(Debug)]
pub(super) struct Fixed {
    /// Keeps the addresses from meaning other memory: the kernel goes on using the pages it was told of. Owned memory
    /// stays mapped as long as this clone; of borrowed memory that is its owner's promise to `Region::borrowed`, which
    /// lasts until the last clone is dropped, this one too.
    region: Region,
    chunk: usize,
}

impl Fixed {
    /// Chunks hold whole slots, so that no slot lies in two.
    pub(super) fn new(region: &Region) -> Self {
        let stride = region.stride();
        let chunk = match stride {
            s if s <= MAX_CHUNK => MAX_CHUNK / s * s,
            _ => MAX_CHUNK,
        };
        Self {
            region: region.clone(),
            chunk,
        }
    }

    /// Registers it with `ring`, in place of what was.
    pub(super) fn enter(&self, ring: &IoUring) -> io::Result<()> {
        let (start, len) = self.region.span();
        if len.div_ceil(self.chunk) > MAX_CHUNKS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let chunks: Vec<libc::iovec> = (0..len)
            .step_by(self.chunk)
            .map(|at| libc::iovec {
                iov_base: start.as_ptr().wrapping_add(at).cast(),
                iov_len: self.chunk.min(len - at),
            })
            .collect();
        // refused where there was none
        let _ = ring.submitter().unregister_buffers();
        // SAFETY: the addresses are those of the region. Owned memory is mapped as long as a clone of the region
        // exists; borrowed memory stays valid as long, by the contract of `Region::borrowed`: nothing here sees to
        // that. `self` has a clone, and the engine keeps `self` as long as the ring (its field is declared behind the
        // ring's, so it is dropped after it). Registering reads and writes none of the memory; it pins its pages, so
        // memory that an owner unmapped against its promise would still be other pages than those a later mapping gets
        // there, and `index` names it by address: a transfer would then go to the old ones.
        unsafe { ring.submitter().register_buffers(&chunks) }
    }

    /// The index of the chunk that holds all of these bytes.
    pub(super) fn index(&self, start: *const u8, len: usize) -> Option<u16> {
        let (base, all) = self.region.span();
        let at = start.addr().checked_sub(base.addr().get())?;
        let end = at.checked_add(len).filter(|&end| end <= all && len > 0)?;
        let chunk = at / self.chunk;
        if (end - 1) / self.chunk != chunk {
            return None;
        }
        u16::try_from(chunk).ok()
    }
}

/// A file as opcodes name it.
pub(super) fn descriptor(fd: std::os::fd::BorrowedFd<'_>) -> types::Fd {
    types::Fd(std::os::fd::AsRawFd::as_raw_fd(&fd))
}
