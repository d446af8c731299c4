use std::io::{Cursor, Write as _};

use proptest::prelude::*;

use super::*;

const GOOD: &str = r#"{"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]}"#;

fn read(bytes: impl Into<Vec<u8>>, bad: BadLines) -> (Vec<Request>, Option<String>, Notes) {
    let mut reader = TraceReader::new(Cursor::new(bytes.into()), "t.jsonl", bad).unwrap();
    let (mut requests, mut error) = (Vec::new(), None);
    for item in reader.by_ref() {
        match item {
            Ok(r) => requests.push(r),
            Err(e) => error = Some(e.to_string()),
        }
    }
    (requests, error, reader.notes())
}

#[test]
fn good_lines_blank_lines_extra_fields_and_a_missing_last_newline() {
    let text = format!("{GOOD}\r\n\n  \n{}", GOOD.replace('}', r#", "type": "x"}"#));
    let (requests, error, _) = read(text, BadLines::Refuse);
    assert_eq!((requests.len(), error), (2, None));
    assert_eq!(
        requests[0],
        Request {
            at: Duration::from_millis(1500),
            input_tokens: 700,
            output_tokens: 5,
            blocks: vec![7, 8]
        }
    );
}

#[test]
fn each_fault_is_named_with_its_line() {
    let table = [
        (String::from("{\"timestamp\": 1,"), "EOF while parsing"),
        (String::from("[1]"), "not a JSON object"),
        (
            GOOD.replace("\"output_length\": 5, ", ""),
            "missing field `output_length`",
        ),
        (GOOD.replace("1500", "-3"), "`timestamp` is negative: -3"),
        (GOOD.replace("1500", "1e300"), "`timestamp` is out of range"),
        (GOOD.replace("700", "-700"), "`input_length` is negative: -700"),
        (
            GOOD.replace("700", "7.5"),
            "`input_length` is not a whole number: 7.5",
        ),
        (GOOD.replace("[7, 8]", "[]"), "`hash_ids` is empty"),
        (GOOD.replace("[7, 8]", "[7, -8]"), "expected u64"),
    ];
    for (line, why) in table {
        let (requests, error, _) = read(format!("{GOOD}\n\n{line}\n{GOOD}\n"), BadLines::Refuse);
        let error = error.unwrap();
        assert!(
            error.starts_with("t.jsonl line 3: ") && error.contains(why),
            "{error} should say {why}"
        );
        assert_eq!(requests.len(), 1, "the reader ends at the fault");
        let (requests, error, notes) = read(format!("{GOOD}\n\n{line}\n{GOOD}\n"), BadLines::Skip);
        assert_eq!((requests.len(), error, notes.skipped()), (2, None, 1));
        assert!(notes.first_skipped().unwrap().contains(why));
    }
}

#[test]
fn invalid_utf8_and_overlong_lines() {
    let mut bytes = GOOD.as_bytes().to_vec();
    bytes.extend(b"\n{\"a\xff\":1}\n");
    let (_, error, _) = read(bytes, BadLines::Refuse);
    assert_eq!(error.unwrap(), "t.jsonl line 2: not UTF-8 at byte 4");

    let mut bytes = vec![b' '; LINE_MAX + 1];
    bytes.push(b'\n');
    bytes.extend(GOOD.as_bytes());
    let (_, error, _) = read(bytes.clone(), BadLines::Refuse);
    assert_eq!(error.unwrap(), "t.jsonl line 1: longer than 16 MiB");
    let (requests, error, notes) = read(bytes, BadLines::Skip);
    assert_eq!((requests.len(), error, notes.skipped()), (1, None, 1));
}

#[test]
fn disorder_is_noted_not_refused() {
    let (requests, error, notes) = read(
        format!("{GOOD}\n{}\n", GOOD.replace("1500", "1")),
        BadLines::Refuse,
    );
    assert_eq!((requests.len(), error, notes.out_of_order()), (2, None, 1));
}

/// Fifty lines in each format that is read.
fn compressed() -> Vec<(&'static str, Vec<u8>)> {
    let text = format!("{GOOD}\n").repeat(50);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    let options = lzma_rust2::XzOptions::with_preset(1);
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    xz.write_all(text.as_bytes()).unwrap();
    let fastest = ruzstd::encoding::CompressionLevel::Fastest;
    vec![
        ("gzip", gz.finish().unwrap()),
        ("xz", xz.finish().unwrap()),
        (
            "zstd",
            ruzstd::encoding::compress_to_vec(text.as_bytes(), fastest),
        ),
    ]
}

/// zstd and xz were "not UTF-8".
#[test]
fn formats_are_known_by_their_first_bytes_and_a_cut_or_changed_one_is_an_error_that_skipping_does_not_hide() {
    for (format, bytes) in compressed() {
        assert_eq!(read(bytes.clone(), BadLines::Refuse).0.len(), 50, "{format}");
        let twice = [bytes.clone(), bytes.clone()].concat();
        assert_eq!(
            read(twice, BadLines::Refuse).0.len(),
            100,
            "{format}: members are joined"
        );
        let cut = bytes[..bytes.len() / 2].to_vec();
        let error = read(cut, BadLines::Skip).1.unwrap_or_default();
        assert!(error.contains("cannot be read"), "{format}: {error}");
        let mut wrong = bytes.clone();
        let at = wrong.len() - if format == "xz" { 40 } else { 3 };
        wrong[at] ^= 0x10;
        let error = read(wrong, BadLines::Skip).1.unwrap_or_default();
        assert!(error.contains("cannot be read"), "{format}: {error}");
    }
}

#[test]
fn a_frame_of_zstd_that_is_to_be_skipped_is() {
    let (_, frame) = compressed().pop().unwrap();
    let skip = [&[0x53, 0x2a, 0x4d, 0x18, 5, 0, 0, 0][..], b"12345"].concat();
    let bytes = [skip.clone(), frame.clone(), skip, frame].concat();
    let (requests, error, _) = read(bytes, BadLines::Refuse);
    assert_eq!((requests.len(), error), (100, None));
}

#[test]
fn other_formats_are_named() {
    for (head, name) in [
        (&b"BZh91AY&SY"[..], "bzip2"),
        (b"PK\x03\x04....", "zip"),
        (b"PAR1....", "Parquet"),
    ] {
        let opened = TraceReader::new(Cursor::new(head.to_vec()), "t", BadLines::Skip);
        let error = opened.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(
            error.contains(name) && error.contains("zstd and xz are read"),
            "{error}"
        );
    }
}

/// A header may ask for gigabytes; what compresses nothing is refused before they are taken.
#[test]
fn changed_bytes_of_compressed_traces_are_survived() {
    for (format, bytes) in compressed() {
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= bit;
                let opened = TraceReader::new(Cursor::new(changed), format, BadLines::Skip);
                let _ = opened.map(|r| r.take(1000).count());
            }
        }
    }
}

