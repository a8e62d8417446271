//! Checks that the corpora contain every seed, and not too many inputs that the fuzzer found.

use roxe_fuzz::seeds;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// `ROXE_WRITE_SEEDS=1 cargo test -p roxe-fuzz --test integration seeds` rewrites the seeds.
#[test]
fn every_opcode_of_the_captures_is_in_the_corpora() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, name, content) in seeds() {
        let file = corpus.join(target).join(&name);
        if std::env::var_os("ROXE_WRITE_SEEDS").is_some() {
            fs::write(&file, &content).expect("write the corpus");
        }
        assert!(fs::read(&file).is_ok_and(|kept| kept == content), "{} is not the captured packet", file.display());
    }
}

/// Maximum number of bytes that `fuzz/run --keep` keeps for a target.
const MAX_FOUND: u64 = 8192;

#[test]
fn found_inputs_stay_small() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = BTreeMap::new();
    for target in fs::read_dir(&corpus).expect("the corpora") {
        let target = target.expect("an entry").path();
        for input in fs::read_dir(&target).expect("a corpus") {
            let input = input.expect("an entry");
            if input.file_name().to_string_lossy().starts_with("found-") {
                *bytes.entry(target.clone()).or_insert(0) += input.metadata().expect("its size").len();
            }
        }
    }
    assert!(!bytes.is_empty(), "fuzz/run --keep has kept inputs");
    for (target, bytes) in bytes {
        assert!(bytes <= MAX_FOUND, "{}: {bytes} bytes", target.display());
    }
}
