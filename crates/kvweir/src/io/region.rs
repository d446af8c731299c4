//! The primary tier's memory: `num_slots` rows of `stride` bytes, owned or borrowed from an engine, shared with
//! I/O workers by address and without copies. Each slot carries a borrow word (readers, or one writer), so safe
//! code can never hold a writer beside another user of the same slot; a guard keeps the region alive and its
//! slot claimed until the I/O has truly ended (I5).

#![expect(unsafe_code, reason = "turns addresses of slots into slices")]

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{PAGE, buffer::Mapping, round_up};
use crate::error::{Error, ErrorKind, Result};

/// The number of a slot: its row in the region.
pub type SlotId = u32;

/// The borrow word's value while a writer holds the slot.
const WRITER: u32 = u32::MAX;

/// Rows of memory, one per block. Cloning shares them.
///
/// ```
/// # fn main() -> kvweir::Result<()> {
/// let region = kvweir::io::Region::new(4, 16 * 1024, false)?;
/// region.write(2)?.fill(7);
/// let reader = region.read(2)?;
/// assert!(reader.iter().all(|&b| b == 7));
/// assert!(region.write(2).is_err(), "a slot that is read cannot be written");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Region(Arc<Inner>);

struct Inner {
    start: NonNull<u8>,
    stride: usize,
    block_len: usize,
    borrows: Box<[AtomicU32]>,
    /// Keeps owned memory mapped; `None` for borrowed memory.
    _owned: Option<Mapping>,
}

// SAFETY: `start` points at memory that lives as long as `Inner` (owned, or promised by `Region::borrowed`), and
// every slice of it is made under the borrow word of its slot.
unsafe impl Send for Inner {}
// SAFETY: as above; the borrow words are atomics.
unsafe impl Sync for Inner {}

impl Region {
    /// Owned memory for `num_slots` blocks of `block_len` bytes; the stride is `block_len` rounded up to a page,
    /// so that direct I/O works from every slot. `huge` asks for huge pages.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a size of zero or beyond the address space, [`ErrorKind::Busy`] when the system
    /// has no memory.
    pub fn new(num_slots: u32, block_len: usize, huge: bool) -> Result<Self> {
        let stride = round_up(block_len as u64, PAGE as u64) as usize;
        let bytes = check_size(num_slots, block_len, stride)?;
        let map = Mapping::new(bytes, huge)?;
        Ok(Self(Arc::new(Inner {
            start: map.start(),
            stride,
            block_len,
            borrows: borrow_words(num_slots),
            _owned: Some(map),
        })))
    }

    /// For benches (feature `testing`): memory of a new file at `path`, which other processes may map too. Guards say
    /// nothing to those: they must be told when to touch which slot. `block_len` is a whole number of pages.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a size of zero, beyond the address space or not of whole pages, else the I/O error.
    #[cfg(any(test, feature = "testing"))]
    pub fn shared(path: &std::path::Path, num_slots: u32, block_len: usize) -> Result<Self> {
        let bytes = check_size(num_slots, block_len, block_len)?;
        if !block_len.is_multiple_of(PAGE) {
            return Err(Error::invalid(
                "make region",
                format!("{block_len} bytes are not whole pages"),
            ));
        }
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .and_then(|f| f.set_len(bytes as u64).map(|()| f))
            .map_err(|e| Error::io("make region", path.display(), e))?;
        let map = Mapping::of_file(&file, bytes)?;
        Ok(Self(Arc::new(Inner {
            start: map.start(),
            stride: block_len,
            block_len,
            borrows: borrow_words(num_slots),
            _owned: Some(map),
        })))
    }

    /// Memory of the caller: row `i` starts at `start + i * stride` and its first `block_len` bytes are the block.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when the sizes are zero or the rows overlap.
    ///
    /// # Safety
    /// `start` must be valid for reads and writes of `num_slots * stride` initialised bytes until the last clone
    /// of the region and the last slot guard are dropped. While a guard of a slot exists, nobody else writes that
    /// row, and while a [`SlotWrite`] exists, nobody else reads it.
    pub unsafe fn borrowed(
        start: NonNull<u8>,
        num_slots: u32,
        stride: usize,
        block_len: usize,
    ) -> Result<Self> {
        check_size(num_slots, block_len, stride)?;
        Ok(Self(Arc::new(Inner {
            start,
            stride,
            block_len,
            borrows: borrow_words(num_slots),
            _owned: None,
        })))
    }

