//! Compressed traces, known by their first bytes and not by their names: gzip, zstd and xz, one member or several
//! in a row. Memory is bounded, whatever a header asks for.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Bytes enough to tell every known format.
const HEAD: usize = 6;
const BUFFER: usize = 1 << 16;
/// The most that a zstd window or an xz dictionary may take: `zstd --long=27` and `xz -9` need half of it at most.
const MEMORY: u32 = 256 << 20;

/// What a stream begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Plain,
    Gzip,
    Zstd,
    Xz,
    /// One that is known and not supported.
    Other(&'static str),
}

impl Format {
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            // a frame, or a skippable one before it
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            [b'B', b'Z', b'h', b'1'..=b'9', ..] => Self::Other("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Other("lz4"),
            [b'P', b'K', 3, 4, ..] => Self::Other("zip"),
            [b'7', b'z', 0xbc, 0xaf, ..] => Self::Other("7z"),
            [b'P', b'A', b'R', b'1', ..] => Self::Other("Parquet"),
            _ => Self::Plain,
        }
    }
}

/// The text of `raw`, which may be compressed.
pub(super) fn unpack(mut raw: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut head = [0; HEAD];
    let mut filled = 0;
    while let Some(rest) = head.get_mut(filled..).filter(|r| !r.is_empty()) {
        match raw.read(rest) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let format = Format::of(head.get(..filled).unwrap_or_default());
    let whole = BufReader::with_capacity(BUFFER, io::Cursor::new(head).take(filled as u64).chain(raw));
    Ok(match format {
        Format::Plain => Box::new(whole),
        Format::Gzip => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole))),
        Format::Zstd => Box::new(BufReader::with_capacity(BUFFER, Zstd::new(whole))),
        Format::Xz => {
            let xz = XzReader::new_mem_limit(whole, true, MEMORY >> 10);
            Box::new(BufReader::with_capacity(BUFFER, xz))
        }
        Format::Other(name) => {
            let message = format!("it is a {name} file: plain, gzip, zstd and xz are read");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    })
}

/// Frames of zstd, each with its checksum where it has one.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(u64::from(MEMORY));
        Self {
            source,
            decoder,
            inside: false,
        }
    }

    /// Begins the next frame; `false`: there is none.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            match self.source.fill_buf() {
                Ok([]) => return Ok(false),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = (&mut self.source).take(u64::from(length));
                    io::copy(&mut { skipped }, &mut io::sink())?;
                }
                Err(e) => return Err(bad(e)),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.inside && !self.begin()? {
                return Ok(0);
            }
            self.inside = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(bad)?;
            }
            let n = self.decoder.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            let told = self.decoder.get_checksum_from_data();
            if told.is_some() && told != self.decoder.get_calculated_checksum() {
                return Err(bad("the checksum of a frame is wrong"));
            }
            self.inside = false;
        }
    }
}

fn bad(e: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}
