//! Jobs on their way.

pub(crate) mod bounce;
pub(crate) mod progress;
pub(crate) mod watchdog;
