//! File names: the stock layout `<namespace>/<hhh>/<hh>_g<group>/<hash>.bin`, and for keys that it cannot express
//! (shorter than 8 bytes, or so long that the name would not fit) `<namespace>/<ddd>/<dd>_k/<digest>.bin` with the full
//! key in the trailer. The two files of an extent of packed blocks are `<namespace>/000/00_x/<number>.bin`. Names hold
//! hexadecimal only, so no key leads out of the root. Temporaries are the final name plus `.<16 hex>.kvweir`; nothing
//! else is ever swept.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use crate::{
    block::{Fingerprint, Key},
    namespace::hex,
};

/// The directory, below a bounded root, of ledger, member locks and journals.
pub(crate) const STATE_DIR: &str = ".kvweir";
/// What names a namespace's identity, in the directory of its configuration.
pub(crate) const CONFIG_FILE: &str = "config.json";
/// Namespaces below one root that can be told apart.
pub(crate) const MAX_NAMESPACES: u16 = 1 << 11;
/// Longest hash whose name and temporary still fit 255 bytes.
const MAX_STOCK_HASH: usize = 100;
/// Shortest hash that fills the two directory levels with room to spare.
const MIN_STOCK_HASH: usize = 4;
/// The end of a published file's name.
const BLOCK_SUFFIX: &str = ".bin";
/// The end of a temporary's name.
const TEMP_SUFFIX: &str = ".kvweir";

/// Which leaf directory: the first five hexadecimal digits of the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Prefix(pub(crate) u32);

impl Prefix {
    pub(crate) fn high(self) -> u32 {
        self.0 >> 8
    }

    pub(crate) fn low(self) -> u32 {
        self.0 & 0xff
    }
}

/// The kind of leaf directory: `_g<group>`, `_k` for keys kept in the trailer, or `_x` for extents of packed blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum DirKind {
    Group(u32),
    Keyed,
    Extent,
}

/// A namespace directory and kind of leaf: what all files of one class have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DirClass {
    pub(crate) namespace: u16,
    pub(crate) leaf: DirKind,
}

/// The files of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    /// Header and slot table.
    Table = 0,
    /// The slots.
    Data = 1,
}

/// Which file of which extent has this name.
pub(crate) fn extent_part(name: &str) -> Option<(Part, u64)> {
    let number = u128::from_str_radix(name.strip_suffix(BLOCK_SUFFIX)?, 16).ok()?;
    let part = match number >> 64 {
        0 => Part::Table,
        1 => Part::Data,
        _ => return None,
    };
    let at = Location::of_extent(part, number as u64);
    (at.file_name() == name).then_some((part, number as u64))
}

/// Where a file of ours lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    /// The number of its namespace.
    pub(crate) namespace: u16,
    pub(crate) prefix: Prefix,
    pub(crate) leaf: DirKind,
    pub(crate) stem: String,
}

impl Location {
    /// Where the file of `key` lies, in the first namespace.
    pub(crate) fn of(key: &Key) -> Self {
        if let Some((hash, group)) = stock_parts(key) {
            let group = group.iter().fold(0u32, |n, &b| n << 8 | u32::from(b));
            return Self::named(hex(hash), DirKind::Group(group));
        }
        let bytes = key.as_bytes();
        Self::named(format!("{:032x}", Fingerprint::of(bytes, 0).0), DirKind::Keyed)
    }

    fn named(stem: String, leaf: DirKind) -> Self {
        let prefix = stem
            .get(..5)
            .and_then(|s| u32::from_str_radix(s, 16).ok())
            .unwrap_or(0);
        Self {
            namespace: 0,
            prefix: Prefix(prefix),
            leaf,
            stem,
        }
    }

    /// Where a file of the extent numbered `nonce` lies: all of a namespace in one directory.
    pub(crate) fn of_extent(part: Part, nonce: u64) -> Self {
        let number = u128::from(part as u8) << 64 | u128::from(nonce);
        Self::named(format!("{number:032x}"), DirKind::Extent)
    }

    /// The same in the namespace with this number.
    pub(crate) fn below(self, namespace: u16) -> Self {
        Self { namespace, ..self }
    }

    /// Class and prefix.
    pub(crate) fn class(&self) -> (DirClass, Prefix) {
        let class = DirClass {
            namespace: self.namespace,
            leaf: self.leaf,
        };
        (class, self.prefix)
    }

    pub(crate) fn file_name(&self) -> String {
        format!("{}{BLOCK_SUFFIX}", self.stem)
    }
}

/// Hash and group of a key that the stock layout can express.
fn stock_parts(key: &Key) -> Option<(&[u8], &[u8; 4])> {
    key.as_bytes()
        .split_last_chunk::<4>()
        .filter(|(h, _)| (MIN_STOCK_HASH..=MAX_STOCK_HASH).contains(&h.len()))
}

/// The fingerprint of `key` in the namespace numbered `seed`: of the key itself where the file's name tells it, else
/// of the name.
#[inline]
pub(crate) fn fingerprint(key: &Key, seed: u64) -> Fingerprint {
    match stock_parts(key) {
        Some(_) => key.fingerprint(seed),
        None => Fingerprint::of(Location::of(key).file_name().as_bytes(), seed),
    }
}

