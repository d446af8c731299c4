use super::*;
use crate::summary::{self, Sample};

fn fake() -> Timeline {
    let names = vec![String::from("primary"), String::from("fs <&>")];
    let mut t = Timeline::new(names, Some(256 << 20), 0.010, 0.002);
    for i in 0..400_u64 {
        let x = i as f64 / 400.0;
        let wave = (x * 40.0).sin() * 0.5 + 0.5;
        t.push(Sample {
            t_s: x * 4.2,
            requests: i * 3 / 2,
            hit_rate: 0.88 * (1.0 - (-6.0 * x).exp()),
            tier_hit_rates: vec![0.65 * (1.0 - (-8.0 * x).exp()), 0.23 * (1.0 - (-4.0 * x).exp())],
            bytes_resident: ((300.0 * x).min(255.0) * f64::from(1 << 20)) as u64,
            store_p50_us: Some(90.0 + 40.0 * wave),
            store_p99_us: Some(400.0 + 3_000.0 * wave * x),
            load_p50_us: (i > 40).then_some(60.0 + 10.0 * wave),
            load_p99_us: (i > 40).then_some(200.0 + 300.0 * wave),
            ema_s_per_mib: (i > 10).then_some(0.001 + 0.012 * (x * 3.1).sin().powi(4)),
            dropped_blocks: (x * 3.0).exp2() as u64 * 7,
        });
    }
    t
}

#[test]
fn self_contained_and_escaped() {
    let mut summary = summary::tests::sample();
    summary.tiers[0].name = String::from("<script>alert('x')</script>");
    let html = render(&summary, &fake(), "root = \"<b>\"").unwrap();
    assert_eq!(html.matches("<svg").count(), 5);
    assert!(!html.contains("<script") && !html.contains("<b>") && html.contains("fs &lt;&amp;&gt;"));
    for outside in ["src=", "href=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.is_ascii());
    if let Some(path) = std::env::var_os("KVWEIR_TEST_REPORT") {
        write(Path::new(&path), &html).unwrap();
    }
}

#[test]
fn a_run_without_samples_has_a_report_too() {
    let html = render(&Summary::default(), &Timeline::default(), "").unwrap();
    assert!(html.contains("too short for plots") && !html.contains("<svg"));
}

#[test]
fn written_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.html");
    fs::write(&path, "old").unwrap();
    write(&path, "new").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(write(&dir.path().join("missing/r.html"), "x").is_err());
}

#[test]
fn a_link_or_a_pipe_is_written_into_and_not_replaced() {
    // once `--report /dev/null` of root left a file where the device had been
    let dir = tempfile::tempdir().unwrap();
    let (file, link, pipe) = (dir.path().join("f"), dir.path().join("l"), dir.path().join("p"));
    std::os::unix::fs::symlink("f", &link).unwrap();
    assert!(check(&link).is_ok());
    write(&link, "new").unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    assert!(check(&pipe).is_ok());
    let read = std::thread::Builder::new().name("reader".into()).spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    write(&pipe, "new").unwrap();
    assert!(!pipe.is_file());
    assert_eq!(read.unwrap().join().unwrap(), "new");
}
