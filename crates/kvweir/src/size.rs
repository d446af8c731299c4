//! Sizes as people write them.

use bytesize::Unit;

/// Reads a size in bytes: a whole number, or a number with a unit. Never saturates, never rounds to nothing.
///
/// ```
/// assert_eq!(kvweir::size::parse("1.5GiB"), Ok(1_610_612_736));
/// assert!(kvweir::size::parse("-1").is_err());
/// ```
///
/// # Errors
/// What is wrong, as the end of a sentence whose subject is the text.
pub fn parse(text: &str) -> Result<u64, String> {
    const FORMS: &str = "is not a size: write 65536, 64KiB, 1.5GiB or 500MB";
    let text = text.trim();
    if text.starts_with('-') {
        return Err(String::from("is negative"));
    }
    let digits = text.len()
        - text
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            .len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start();
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(String::from(FORMS));
    }
    let factor = match unit {
        "" if number.contains('.') => return Err(String::from("is a fraction without a unit")),
        "" => 1,
        _ => unit.parse::<Unit>().map_err(|_e| String::from(FORMS))? * 1_u64,
    };
    let bytes = match number.parse::<u64>() {
        Ok(n) => n.checked_mul(factor),
        Err(_) if !number.contains('.') => None,
        Err(_) => {
            let bytes = number.parse::<f64>().map_err(|_e| String::from(FORMS))? * factor as f64;
            (bytes < 2_f64.powi(64)).then_some(bytes as u64)
        }
    };
    match bytes {
        Some(0) if number.contains(|c: char| c.is_ascii_digit() && c != '0') => {
            Err(String::from("is less than one byte"))
        }
        Some(bytes) => Ok(bytes),
        None => Err(String::from("is too large: sizes end at 2^64 - 1 bytes")),
    }
}

/// Writes a size so that [`parse`] reads the same number back.
pub fn show(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_exactly_or_refused() {
        for (text, bytes) in [
            ("65536", 65536),
            ("64KiB", 65536),
            (" 2 MiB ", 2 << 20),
            ("500MB", 500_000_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "x",
            "-1",
            "1.5",
            "1e3",
            "12 parsecs",
            "99999999999TiB",
            "18446744073709551616",
            "0.0001KB",
            "NaN",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        for bytes in [0, 1, 1000, 65536, 3 << 30, u64::MAX] {
            assert_eq!(parse(&show(bytes)), Ok(bytes));
        }
    }
}
