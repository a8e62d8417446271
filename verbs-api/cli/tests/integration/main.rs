//! The program `roxe`, started as its users start it.

mod conform;
mod dump;
mod judge;
mod peer;
mod program;
mod top;
mod trust;
