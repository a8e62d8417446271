//! libFuzzer entry point of [`roxe_fuzz::peer_request()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::peer_request(data));