#[test]
fn real_traces_if_present() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let path = folder.join("agent-sessions.jsonl.gz");
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return;
    }
    let reader = TraceReader::open(&path, BadLines::Refuse).unwrap();
    assert_eq!(
        reader
            .map(|r| r.unwrap().blocks.len())
            .fold((0, 0), |(n, b), l| (n + 1, b + l)),
        (742, 1_167_549)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400), skip: bool) {
        read(bytes, if skip { BadLines::Skip } else { BadLines::Refuse });
    }

    #[test]
    fn mutated_lines_never_disturb_their_neighbours(at in 0..GOOD.len(), byte: u8, cut in 0..GOOD.len()) {
        let mut line = GOOD.as_bytes().to_vec();
        line[at] = byte;
        line.truncate(cut);
        let bytes = [GOOD.as_bytes(), b"\n", &line, b"\n", GOOD.as_bytes()].concat();
        let (requests, error, notes) = read(bytes, BadLines::Skip);
        prop_assert_eq!(error, None);
        prop_assert!(requests.len() as u64 + notes.skipped() >= 2);
        prop_assert_eq!(&requests[0], &requests[requests.len() - 1]);
    }
}

#[test]
fn a_fuzzed_trace_is_read_or_refused_without_panic() {
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(format!("{GOOD}\n{GOOD}\n").as_bytes()).unwrap();
    let samples = [
        GOOD.as_bytes().to_vec(),
        format!("{GOOD}\n\n{GOOD}\n").into_bytes(),
        gz.finish().unwrap(),
    ];
    kvweir::fuzz::fuzz("trace", &samples, |bytes| {
        for bad in [BadLines::Refuse, BadLines::Skip] {
            let _ = read(bytes, bad);
        }
    });
}
