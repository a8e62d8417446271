//! libFuzzer entry point of [`roxe_fuzz::packet()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::packet(data));
