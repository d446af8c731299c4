//! Extents with faults planted: each is found, and nothing else; a repair takes away just those.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use crate::{
    admin::{Admin, Fault, Repaired, Verification, VerifyOptions},
    block::Key,
    fs::packed::format::{Header, RECORD_BYTES, Record, block_sum},
    namespace::{Identity, Namespace},
    root::names::{Location, Part, leaf_dir},
};

const LEN: usize = 4096;
const SLOTS: u32 = 6;
const EACH: u64 = 100;

/// The key of a block.
fn key(extent: u64, place: u32) -> Key {
    let mut bytes = extent.to_le_bytes().repeat(4);
    bytes.extend(place.to_le_bytes());
    Key::new(&bytes).unwrap()
}

/// An extent whose slots hold blocks but for the last one.
struct Made {
    header: Header,
    path: PathBuf,
    data: PathBuf,
}

impl Made {
    fn new(ns_dir: &Path, n: u64, namespace: [u8; 32], block_len: usize) -> Self {
        let header = Header {
            slots: SLOTS,
            slot_bytes: LEN as u32,
            block_len: block_len as u64,
            nonce: n,
            namespace,
            made_at: 1_800_000_000,
        };
        let at = Location::of_extent(Part::Table, n);
        let dir = leaf_dir(ns_dir, at.prefix, at.leaf);
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(at.file_name());
        let data = dir.join(Location::of_extent(Part::Data, n).file_name());
        let mut slots = vec![0; header.data_len() as usize];
        let mut bytes = vec![0; header.table_len() as usize];
        bytes[..RECORD_BYTES].copy_from_slice(&header.encode());
        for place in 0..SLOTS - 1 {
            let block = vec![n as u8 ^ place as u8; block_len];
            let to = header.slot_at(place) as usize;
            slots[to..to + block_len].copy_from_slice(&block);
            let record = Record {
                key: key(n, place),
                written_at: 1_800_000_000,
                sequence: n * 10 + u64::from(place),
                sum: block_sum(&block),
            };
            let mut out = [0; RECORD_BYTES];
            record.encode(n, place, &mut out);
            let to = Header::record_at(place) as usize;
            bytes[to..to + RECORD_BYTES].copy_from_slice(&out);
        }
        fs::write(&path, bytes).unwrap();
        fs::write(&data, slots).unwrap();
        Self { header, path, data }
    }
}

fn flip(path: &Path, at: u64) {
    let f = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut b = [0];
    f.read_exact_at(&mut b, at).unwrap();
    f.write_all_at(&[b[0] ^ 0x10], at).unwrap();
}

fn cut(path: &Path, len: u64) {
    fs::OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len)
        .unwrap();
}

fn records(path: &Path) -> usize {
    let bytes = fs::read(path).unwrap();
    let h = Header::decode(&bytes).unwrap();
    let is = |s: &u32| Record::decode(&bytes[Header::record_at(*s) as usize..], h.nonce, *s).is_some();
    (0..h.slots).filter(is).count()
}

/// What is wrong, in which file, at which slot.
type Planted = BTreeSet<(Fault, String, Option<u32>)>;

/// A root with a namespace, and the faults planted in its extents.
struct Field {
    _dir: tempfile::TempDir,
    root: PathBuf,
    ns: Namespace,
    planted: Planted,
}

impl Field {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let ns = Namespace::new(&Identity::default()).unwrap();
        fs::create_dir_all(root.join(ns.config_dir())).unwrap();
        fs::write(root.join(ns.config_dir()).join("config.json"), ns.config()).unwrap();
        Self {
            _dir: dir,
            root,
            ns,
            planted: Planted::new(),
        }
    }

    fn make(&self, n: u64) -> Made {
        Made::new(&self.root.join(self.ns.dir()), n, *self.ns.digest(), LEN)
    }

    fn note(&mut self, fault: Fault, path: &Path, slot: Option<u32>) {
        let path = path.strip_prefix(&self.root).unwrap().display().to_string();
        self.planted.insert((fault, path, slot));
    }

    /// One fault of each kind, no two of them of one number alike.
    fn plant(&mut self, n: u64) {
        let place = n as u32 % (SLOTS - 1);
        let header = self.make(n);
        let bytes = [0, 8, 10, 12, 16, 24, 32, 40, 72, 80, 119, 127];
        flip(&header.path, bytes[n as usize % bytes.len()]);
        self.note(Fault::DamagedHeader, &header.path, None);

        let record = self.make(EACH + n);
        let bytes = [0, 2, 4, 8, 16, 32, 60, 100, 120, 127];
        flip(
            &record.path,
            Header::record_at(place) + bytes[n as usize % bytes.len()],
        );
        self.note(Fault::DamagedRecord, &record.path, Some(place));

        let payload = self.make(2 * EACH + n);
        flip(&payload.data, payload.header.slot_at(place) + n * 37);
        self.note(Fault::DamagedPayload, &payload.path, Some(place));

        let other = Made::new(&self.root.join(self.ns.dir()), 4 * EACH + n, [7; 32], LEN);
        self.note(Fault::WrongNamespace, &other.path, None);
        let length = Made::new(
            &self.root.join(self.ns.dir()),
            5 * EACH + n,
            *self.ns.digest(),
            LEN - 64,
        );
        self.note(Fault::OtherSize, &length.path, None);
        let temp = header.path.with_extension(format!("bin.{n:016x}.kvweir"));
        fs::write(&temp, b"half").unwrap();
        self.note(Fault::LeftoverTemporary, &temp, None);
    }

    /// A file that is cut, and one that is gone.
    fn plant_missing_bytes(&mut self, n: u64) {
        let short = self.make(3 * EACH + n);
        let h = short.header;
        let (path, len) = match n % 5 {
            0 => (&short.path, 4096),
            1 => (&short.path, h.table_len() - 1),
            2 => (&short.data, 0),
            3 => (&short.data, h.slot_at(3) + 1),
            _ => (&short.data, h.data_len() - 1),
        };
        cut(path, len);
        self.note(Fault::TruncatedExtent, path, None);

        let half = self.make(9 * EACH + n);
        let (gone, stays) = match n % 2 {
            0 => (&half.path, &half.data),
            _ => (&half.data, &half.path),
        };
        fs::remove_file(gone).unwrap();
        self.note(Fault::HalfExtent, stays, None);
    }

    /// A healthy extent with the block of slot 1 in its last slot too, by an older record.
    fn make_with_a_superseded_block(&self, n: u64) {
        let made = self.make(n);
        let bytes = fs::read(&made.path).unwrap();
        let record = Record::decode(&bytes[Header::record_at(1) as usize..], n, 1).unwrap();
        let old = Record {
            sequence: 1,
            ..record
        };
        let mut moved = [0; RECORD_BYTES];
        old.encode(n, SLOTS - 1, &mut moved);
        let table = fs::OpenOptions::new().write(true).open(&made.path).unwrap();
        table.write_all_at(&moved, Header::record_at(SLOTS - 1)).unwrap();
        let data = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&made.data)
            .unwrap();
        let mut block = vec![0; LEN];
        data.read_exact_at(&mut block, made.header.slot_at(1)).unwrap();
        data.write_all_at(&block, made.header.slot_at(SLOTS - 1)).unwrap();
    }
}