/// The fingerprint that the name of a published file tells, in the namespace numbered `seed`.
pub(crate) fn name_fingerprint(name: &str, prefix: Prefix, leaf: DirKind, seed: u64) -> Option<Fingerprint> {
    match parse_file(name, prefix, leaf) {
        Parsed::Block(Some(key)) => Some(key.fingerprint(seed)),
        Parsed::Block(None) => Some(Fingerprint::of(name.as_bytes(), seed)),
        _ => None,
    }
}

/// `<namespace>/<hhh>`.
pub(crate) fn high_dir(namespace: &Path, high: u32) -> PathBuf {
    namespace.join(format!("{high:03x}"))
}

/// `<namespace>/<hhh>/<hh>_g<group>`.
pub(crate) fn leaf_dir(namespace: &Path, prefix: Prefix, leaf: DirKind) -> PathBuf {
    let mut name = format!("{:02x}_", prefix.low());
    let _ = match leaf {
        DirKind::Group(g) => write!(name, "g{g}"),
        DirKind::Keyed => write!(name, "k"),
        DirKind::Extent => write!(name, "x"),
    };
    let mut p = high_dir(namespace, prefix.high());
    p.push(name);
    p
}

/// The temporary of the `n`-th write of this process.
pub(crate) fn temp_name(file_name: &str, n: u64) -> String {
    format!("{file_name}.{n:016x}{TEMP_SUFFIX}")
}

/// The first number of a member's temporaries in one life: no other member and no earlier life has it.
pub(crate) fn first_temp(member: u32, incarnation: u32) -> u64 {
    u64::from(member & 0xff) << 56 | u64::from(incarnation & 0xff_ffff) << 32
}

/// The member that made a temporary.
pub(crate) fn temp_member(name: &str) -> Option<u32> {
    let (_, n) = name.strip_suffix(TEMP_SUFFIX)?.rsplit_once('.')?;
    u64::from_str_radix(n, 16).ok().map(|n| (n >> 56) as u32)
}

/// What a name in a leaf directory is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// A published block; the key where the name tells it.
    Block(Option<Key>),
    /// A temporary of ours.
    Temp,
    /// Not ours.
    Foreign,
}

/// Reads a file name found in the leaf directory `prefix`, `leaf`.
pub(crate) fn parse_file(name: &str, prefix: Prefix, leaf: DirKind) -> Parsed {
    let (is_temp, block) = match name.strip_suffix(TEMP_SUFFIX) {
        Some(rest) => match rest.rsplit_once('.') {
            Some((block, n)) if n.len() == 16 && is_hex(n) => (true, block),
            _ => return Parsed::Foreign,
        },
        None => (false, name),
    };
    let Some(stem) = block
        .strip_suffix(BLOCK_SUFFIX)
        .filter(|s| is_hex(s) && s.len() % 2 == 0)
    else {
        return Parsed::Foreign;
    };
    if stem.get(..5).and_then(|s| u32::from_str_radix(s, 16).ok()) != Some(prefix.0) {
        return Parsed::Foreign;
    }
    let len = stem.len() / 2;
    let key = match leaf {
        DirKind::Group(g) if (MIN_STOCK_HASH..=MAX_STOCK_HASH).contains(&len) => {
            let shifts = [24u32, 16, 8, 0];
            let bytes: Vec<u8> = unhex(stem).chain(shifts.map(|s| (g >> s) as u8)).collect();
            Key::new(&bytes).ok()
        }
        DirKind::Keyed | DirKind::Extent if len == 16 => None,
        _ => return Parsed::Foreign,
    };
    if is_temp { Parsed::Temp } else { Parsed::Block(key) }
}

/// Reads the name of a first-level directory.
pub(crate) fn parse_high(name: &str) -> Option<u32> {
    (name.len() == 3 && is_hex(name)).then(|| u32::from_str_radix(name, 16).ok())?
}

/// Reads the name of a leaf directory.
pub(crate) fn parse_leaf(name: &str) -> Option<(u32, DirKind)> {
    let (low, kind) = name.split_once('_')?;
    if low.len() != 2 || !is_hex(low) {
        return None;
    }
    let low = u32::from_str_radix(low, 16).ok()?;
    match kind {
        "k" => return Some((low, DirKind::Keyed)),
        "x" => return Some((low, DirKind::Extent)),
        _ => {}
    }
    let digits = kind.strip_prefix('g')?;
    let group: u32 = digits.parse().ok()?;
    // only the one spelling that we would write
    (group.to_string() == digits).then_some((low, DirKind::Group(group)))
}

/// Whether a directory below the root has the shape of a namespace: `<model>_<digest>_r<rank>`.
pub(crate) fn is_namespace(name: &str) -> bool {
    let Some((base, rank)) = name.rsplit_once("_r") else {
        return false;
    };
    let digits = !rank.is_empty() && rank.len() < 10 && rank.bytes().all(|b| b.is_ascii_digit());
    digits
        && base
            .rsplit_once('_')
            .is_some_and(|(_, d)| (d.len() == 12 || d.len() == 40) && is_hex(d))
}

