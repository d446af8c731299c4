//! What a block with a file of its own takes of the bound while it is written.

use crate::{io::round_up, root::trailer::TRAILER_BYTES};

/// File system blocks reserved for each write beside the file itself: directories made or grown (at most four) and
/// extent blocks of a fragmented file.
const SLACK_BLOCKS: u64 = 8;

/// Bytes to reserve before writing one block of `block_len` bytes.
pub(crate) fn write_cost(block_len: usize, fs_block: u64) -> u64 {
    round_up((block_len + TRAILER_BYTES) as u64, fs_block) + SLACK_BLOCKS * fs_block
}

/// Bytes of the file of a block of `block_len` bytes.
pub(crate) fn file_len(block_len: usize) -> u64 {
    (block_len + TRAILER_BYTES) as u64
}
