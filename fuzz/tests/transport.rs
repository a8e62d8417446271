//! The targets of the transport crate on their corpora.

use roxe_fuzz::replay;

#[test]
fn qp_pair() {
    replay("qp_pair", roxe_fuzz::qp_pair, 4_000);
}

#[test]
fn hostile() {
    replay("hostile", roxe_fuzz::hostile, 20_000);
}