fn is_hex(s: &str) -> bool {
    !s.is_empty()
        && s.bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn unhex(s: &str) -> impl Iterator<Item = u8> + '_ {
    s.as_bytes().chunks_exact(2).map(|pair| {
        pair.iter().fold(0u8, |n, &b| {
            n << 4
                | if b.is_ascii_digit() {
                    b - b'0'
                } else {
                    b - b'a' + 10
                }
        })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_vllm_key_gets_the_stock_path() {
        let mut k = (0u8..32).map(|i| i.wrapping_mul(17)).collect::<Vec<_>>();
        k.extend([0, 0, 0, 3]);
        let at = Location::of(&Key::new(&k).unwrap());
        let dir = leaf_dir(Path::new("/r/ns"), at.prefix, at.leaf);
        assert_eq!(dir, Path::new("/r/ns/001/12_g3"));
        assert!(at.file_name().starts_with("00112233") && at.file_name().len() == 68);
    }

    #[test]
    fn only_our_own_temporaries_are_recognised() {
        let (prefix, leaf) = (Prefix(0x00112), DirKind::Group(3));
        let ours = temp_name("0011223344.bin", 7);
        assert_eq!(parse_file(&ours, prefix, leaf), Parsed::Temp);
        for foreign in [
            "0011223344.bin_12.tmp",
            "0011223344.bin.7.kvweir",
            "0011223344.bin.000000000000000g.kvweir",
            "x.bin.0000000000000007.kvweir",
            "0011223344.0000000000000007.kvweir",
            "notes.txt",
            "0011223344.BIN",
            "00112233445.bin",
            "FF112233.bin",
            "",
            ".bin",
        ] {
            assert_eq!(parse_file(foreign, prefix, leaf), Parsed::Foreign, "{foreign}");
        }
        assert_eq!(
            parse_file(&ours, Prefix(0x00113), leaf),
            Parsed::Foreign,
            "in the wrong directory"
        );
    }

    #[test]
    fn the_files_of_an_extent_name_it() {
        for (part, nonce) in [(Part::Table, 0), (Part::Data, u64::MAX), (Part::Data, 7)] {
            let at = Location::of_extent(part, nonce);
            assert_eq!(
                (at.prefix, extent_part(&at.file_name())),
                (Prefix(0), Some((part, nonce)))
            );
            let dir = leaf_dir(Path::new("/r/ns"), at.prefix, at.leaf);
            assert_eq!(dir, Path::new("/r/ns/000/00_x"));
            assert_eq!(
                parse_file(&at.file_name(), at.prefix, at.leaf),
                Parsed::Block(None)
            );
        }
        assert_eq!(extent_part(&format!("{:032x}.bin", 2u128 << 64)), None);
        assert_eq!(extent_part("7.bin"), None);
    }

    #[test]
    fn namespaces_have_one_shape() {
        for (name, yes) in [
            ("m_0123456789ab_r0", true),
            ("org_m_0123456789ab_r12", true),
            ("m_0123456789ab", false),
            ("m_0123456789aB_r0", false),
            ("m_r0", false),
            ("_r", false),
            ("m_0123456789ab_r", false),
        ] {
            assert_eq!(is_namespace(name), yes, "{name}");
        }
    }

    proptest! {
        #[test]
        fn names_are_injective_short_and_parse_back(a in prop::collection::vec(any::<u8>(), 1..=255),
                                                    b in prop::collection::vec(any::<u8>(), 1..=255)) {
            let (ka, kb) = (Key::new(&a).unwrap(), Key::new(&b).unwrap());
            let (la, lb) = (Location::of(&ka), Location::of(&kb));
            prop_assert_eq!(la == lb, a == b);
            prop_assert!(temp_name(&la.file_name(), u64::MAX).len() <= 255);
            let dir = leaf_dir(Path::new(""), la.prefix, la.leaf);
            let mut parts = dir.iter().map(|c| c.to_str().unwrap());
            let high = parse_high(parts.next().unwrap()).unwrap();
            let (low, leaf) = parse_leaf(parts.next().unwrap()).unwrap();
            prop_assert_eq!((Prefix(high << 8 | low), leaf), (la.prefix, la.leaf));
            prop_assert_eq!(name_fingerprint(&la.file_name(), la.prefix, la.leaf, 9), Some(fingerprint(&ka, 9)));
            match parse_file(&la.file_name(), la.prefix, la.leaf) {
                Parsed::Block(Some(k)) => prop_assert_eq!(k, ka),
                Parsed::Block(None) => prop_assert_eq!(leaf, DirKind::Keyed),
                other => prop_assert!(false, "{:?}", other),
            }
        }

        #[test]
        fn any_name_is_parsed_without_panic(name in "\\PC{0,90}", prefix in 0u32..1 << 20) {
            let _ = parse_file(&name, Prefix(prefix), DirKind::Keyed);
            let _ = (parse_leaf(&name), parse_high(&name), is_namespace(&name));
        }
    }
}
