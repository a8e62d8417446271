//! libFuzzer's door to [`roxe_fuzz::dissect()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::dissect(data));
