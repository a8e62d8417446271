//! RoCEv2 packets: bytes to values that can only be legal, and back.
#![no_std]
#![forbid(unsafe_code)]

pub mod net;
pub mod num;
