//! Text into values: sizes, numbers, switches, words.

/// Reads a size.
pub(crate) use kvweir::size::{parse as size, show as show_size};

/// Reads a whole number.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    text.trim().parse::<u64>().map_err(|e| match e.kind() {
        std::num::IntErrorKind::PosOverflow => String::from("is too large"),
        _ => String::from("is not a whole number"),
    })
}

/// Reads a finite number.
pub(crate) fn real(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(v) if v.is_finite() => Ok(v),
        _ => Err(String::from("is not a number")),
    }
}

/// Reads a switch.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(String::from("is neither true nor false")),
    }
}

/// Reads whole numbers, all at least 1, separated by commas.
pub(crate) fn counts(text: &str) -> Result<Vec<usize>, String> {
    text.split(',')
        .map(|part| match usize::try_from(count(part)?) {
            Ok(0) => Err(String::from("holds a 0")),
            Ok(n) => Ok(n),
            Err(_) => Err(String::from("is too large")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes() {
        let good = [
            ("0", 0),
            ("65536", 65536),
            ("64KiB", 65536),
            ("64 kib", 65536),
            ("1.5GiB", 3 << 29),
            ("500MB", 500_000_000),
            ("18446744073709551615", u64::MAX),
            ("9007199254740993B", 9_007_199_254_740_993),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        let bad = [
            ("-1", "negative"),
            ("-64KiB", "negative"),
            ("NaN", "not a size"),
            ("inf", "not a size"),
            ("", "not a size"),
            ("KiB", "not a size"),
            (".", "not a size"),
            ("1.2.3MB", "not a size"),
            ("64 potatoes", "not a size"),
            ("64KiB extra", "not a size"),
            ("1e9", "not a size"),
            ("1.5", "fraction"),
            ("0.2B", "less than one byte"),
            ("18446744073709551616", "too large"),
            ("16777216TiB", "too large"),
            ("99999999.5EiB", "too large"),
        ];
        for (text, why) in bad {
            let e = size(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sizes_survive_the_round_trip(bytes: u64, shift in 0_u32..50) {
            let bytes = bytes >> shift << shift;
            prop_assert_eq!(size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC*") {
            let _ = (size(&text), count(&text), real(&text), switch(&text), counts(&text));
        }
    }
}
