//! The program `roxe`, started as its users start it.

mod common;
mod conform;
mod dump;
mod judge;
mod peer;
mod program;
mod top;
mod trust;
