//! rsockets over the loopback device, in one process and between processes.

mod common;
mod datagrams;
mod epoll;
mod processes;
mod streams;
