//! Runs a target without a fuzzer: on its corpus, and on pseudorandom mutations of it.

use std::fs;
use std::path::Path;

/// Runs `target` on every file of `corpus/name`, then on `mutations` mutated files, which are the
/// same in every run.
///
/// # Panics
/// If the corpus is missing or empty, or if the target panics; prints the input on which it does.
pub fn replay(name: &str, target: impl Fn(&[u8]), mutations: u32) {
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "no corpus for {name}");
    for input in &corpus {
        run(&target, input);
    }
    let mut random = Random(0x5eed);
    for _ in 0..mutations {
        run(&target, &mutate(&corpus, &mut random));
    }
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read the folder of the corpus").path()).collect();
    files.sort();
    files.iter().map(|path| fs::read(path).expect("read a file of the corpus")).collect()
}

fn run(target: impl Fn(&[u8]), input: &[u8]) {
    let _print = PrintOnPanic(input);
    target(input);
}

/// Prints the input if the target panics.
struct PrintOnPanic<'a>(&'a [u8]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("input: {hex}");
        }
    }
}

/// Returns a file of the corpus with one to four changes.
fn mutate(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 => input.truncate(at),
            1 => input.splice(at.., corpus[random.below(corpus.len())].iter().copied().skip(at)).for_each(drop),
            2 => input.insert(at, random.byte()),
            3 => input.extend_from_within(at..),
            4 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.byte()),
            _ => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    input
}

/// A generator (xorshift) with the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `limit`; 0 if `limit` is 0.
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % (limit.max(1) as u64)) as usize
    }

    fn byte(&mut self) -> u8 {
        // Zero, all ones and a small length are often limits, which find more bugs.
        match self.below(4) {
            0 => 0,
            1 => 0xff,
            2 => 4,
            _ => self.next() as u8,
        }
    }
}
