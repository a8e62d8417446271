//! The program `roxe`, started as its users start it.

mod dump;
mod judge;
mod peer;
mod program;
mod top;
mod trust;
