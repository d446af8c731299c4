//! `kvweir._kvweir`: the engine for Python. No logic here: types in, types out, the interpreter's lock released in
//! everything that can be long, no panic let through.
//!
//! | file | what it holds |
//! |---|---|
//! | `tier/` | the file tier over a caller's memory |
//! | `manager/` | the tiering manager, whole |
//! | `ahead.rs` | lookups answered ahead |
//! | `paced.rs` | pacing of promotions, fed with what vLLM's calls tell |
//! | `stats.rs` | a tier's numbers as a dictionary |
//! | `keys.rs` | keys, rows and positions as Python gives them |
//! | `pressure.rs` | detector and drop policies |
//! | `stanza.rs` | settings for the one checker of them |
//! | `buffer.rs` | memory of Python as a region, and copies between addresses: the only `unsafe` |
//! | `errors.rs` | one exception class per error kind |
//! | `logs.rs` | log records, kept until Python asks for them |

mod ahead;
mod buffer;
mod errors;
mod keys;
mod logs;
mod manager;
mod paced;
mod pressure;
mod stanza;
mod stats;
mod tier;

use pyo3::prelude::*;

/// The native part of the package `kvweir`.
#[pymodule(gil_used = false)]
fn _kvweir(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(m)?;
    logs::register(m)?;
    pressure::register(m)?;
    stanza::register(m)?;
    tier::register(m)?;
    manager::register(m)?;
    buffer::register(m)
}
