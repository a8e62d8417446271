//! libFuzzer entry point of [`roxe_fuzz::qp_pair()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::qp_pair(data));
