//! What the file system gives out space in: everything below a root takes a multiple of it.

use bytesize::ByteSize;

use super::Check;
use crate::{admin::Admin, fs::settings::min_bound_in};

/// A block length to say the smallest bound for.
const SMALL_BLOCK: usize = 16 << 10;

impl Admin {
    /// Measures it with a file without a name.
    pub(super) fn unit(&self) -> Check {
        let what = "allocation unit";
        let told = match self.disk.space(&self.root) {
            Ok(s) => s.block,
            Err(e) => return Check::warn(what, e.to_string(), "run it as the engine's user"),
        };
        match self.disk.unit(&self.root) {
            Ok(unit) if unit <= told => Check::ok(what, format!("{} measured", ByteSize::b(told))),
            Ok(unit) => Check::warn(
                what,
                format!(
                    "{} measured, though the file system says {}: each block, extent, directory and journal takes a \
                     multiple of it",
                    ByteSize::b(unit),
                    ByteSize::b(told)
                ),
                format!(
                    "max_bytes must be at least {} here for blocks of {}; a file system without clusters (bigalloc) or \
                     huge pages (huge=) holds more blocks in the same bound",
                    ByteSize::b(min_bound_in(SMALL_BLOCK, unit)),
                    ByteSize::b(SMALL_BLOCK as u64)
                ),
            ),
            Err(e) => Check::warn(
                what,
                format!(
                    "{} by its own account; it could not be measured: {e}",
                    ByteSize::b(told)
                ),
                "run it as the engine's user, with some bytes free",
            ),
        }
    }
}
