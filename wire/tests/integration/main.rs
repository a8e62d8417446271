//! Tests of packets, connection manager messages and capture files through the public interface.

mod capture_files;
mod cm;
mod exhaustive;
mod properties;
mod vectors;
