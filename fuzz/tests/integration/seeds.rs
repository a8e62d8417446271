//! The corpora hold what the captures offer.

use roxe_fuzz::seeds;
use std::fs;
use std::path::Path;

/// `ROXE_WRITE_SEEDS=1 cargo test -p roxe-fuzz --test integration seeds` writes them anew.
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
