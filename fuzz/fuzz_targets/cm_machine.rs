//! libFuzzer entry point of [`roxe_fuzz::cm_machine()`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| roxe_fuzz::cm_machine(data));
