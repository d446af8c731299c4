//! A run: contiguous bytes of a file, scattered over memory; how far it got, and how it ended.

use std::{
    fmt,
    io::{self, IoSlice, IoSliceMut},
};

use smallvec::SmallVec;

use crate::io::disk::DiskFile;

/// Pieces of memory that one system call takes (`IOV_MAX`).
pub(super) const MAX_PIECES: usize = 1024;
/// How often an operation that moved nothing because it would have had to wait is tried again.
const MAX_STALLS: u32 = 64;
/// Direct I/O moves no less than this many bytes, except at the end of a file.
const SECTOR: u64 = 512;
/// `EINVAL`, for which `io::ErrorKind` has no kind of its own.
const EINVAL: i32 = 22;

/// Reads contiguous bytes of a file into memory.
pub type ReadRun<'a> = Run<'a, IoSliceMut<'a>>;
/// Writes memory to contiguous bytes of a file.
pub type WriteRun<'a> = Run<'a, IoSlice<'a>>;

/// Contiguous bytes of a file beside the memory they go to or come from, in that order. Ready to be moved until an
/// engine has had it, ended from then on.
pub struct Run<'a, B> {
    file: &'a dyn DiskFile,
    /// Where the next byte lies.
    offset: u64,
    /// None of them is empty: an empty slice has no aligned address, so direct I/O must not see one.
    pieces: SmallVec<[B; 4]>,
    /// The first piece that is not done; it begins with the next byte.
    first: usize,
    asked: usize,
    done: usize,
    /// Whether an operation stopped within a piece, which now lacks its beginning.
    cut: bool,
    stalls: u32,
    ended: Option<io::Result<usize>>,
}

/// Memory of a run: [`IoSliceMut`] to read into, [`IoSlice`] to write from.
pub trait Piece: sealed::Piece {}

impl<B: sealed::Piece> Piece for B {}

pub(super) mod sealed {
    use super::{DiskFile, io};

    pub trait Piece {
        /// Whether bytes come from the file.
        const READS: bool;
        fn start(&mut self) -> *mut u8;
        fn len(&self) -> usize;
        fn skip(&mut self, n: usize);
        fn call(file: &dyn DiskFile, pieces: &mut [Self], offset: u64) -> io::Result<usize>
        where
            Self: Sized;
    }
}

impl sealed::Piece for IoSliceMut<'_> {
    const READS: bool = true;

    fn start(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn skip(&mut self, n: usize) {
        self.advance(n);
    }

    fn call(file: &dyn DiskFile, pieces: &mut [Self], offset: u64) -> io::Result<usize> {
        file.read_at(pieces, offset)
    }
}

impl sealed::Piece for IoSlice<'_> {
    const READS: bool = false;

    fn start(&mut self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn skip(&mut self, n: usize) {
        self.advance(n);
    }

    fn call(file: &dyn DiskFile, pieces: &mut [Self], offset: u64) -> io::Result<usize> {
        file.write_at(pieces, offset)
    }
}

impl<'a> ReadRun<'a> {
    /// Adds memory for the bytes that follow.
    pub fn push(&mut self, bytes: &'a mut [u8]) {
        self.add(bytes.len(), IoSliceMut::new(bytes));
    }

    /// As [`push`](Self::push), in a chain.
    #[must_use]
    pub fn with(mut self, bytes: &'a mut [u8]) -> Self {
        self.push(bytes);
        self
    }
}

impl<'a> WriteRun<'a> {
    /// Adds the bytes that follow.
    pub fn push(&mut self, bytes: &'a [u8]) {
        self.add(bytes.len(), IoSlice::new(bytes));
    }

    /// As [`push`](Self::push), in a chain.
    #[must_use]
    pub fn with(mut self, bytes: &'a [u8]) -> Self {
        self.push(bytes);
        self
    }
}

impl<'a, B: Piece> Run<'a, B> {
    /// A run of no bytes yet that begins at `offset`.
    pub fn new(file: &'a dyn DiskFile, offset: u64) -> Self {
        Self {
            file,
            offset,
            pieces: SmallVec::new(),
            first: 0,
            asked: 0,
            done: 0,
            cut: false,
            stalls: 0,
            ended: None,
        }
    }

