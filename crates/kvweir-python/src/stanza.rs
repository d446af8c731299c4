//! Values of Python for the one checker of settings, and what it says.

use kvweir::stanza::{self, Checked, Given, Parsed, Reading, TierKind, Value};
use pyo3::{
    prelude::*,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};

/// How deep lists and dictionaries are looked into.
const DEPTH: usize = 16;

/// A text; what is no Unicode becomes what is.
fn text(s: &Bound<'_, PyString>) -> String {
    s.to_string_lossy().into_owned()
}

/// A value as the checker takes it.
fn given(value: &Bound<'_, PyAny>, depth: usize) -> Given {
    let shown = value
        .repr()
        .map_or_else(|_| value.get_type().to_string(), |r| text(&r));
    Given::new(plain(value, depth), shown)
}

fn plain(value: &Bound<'_, PyAny>, depth: usize) -> Value {
    if value.is_none() {
        return Value::Null;
    }
    if let Ok(b) = value.cast::<PyBool>() {
        return Value::Bool(b.is_true());
    }
    if value.is_instance_of::<PyInt>() {
        let far = if value.lt(0).unwrap_or(false) {
            i128::MIN
        } else {
            i128::MAX
        };
        return Value::Int(value.extract().unwrap_or(far));
    }
    if let Ok(x) = value.cast::<PyFloat>() {
        return Value::Real(x.value());
    }
    if let Ok(s) = value.cast::<PyString>() {
        return s
            .to_str()
            .map_or_else(|_| Value::Raw(text(s)), |good| Value::Text(good.to_owned()));
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Value::Other;
    };
    if let Ok(d) = value.cast::<PyDict>() {
        return Value::Map(fields(d, depth));
    }
    if let Ok(items) = value.cast::<PyList>() {
        return Value::List(items.iter().map(|v| given(&v, depth)).collect());
    }
    if let Ok(items) = value.cast::<PyTuple>() {
        return Value::List(items.iter().map(|v| given(&v, depth)).collect());
    }
    Value::Other
}

fn fields(d: &Bound<'_, PyDict>, depth: usize) -> Vec<(String, Given)> {
    d.iter()
        .map(|(name, value)| {
            let name = match name.cast::<PyString>() {
                Ok(s) => text(s),
                Err(_) => given(&name, 0).shown,
            };
            (name, given(&value, depth))
        })
        .collect()
}

/// The settings by name, and the mistakes, a line each.
fn told(py: Python<'_>, reading: Reading) -> PyResult<(Bound<'_, PyDict>, Vec<String>)> {
    let settings = PyDict::new(py);
    for (name, parsed) in reading.settings {
        match parsed {
            Parsed::Null => settings.set_item(name, py.None())?,
            Parsed::Bool(b) => settings.set_item(name, b)?,
            Parsed::Int(n) => settings.set_item(name, n)?,
            Parsed::Real(x) => settings.set_item(name, x)?,
            Parsed::Text(s) => settings.set_item(name, s)?,
        }
    }
    Ok((settings, lines(&reading.mistakes)))
}

fn lines(mistakes: &[stanza::Mistake]) -> Vec<String> {
    mistakes.iter().map(ToString::to_string).collect()
}

/// Reads a tier's settings; `layout`: the only one it has; `block_bytes`: the length of its blocks, without which
/// settings are looked at one by one.
#[pyfunction]
#[pyo3(signature = (written, layout=None, block_bytes=None))]
fn read_tier<'py>(
    py: Python<'py>,
    written: &Bound<'py, PyDict>,
    layout: Option<&str>,
    block_bytes: Option<usize>,
) -> PyResult<(Bound<'py, PyDict>, Vec<String>)> {
    let [any, files] = TierKind::ALL;
    let kind = if layout.is_some() { files } else { any };
    told(py, stanza::read_tier(&fields(written, DEPTH), kind, block_bytes))
}

/// Reads what `KvweirOffloadingSpec` takes of `kv_connector_extra_config`.
#[pyfunction]
fn read_manager<'py>(
    py: Python<'py>,
    written: &Bound<'py, PyDict>,
) -> PyResult<(Bound<'py, PyDict>, Vec<String>)> {
    told(py, stanza::read_manager(&fields(written, DEPTH)))
}

/// Reads the settings of `backpressure`; `drops`: its policy drops every store under pressure.
#[pyfunction]
#[pyo3(signature = (written, drops, locality=None))]
fn read_backpressure<'py>(
    py: Python<'py>,
    written: &Bound<'py, PyDict>,
    drops: bool,
    locality: Option<&str>,
) -> PyResult<(Bound<'py, PyDict>, Vec<String>)> {
    let locality = locality.and_then(|l| l.parse().ok()).unwrap_or_default();
    told(
        py,
        stanza::read_backpressure(&fields(written, DEPTH), locality, drops),
    )
}

/// Mistakes, notes, how many tiers are ours, where each of these stands and lies, and whether the manager is ours.
type Look = (Vec<String>, Vec<String>, usize, Vec<(String, String)>, bool);

fn looked(found: Checked) -> Look {
    (
        lines(&found.mistakes),
        found.notes,
        found.tiers,
        found.roots,
        found.manager,
    )
}

/// Checks a whole transfer configuration.
#[pyfunction]
fn check_stanza(config: &Bound<'_, PyAny>) -> Look {
    looked(stanza::check(&given(config, DEPTH), None))
}

/// Checks one tier of it, as vLLM hands it to the tier's class.
#[pyfunction]
fn check_tier(config: &Bound<'_, PyAny>) -> Look {
    looked(stanza::check_tier(&given(config, DEPTH)))
}

/// The one of `names` that is nearest to `name`, if one is near.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "how lists come from Python")]
fn nearest(name: &str, names: Vec<String>) -> Option<String> {
    stanza::nearest(name, names.iter().map(String::as_str)).map(str::to_owned)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(read_tier, m)?)?;
    m.add_function(wrap_pyfunction!(read_backpressure, m)?)?;
    m.add_function(wrap_pyfunction!(read_manager, m)?)?;
    m.add_function(wrap_pyfunction!(check_stanza, m)?)?;
    m.add_function(wrap_pyfunction!(check_tier, m)?)?;
    m.add_function(wrap_pyfunction!(nearest, m)?)
}
