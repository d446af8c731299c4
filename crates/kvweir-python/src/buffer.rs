//! Memory that Python owns. A [`View`] holds the buffer (and so the memory) as long as a tier may touch it; copies
//! between addresses are what a CPU worker needs instead of an accelerator's DMA.

#![expect(
    unsafe_code,
    reason = "makes a region of a Python buffer, and copies between addresses"
)]

use std::ptr::NonNull;

use kvweir::io::Region;
use pyo3::{
    buffer::PyBuffer,
    exceptions::{PyBufferError, PyValueError},
    prelude::*,
};

use crate::errors::raise;

/// A writable two-dimensional buffer of bytes, rows being blocks.
pub(crate) struct View {
    /// Held, never read: releasing it would let Python unmap the memory.
    _buffer: PyBuffer<i8>,
    pub(crate) region: Region,
}

impl View {
    /// Takes hold of `object`.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<i8>::get(object)?;
        let (rows, row) = match buffer.shape() {
            [rows, row] => (*rows, *row),
            shape => {
                let text = format!(
                    "the view has {} dimensions; rows and bytes are wanted",
                    shape.len()
                );
                return Err(PyBufferError::new_err(text));
            }
        };
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the view must be writable and contiguous"));
        }
        let slots = u32::try_from(rows).map_err(|_| PyBufferError::new_err("too many rows"))?;
        let start = NonNull::new(buffer.buf_ptr().cast::<u8>())
            .ok_or_else(|| PyBufferError::new_err("the view has no memory"))?;
        // SAFETY: the buffer protocol keeps rows * row initialised, writable bytes at `start` valid while `_buffer` is
        // held; it is let go of only when no guard of the region is left (`FsTier::shutdown`, `Drop`), else never. The
        // engine touches a row only when no job of ours has it: that is its contract with a tier.
        let region = unsafe { Region::borrowed(start, slots, row, row) }.map_err(raise)?;
        Ok(Self {
            _buffer: buffer,
            region,
        })
    }
}

/// Whether no I/O touches a row: only then may the memory go (I5).
pub(crate) fn is_quiet(region: &Region) -> bool {
    (0..region.num_slots()).all(|slot| region.is_free(slot))
}

/// Copies `length` bytes from each address of `sources` to the address beside it in `targets`, the interpreter's
/// lock released. The caller owns the memory at both.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "the binding hands arguments over")]
fn copy_blocks(
    py: Python<'_>,
    targets: PyBuffer<i64>,
    sources: PyBuffer<i64>,
    length: usize,
) -> PyResult<()> {
    let targets: Vec<i64> = targets.to_vec(py)?;
    let sources: Vec<i64> = sources.to_vec(py)?;
    if targets.len() != sources.len() {
        return Err(PyValueError::new_err("as many targets as sources are wanted"));
    }
    let address = |a: i64| {
        usize::try_from(a)
            .ok()
            .filter(|&a| a > 4096 && a.checked_add(length).is_some())
    };
    let pairs: Option<Vec<(usize, usize)>> = targets
        .into_iter()
        .zip(sources)
        .map(|(t, s)| Some((address(t)?, address(s)?)))
        .collect();
    let pairs = pairs.ok_or_else(|| PyValueError::new_err("an address is not one"))?;
    py.detach(|| {
        for (t, s) in pairs {
            // SAFETY: the caller passes addresses of live memory of at least `length` bytes each; the ranges may
            // overlap.
            unsafe { std::ptr::copy(s as *const u8, t as *mut u8, length) };
        }
    });
    Ok(())
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(copy_blocks, m)?)
}
