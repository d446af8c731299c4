//! Page-aligned memory with a stable address: what direct I/O, registered buffers and accelerators need.
//! Mapped anonymously, so it is zeroed and returned to the system on drop.

#![expect(unsafe_code, reason = "maps memory and hands out slices of it")]

use std::{io, ptr::NonNull, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::{PAGE, round_up};
use crate::error::{Error, Result};

/// An owned, zeroed, page-aligned mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; it has no tie to the thread that made it.
unsafe impl Send for Mapping {}
// SAFETY: `Mapping` itself hands out only its address; users of the memory bring their own exclusion.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `len` bytes; with `huge`, asks for huge pages (a wish, not a promise).
    pub(crate) fn new(len: usize, huge: bool) -> Result<Self> {
        let bytes = round_up(len.max(1) as u64, PAGE as u64) as usize;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice aliases nothing.
        let p = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|e| Error::io("map memory", format_args!("{bytes} bytes"), io::Error::from(e)))?;
        let start = NonNull::new(p.cast::<u8>())
            .ok_or_else(|| Error::io("map memory", "null mapping", io::Error::from_raw_os_error(12)))?;
        if huge {
            // SAFETY: the range was mapped just above. A refusal only means ordinary pages.
            let _ = unsafe { rustix::mm::madvise(p, bytes, Advice::LinuxHugepage) };
        }
        Ok(Self { start, len: bytes })
    }

    /// Maps the first `len` bytes of `file`, shared with whoever else maps it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn of_file(file: &std::fs::File, len: usize) -> Result<Self> {
        let fail = |e: io::Error| Error::io("map file", format_args!("{len} bytes"), e);
        // SAFETY: a shared mapping at an address of the kernel's choice; what others write there is theirs to order.
        let p = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                0,
            )
        }
        .map_err(|e| fail(e.into()))?;
        let start = NonNull::new(p.cast::<u8>()).ok_or_else(|| fail(io::Error::from_raw_os_error(12)))?;
        Ok(Self { start, len })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of the mapping made in `new`, and no slice outlives its owner.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// An owned page-aligned buffer: scratch space of a worker.
#[derive(Debug)]
pub struct PageBuffer(Mapping);

impl PageBuffer {
    /// A zeroed buffer of at least `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the system has no memory.
    pub fn new(len: usize) -> Result<Self> {
        Mapping::new(len, false).map(Self)
    }

    /// As [`new`](Self::new), asking for huge pages: for memory that is accessed here and there.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn huge(len: usize) -> Result<Self> {
        Mapping::new(len, true).map(Self)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is `len` initialised bytes, owned by `self` and borrowed with it.
        unsafe { slice::from_raw_parts(self.0.start().as_ptr(), self.0.len()) }
    }

    /// The bytes, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` makes it the only reference.
        unsafe { slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_buffer_is_aligned_zeroed_and_writable() {
        let mut b = PageBuffer::new(5000).unwrap();
        assert_eq!(b.as_slice().len(), 8192);
        assert_eq!(b.as_slice().as_ptr() as usize % PAGE, 0);
        assert!(b.as_slice().iter().all(|&x| x == 0));
        b.as_mut_slice()[8191] = 7;
        assert_eq!(b.as_slice()[8191], 7);
    }
}