    /// The number of slots.
    pub fn num_slots(&self) -> u32 {
        self.0.borrows.len() as u32
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> usize {
        self.0.block_len
    }

    /// Bytes from one slot to the next.
    pub fn stride(&self) -> usize {
        self.0.stride
    }

    /// Claims `slot` for reading, shared with other readers.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a writer holds it, [`ErrorKind::Invalid`] for a slot out of range.
    pub fn read(&self, slot: SlotId) -> Result<SlotRead> {
        let word = self.word(slot)?;
        let claimed = word.fetch_update(Ordering::Acquire, Ordering::Relaxed, |n| {
            (n < WRITER - 1).then(|| n + 1)
        });
        match claimed {
            Ok(_) => Ok(SlotRead {
                region: self.clone(),
                slot,
            }),
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                "read slot",
                format!("slot {slot} is being written"),
            )),
        }
    }

    /// Claims `slot` for writing, alone.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while anybody holds it, [`ErrorKind::Invalid`] for a slot out of range.
    pub fn write(&self, slot: SlotId) -> Result<SlotWrite> {
        match self
            .word(slot)?
            .compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(SlotWrite {
                region: self.clone(),
                slot,
            }),
            Err(_) => Err(Error::new(
                ErrorKind::Busy,
                "write slot",
                format!("slot {slot} is in use"),
            )),
        }
    }

    /// Whether no guard of `slot` exists: only then may it be handed to somebody else (I5).
    pub fn is_free(&self, slot: SlotId) -> bool {
        self.0
            .borrows
            .get(slot as usize)
            .is_some_and(|w| w.load(Ordering::Acquire) == 0)
    }

    /// Where all slots lie, and how many bytes that is.
    pub(super) fn span(&self) -> (NonNull<u8>, usize) {
        // `check_size` showed that this fits
        (self.0.start, self.num_slots() as usize * self.0.stride)
    }

    fn word(&self, slot: SlotId) -> Result<&AtomicU32> {
        self.0.borrows.get(slot as usize).ok_or_else(|| {
            Error::invalid(
                "use slot",
                format!("slot {slot} of {} does not exist", self.num_slots()),
            )
        })
    }

    fn address(&self, slot: SlotId) -> *mut u8 {
        // SAFETY: a guard exists only for a slot in range, and `check_size` showed that all rows fit an isize.
        unsafe { self.0.start.as_ptr().add(slot as usize * self.0.stride) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("num_slots", &self.num_slots())
            .field("stride", &self.0.stride)
            .field("block_len", &self.0.block_len)
            .finish()
    }
}

fn borrow_words(n: u32) -> Box<[AtomicU32]> {
    (0..n).map(|_| AtomicU32::new(0)).collect()
}

fn check_size(num_slots: u32, block_len: usize, stride: usize) -> Result<usize> {
    let total = stride
        .checked_mul(num_slots as usize)
        .filter(|&n| isize::try_from(n).is_ok());
    match total {
        Some(n) if num_slots > 0 && num_slots < u32::MAX && block_len > 0 && block_len <= stride => Ok(n),
        _ => Err(Error::invalid(
            "make region",
            format!("{num_slots} slots of {block_len} bytes every {stride} bytes is not a usable region"),
        )),
    }
}

/// A shared claim on a slot; dereferences to the block's bytes.
pub struct SlotRead {
    region: Region,
    slot: SlotId,
}

/// The only claim on a slot; dereferences to the block's bytes, writable.
pub struct SlotWrite {
    region: Region,
    slot: SlotId,
}

impl SlotRead {
    /// Which slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }
}

impl SlotWrite {
    /// Which slot.
    pub fn slot(&self) -> SlotId {
        self.slot
    }
}

impl Deref for SlotRead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the claim excludes writers until it is dropped, and the region is alive as long as the guard.
        unsafe { slice::from_raw_parts(self.region.address(self.slot), self.region.0.block_len) }
    }
}

impl Deref for SlotWrite {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the claim excludes everybody else until it is dropped.
        unsafe { slice::from_raw_parts(self.region.address(self.slot), self.region.0.block_len) }
    }
}

impl DerefMut for SlotWrite {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the claim excludes everybody else until it is dropped, and `&mut self` makes this slice unique.
        unsafe { slice::from_raw_parts_mut(self.region.address(self.slot), self.region.0.block_len) }
    }
}

impl Drop for SlotRead {
    fn drop(&mut self) {
        if let Some(w) = self.region.0.borrows.get(self.slot as usize) {
            w.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for SlotWrite {
    fn drop(&mut self) {
        if let Some(w) = self.region.0.borrows.get(self.slot as usize) {
            w.store(0, Ordering::Release);
        }
    }
}

impl fmt::Debug for SlotRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotRead({})", self.slot)
    }
}

impl fmt::Debug for SlotWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotWrite({})", self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_excludes_everybody_and_readers_share() {
        let r = Region::new(2, 5000, false).unwrap();
        assert_eq!((r.stride(), r.block_len()), (8192, 5000));
        let w = r.write(0).unwrap();
        assert_eq!(r.read(0).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(r.write(0).unwrap_err().kind(), ErrorKind::Busy);
        assert!(r.write(1).is_ok());
        drop(w);
        let (a, b) = (r.read(0).unwrap(), r.read(0).unwrap());
        assert!(r.write(0).is_err());
        drop(a);
        assert!(!r.is_free(0));
        drop(b);
        assert!(r.is_free(0) && r.write(0).is_ok());
    }

    #[test]
    fn slots_do_not_overlap_and_guards_outlive_the_handle() {
        let r = Region::new(3, 4096, true).unwrap();
        for s in 0..3 {
            r.write(s).unwrap().fill(s as u8 + 1);
        }
        let g = r.read(1).unwrap();
        drop(r);
        assert!(g.iter().all(|&b| b == 2));
    }

    #[test]
    fn a_shared_region_is_what_lies_in_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let r = Region::shared(&path, 2, PAGE).unwrap();
        r.write(1).unwrap().fill(7);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() == 2 * PAGE && bytes[PAGE - 1] == 0 && bytes[PAGE..].iter().all(|&b| b == 7));
        assert!(Region::shared(&path, 2, PAGE).is_err(), "it is made once");
        assert!(Region::shared(&dir.path().join("odd"), 2, 100).is_err());
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (n, len) in [(0, 4096), (1, 0), (u32::MAX, 4096), (1 << 30, usize::MAX / 2)] {
            assert_eq!(
                Region::new(n, len, false).unwrap_err().kind(),
                ErrorKind::Invalid,
                "{n} x {len}"
            );
        }
        assert_eq!(
            Region::new(1, 1, false).unwrap().read(1).unwrap_err().kind(),
            ErrorKind::Invalid
        );
    }
}
