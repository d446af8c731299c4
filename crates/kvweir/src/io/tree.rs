//! What a file system takes for itself to keep track of a file's blocks, which `st_blocks` counts and which it takes
//! when blocks are allocated: with delayed allocation long after a write.

use super::round_up;

/// Runs of a file that its inode keeps track of, at least: as in ext4.
const RUNS_IN_INODE: u64 = 4;
/// Runs that one block of a tree keeps track of, at most: ext4 keeps 340 in 4096 bytes, XFS 254.
const RUNS_A_BLOCK: u64 = 250;

/// Blocks of `fs_block` bytes needed to keep track of up to `runs` runs of a file.
pub(crate) fn tree_blocks(runs: u64, fs_block: u64) -> u64 {
    // 16 bytes per run, as in XFS, and a header
    let a_block = (fs_block / 16).saturating_sub(6).clamp(2, RUNS_A_BLOCK);
    match runs {
        0..=RUNS_IN_INODE => 0,
        n if n <= a_block => 1,
        n => 1 + n.div_ceil(a_block - 1),
    }
}

/// The most that a file of `len` bytes takes: every block of it a run of its own.
pub(crate) fn most_allocated(len: u64, fs_block: u64) -> u64 {
    let whole = round_up(len, fs_block);
    whole + tree_blocks(whole / fs_block.max(1), fs_block) * fs_block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_none_for_few_runs_and_holds_all_of_many() {
        assert_eq!([0, 4, 5, 250].map(|n| tree_blocks(n, 4096)), [0, 0, 1, 1]);
        for (fs_block, ext4) in [(1024, 84), (2048, 169), (4096, 340), (65536, 5460)] {
            for runs in 5..50_000 {
                let (mut level, mut need) = (runs, 0);
                while level > 4 {
                    level = u64::div_ceil(level, ext4);
                    need += level;
                }
                let have = tree_blocks(runs, fs_block);
                assert!(
                    have >= need,
                    "{runs} runs in blocks of {fs_block}: {have} of {need}"
                );
            }
        }
        assert_eq!(most_allocated(1, 4096), 4096);
        assert_eq!(most_allocated(4 * 4096 + 1, 4096), 6 * 4096);
    }
}
