//! The targets of the wire crate on their corpora.

use roxe_fuzz::replay;

#[test]
fn packet() {
    replay("packet", roxe_fuzz::packet, 20_000);
}

#[test]
fn capture() {
    replay("capture", roxe_fuzz::capture, 20_000);
}
