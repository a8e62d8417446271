//! libFuzzer entry point of [`roxe_fuzz::dissect()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::dissect(data));
