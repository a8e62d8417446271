//! The checks of a packet that come before its meaning: whether the state takes its kind, and
//! whether it is of this connection.
//!
//! Touches only [`Shared`] and headers.

use super::error::DropReason;
use super::rq;
use super::shared::{Service, Shared};
use roxe_wire::{Bth, Kind, NetHeader, Pkey};

/// Whether a packet uses up or begins to use a receive.
pub(crate) fn takes_receive(kind: &Kind) -> bool {
    matches!(kind, Kind::Ud { .. }) || kind.request().is_some_and(rq::takes_receive)
}

/// Refuses requests in states that do not execute them, and packets of strangers.
pub(super) fn check_request(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_requests() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

/// Refuses responses in states that cannot have asked for them, and packets of strangers.
pub(super) fn check_response(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    if !sh.state.accepts_responses() {
        return Err(DropReason::BadState);
    }
    check_connection(sh, net, bth)
}

/// Both addresses are those of the connection, and the P_Key is ours (IBA §9.6.1.2). Any host may
/// send datagrams.
fn check_connection(sh: &Shared, net: &NetHeader, bth: &Bth) -> Result<(), DropReason> {
    let av = &sh.attr.av;
    // clause: UDP-SOURCE-PORT, TAKE-ADDRESS, UD-ANY-SOURCE
    if sh.config.service != Service::Ud && (net.src != av.dgid || net.dst != av.sgid) {
        return Err(DropReason::Address);
    }
    // clause: TAKE-PKEY
    if !Pkey::DEFAULT.matches(bth.pkey) {
        return Err(DropReason::Pkey);
    }
    Ok(())
}
