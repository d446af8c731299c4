//! SIGINT and SIGTERM: the first asks the run to end cleanly, the second ends the process at once.

use std::{
    io,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};

/// Exit code after an interrupt, as shells know it.
pub(crate) const EXIT: u8 = 130;

/// Starts listening; the flag is set by the first signal.
pub(crate) fn listen() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: a second signal finds the flag set and exits.
        flag::register_conditional_shutdown(signal, i32::from(EXIT), Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