    /// Bytes asked for.
    pub fn asked(&self) -> usize {
        self.asked
    }

    /// How it ended, as [`into_result`](Self::into_result); `None` as long as no engine has had it.
    pub fn result(&self) -> Option<&io::Result<usize>> {
        self.ended.as_ref()
    }

    /// Whether it has ended and moved all that was asked for.
    pub fn is_whole(&self) -> bool {
        matches!(self.ended, Some(Ok(n)) if n == self.asked)
    }

    /// Its memory, piece by piece, as long as it moved piece by piece: an operation that stops within one, which is
    /// rare, takes the piece's beginning away. `None` then, and before it has ended.
    pub fn pieces(&self) -> Option<&[B]> {
        (self.ended.is_some() && !self.cut).then_some(&*self.pieces)
    }

    /// The bytes moved: all that were asked for or, when reading, as far as the file goes.
    ///
    /// # Errors
    /// The system's error, with its errno, whatever had been moved before; `WriteZero` where a write moved nothing;
    /// `NotConnected` if no engine has had the run.
    pub fn into_result(self) -> io::Result<usize> {
        self.ended
            .unwrap_or_else(|| Err(io::ErrorKind::NotConnected.into()))
    }

    /// That all bytes were moved.
    ///
    /// # Errors
    /// As [`into_result`](Self::into_result), and `UnexpectedEof` where the file ends before the run.
    pub fn into_whole(self) -> io::Result<()> {
        let asked = self.asked;
        match self.into_result()? {
            n if n == asked => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn add(&mut self, len: usize, piece: B) {
        if len > 0 {
            self.asked = self.asked.saturating_add(len);
            self.pieces.push(piece);
        }
    }

    pub(super) fn file(&self) -> &'a dyn DiskFile {
        self.file
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The pieces that the next operation is to move, at most [`MAX_PIECES`].
    pub(super) fn window(&mut self) -> &mut [B] {
        let end = self.pieces.len().min(self.first + MAX_PIECES);
        self.pieces.get_mut(self.first..end).unwrap_or_default()
    }

    /// Ends a run of no bytes.
    pub(super) fn end_if_empty(&mut self) {
        if self.pieces.is_empty() && self.ended.is_none() {
            self.ended = Some(Ok(0));
        }
    }

    /// Takes the outcome of one operation over the [`window`](Self::window).
    pub(super) fn settle(&mut self, moved: io::Result<usize>) {
        match moved {
            Ok(0) if B::READS => self.ended = Some(Ok(self.done)),
            Ok(0) => self.ended = Some(Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => self.advance(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.stalls < MAX_STALLS => {
                self.stalls += 1;
            }
            // a direct read that stopped within a sector had come to the end of the file, and cannot go on from there
            Err(e) if e.raw_os_error() == Some(EINVAL) && B::READS && self.stopped_within_a_sector() => {
                self.ended = Some(Ok(self.done));
            }
            Err(e) => self.ended = Some(Err(e)),
        }
    }

    fn stopped_within_a_sector(&self) -> bool {
        self.done > 0
            && !self.offset.is_multiple_of(SECTOR)
            && (self.offset - self.done as u64).is_multiple_of(SECTOR)
    }

    fn advance(&mut self, mut n: usize) {
        self.stalls = 0;
        while n > 0
            && let Some(piece) = self.pieces.get_mut(self.first)
        {
            let step = n.min(piece.len());
            match step == piece.len() {
                true => self.first += 1,
                false => {
                    piece.skip(step);
                    self.cut = true;
                }
            }
            n -= step;
            self.done += step;
            self.offset = self.offset.saturating_add(step as u64);
        }
        if self.first == self.pieces.len() {
            self.ended = Some(Ok(self.done));
        }
    }

    /// Goes on until the run has ended, one call after another.
    pub(super) fn call(&mut self) {
        self.end_if_empty();
        while !self.has_ended() {
            let (file, offset) = (self.file, self.offset);
            let moved = B::call(file, self.window(), offset);
            self.settle(moved);
        }
    }
}

impl<B> fmt::Debug for Run<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("pieces", &self.pieces.len())
            .field("asked", &self.asked)
            .field("done", &self.done)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