/// Just what was planted is found.
fn assert_found(report: &Verification, planted: &Planted) {
    let found: Planted = report
        .findings
        .iter()
        .map(|f| (f.fault, f.path.clone(), f.slot))
        .collect();
    let none = Vec::<&(Fault, String, Option<u32>)>::new();
    assert_eq!(found.difference(planted).collect::<Vec<_>>(), none, "not planted");
    assert_eq!(planted.difference(&found).collect::<Vec<_>>(), none, "not found");
    assert_eq!((found.len(), report.findings.len()), (800, 800));
    assert!(report.faults.values().all(|&n| n == EACH), "{:?}", report.faults);
}

/// What a repair did is what it planned, and no more than is needed.
fn assert_repaired(plan: &Repaired, done: &Repaired) {
    assert!(done.done && done.failed.is_empty(), "{:?}", done.failed);
    assert_eq!(
        (done.files, done.records, done.kept),
        (plan.files, plan.records, plan.kept)
    );
    assert_eq!(
        (done.files.files, done.records, done.kept),
        (8 * EACH, 2 * EACH, EACH)
    );
}

#[test]
fn every_fault_planted_in_extents_is_found_and_nothing_else_and_repair_removes_just_those() {
    let mut field = Field::new();
    for n in 0..EACH {
        field.plant(n);
        field.plant_missing_bytes(n);
    }
    for n in 6 * EACH..8 * EACH {
        field.make(n);
    }
    field.make_with_a_superseded_block(8 * EACH);

    let admin = Admin::new(&field.root).unwrap();
    let report = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert_found(&report, &field.planted);
    let blocks = u64::from(SLOTS - 1);
    assert_eq!(report.good, EACH * (2 * blocks - 2) + (2 * EACH + 1) * blocks + 1);
    assert_eq!(
        (report.superseded, report.vanished, report.extents),
        (1, 0, 9 * EACH + 1)
    );
    assert_eq!(report.packed_blocks, report.good + EACH);

    let plan = admin.repair(&report, None).unwrap();
    let claim = admin.claim().unwrap();
    let done = admin.repair(&report, Some(&claim)).unwrap();
    assert_repaired(&plan, &done);
    drop(claim);
    let after = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(
        (after.good, after.findings.len() as u64),
        (report.good, EACH),
        "what is of another length stays"
    );
    for (fault, path, slot) in &field.planted {
        let path = field.root.join(path);
        match (fault, slot) {
            (_, Some(_)) => assert_eq!(records(&path), SLOTS as usize - 2),
            (Fault::OtherSize, _) => assert_eq!(records(&path), SLOTS as usize - 1),
            _ => assert!(!path.exists()),
        }
    }
}

#[test]
fn an_extent_of_a_later_version_is_told_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let ns = Namespace::new(&Identity::default()).unwrap();
    let made = Made::new(&dir.path().join(ns.dir()), 1, *ns.digest(), LEN);
    let mut bytes = fs::read(&made.path).unwrap();
    bytes[8] = 2;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    fs::write(&made.path, bytes).unwrap();
    let admin = Admin::new(dir.path()).unwrap();
    let r = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(
        r.findings.iter().map(|f| f.fault).collect::<Vec<_>>(),
        [Fault::NewerFormat]
    );
    let claim = admin.claim().unwrap();
    assert_eq!(admin.repair(&r, Some(&claim)).unwrap().kept, 1);
    assert!(made.path.exists());
}
