//! What a request must be like, whoever listens for it, and what RDMA CM asks of its private data.
//! Knows no connection.

use super::listen::Addresses;
use super::terms::Route;
use core::net::IpAddr;
use roxe_wire::cm::{Info, IpCmHeader, RejReason, Req, Transport};
use roxe_wire::{Gid, PathMtu, Pkey};

/// Why a REQ is rejected, and what goes with the reason.
pub(super) type Rejection = (RejReason, Info);

/// The path names an address that is not where the REQ came from or went to: this one is.
fn wrong_gid(right: Gid) -> Rejection {
    (RejReason::InvalidGid, Info::new(&right.0).unwrap_or_default())
}

/// What no connection could be made of, whoever listens.
// clause: CM-REQ-CHECKS
pub(super) fn check_request(route: Route, req: &Req) -> Result<PathMtu, Rejection> {
    let path = &req.primary;
    // A path to somebody else would make us send there.
    if path.local_gid != route.remote {
        return Err(wrong_gid(route.remote));
    }
    if path.remote_gid != route.local {
        return Err(wrong_gid(route.local));
    }
    if !matches!(req.transport, Transport::Rc | Transport::Uc | Transport::Xrc) {
        return Err((RejReason::InvalidTransportType, Info::EMPTY));
    }
    if !Pkey::DEFAULT.matches(req.pkey) {
        return Err((RejReason::Unsupported, Info::EMPTY));
    }
    req.path_mtu.mtu().ok_or((RejReason::InvalidMtu, Info::EMPTY))
}

/// Whether the private data of a request begins with the addresses that a listener wants to see.
/// They are those between which the request travelled: nobody asks in another's name.
// clause: CM-IP-CHECKS
pub(super) fn addresses_fit(addresses: Addresses, route: Route, private_data: &[u8]) -> bool {
    if addresses == Addresses::Unchecked {
        return true;
    }
    let Ok((header, _)) = IpCmHeader::parse(private_data) else { return false };
    let (src, dst) = (header.addresses.src(), header.addresses.dst());
    is_of_one_host(src) && Gid::from(src) == route.remote && Gid::from(dst) == route.local
}

fn is_of_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}
