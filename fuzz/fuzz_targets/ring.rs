//! libFuzzer entry point of [`roxe_fuzz::ring()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::ring(data));
