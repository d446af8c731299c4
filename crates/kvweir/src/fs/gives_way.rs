//! An engine without a bound gives way to those who have one.

use crate::{
    fs::shared::Shared,
    root::around::{bound_above, bound_here},
    sync::atomic::Ordering,
};

impl Shared {
    /// Whether a root that has no bound for us has one by now, or one above it: then nothing more is stored. Looked at
    /// by workers before each block.
    pub(crate) fn gives_way(&self) -> bool {
        if self.root.bounded || self.gave_way.load(Ordering::Relaxed) {
            return !self.root.bounded;
        }
        let (disk, root) = (&self.root.disk, &self.root.path);
        let Some(why) = bound_here(disk, root).or_else(|| bound_above(disk, root, &self.above)) else {
            return false;
        };
        if !self.gave_way.swap(true, Ordering::Relaxed) {
            tracing::error!(
                tier = %self.name, "{why}; this one stores nothing more until it is opened again"
            );
        }
        true
    }
}
