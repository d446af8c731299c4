//! Exceptions that mirror `ErrorKind`, below one base class.

use kvweir::ErrorKind;
use pyo3::{create_exception, exceptions::PyException, prelude::*};

create_exception!(_kvweir, KvweirError, PyException, "Base of all errors of kvweir.");
create_exception!(
    _kvweir,
    BusyError,
    KvweirError,
    "Retry later: somebody else holds what was asked for."
);
create_exception!(
    _kvweir,
    FullError,
    KvweirError,
    "No space within the bound or on the device."
);
create_exception!(
    _kvweir,
    UnavailableError,
    KvweirError,
    "The tier or device does not work now."
);
create_exception!(
    _kvweir,
    CorruptError,
    KvweirError,
    "Bytes are provably not what was stored."
);
create_exception!(
    _kvweir,
    InvalidError,
    KvweirError,
    "The call or a setting is wrong."
);
create_exception!(_kvweir, ClosedError, KvweirError, "The object was shut down.");

/// The exception of an error.
#[expect(clippy::needless_pass_by_value, reason = "used as a mapping function")]
pub(crate) fn raise(e: kvweir::Error) -> PyErr {
    let text = e.to_string();
    match e.kind() {
        ErrorKind::Busy => BusyError::new_err(text),
        ErrorKind::Full => FullError::new_err(text),
        ErrorKind::Unavailable => UnavailableError::new_err(text),
        ErrorKind::Corrupt => CorruptError::new_err(text),
        ErrorKind::Invalid => InvalidError::new_err(text),
        ErrorKind::Closed => ClosedError::new_err(text),
        _ => KvweirError::new_err(text),
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    m.add("KvweirError", py.get_type::<KvweirError>())?;
    m.add("BusyError", py.get_type::<BusyError>())?;
    m.add("FullError", py.get_type::<FullError>())?;
    m.add("UnavailableError", py.get_type::<UnavailableError>())?;
    m.add("CorruptError", py.get_type::<CorruptError>())?;
    m.add("InvalidError", py.get_type::<InvalidError>())?;
    m.add("ClosedError", py.get_type::<ClosedError>())
}
