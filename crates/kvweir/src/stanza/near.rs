//! The name that was meant.

/// The one of `names` nearest to `name`, if one is near enough to be meant. Letter case and dashes do not count.
///
/// ```
/// use kvweir::stanza::nearest;
/// assert_eq!(nearest("KvweirTeir", ["KvweirTier", "KvweirFsTier"]), Some("KvweirTier"));
/// assert_eq!(nearest("max_inflight", ["max_bytes", "max_inflight_bytes"]), Some("max_inflight_bytes"));
/// assert_eq!(nearest("temperature", ["max_bytes", "layout"]), None);
/// ```
pub fn nearest<'a>(name: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // what is longer than every name is a slip for none of them
    if name.len() > 128 {
        return None;
    }
    let plain = |s: &str| s.replace('-', "_").to_lowercase();
    let name = plain(name);
    let begun = |other: &str| {
        let shorter = name.len().min(other.len());
        shorter >= 4 && (other.starts_with(&name) || name.starts_with(other))
    };
    let best = names
        .into_iter()
        .map(|n| {
            let other = plain(n);
            (distance(&name, &other), !begun(&other), n)
        })
        .filter(|&(far, not_begun, n)| {
            far <= 1 + name.chars().count().min(n.chars().count()) / 4 || !not_begun
        })
        .min_by_key(|&(far, not_begun, _)| (far, not_begun))?;
    Some(best.2)
}

/// Levenshtein's distance: insertions, deletions and replacements of characters that turn `a` into `b`.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (y, pair) in b.iter().zip(row.windows(2)) {
            if let ([diagonal, above], Some(&left)) = (pair, next.last()) {
                next.push((above + 1).min(left + 1).min(diagonal + usize::from(x != *y)));
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
