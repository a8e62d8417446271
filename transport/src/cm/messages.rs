//! Builds messages as the kernel's rdma_cm does on RoCE, and checks incoming requests independently
//! of listeners.

use super::connection::{Connection, State, ack_timeout};
use super::listen::Addresses;
use super::terms::{Accept, Alternate, AlternateAnswer, Connect, Refusal, Resolution, Resolve, Route, Settings};
use core::net::IpAddr;
use roxe_wire::cm::{
    Answered, Apr, CommId, Drep, Dreq, Guid, Info, IpCmHeader, Lap, Mra, Path, PrivateData, Rej, RejReason, Rep, Req,
    Rtu, SidrRep, SidrReq, SidrStatus, TimeCode, Transport, Uint,
};
use roxe_wire::{Gid, PathMtu, Pkey, Qkey, Qpn};

// clause: CM-FIELDS-REQ
pub(super) fn req(id: CommId, connect: &Connect, settings: &Settings) -> Req {
    Req {
        local_comm_id: id,
        service_id: connect.service_id,
        vendor_id: connect.ece.vendor_id,
        local_ca_guid: settings.guid,
        local_qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        initiator_depth: connect.initiator_depth,
        remote_cm_response_timeout: connect.response_timeout,
        local_cm_response_timeout: connect.response_timeout,
        transport: connect.transport,
        flow_control: connect.flow_control,
        starting_psn: connect.psn,
        retry_count: connect.retry_count,
        rnr_retry_count: connect.rnr_retry_count,
        max_cm_retries: connect.max_cm_retries,
        pkey: Pkey::DEFAULT,
        path_mtu: connect.path_mtu.into(),
        srq: connect.srq,
        primary: path(connect, settings),
        private_data: connect.private_data,
        ..Req::default()
    }
}

fn path(connect: &Connect, settings: &Settings) -> Path {
    let subnet_local = connect.hop_limit <= 1;
    let lid = lid(subnet_local);
    Path {
        local_lid: lid,
        remote_lid: lid,
        local_gid: connect.route.local,
        remote_gid: connect.route.remote,
        flow_label: connect.flow_label,
        traffic_class: connect.traffic_class,
        hop_limit: connect.hop_limit,
        subnet_local,
        local_ack_timeout: ack_timeout(settings.ack_delay, connect.packet_lifetime),
        ..Path::default()
    }
}

/// Returns the LID of a RoCE port, which has none: 0, or the permissive LID 0xffff for packets
/// through routers.
const fn lid(subnet_local: bool) -> u16 {
    if subnet_local { 0 } else { 0xffff }
}

const FAILOVER_UNSUPPORTED: Uint<2> = Uint::new(1);

// clause: CM-FIELDS-REP
pub(super) fn rep(conn: &Connection, accept: &Accept, settings: &Settings) -> Rep {
    // An XRC target has its number in another field.
    // clause: CM-XRC
    let is_target = conn.transport == Transport::Xrc;
    let (local_qpn, local_eecn) = if is_target { (Qpn::default(), accept.qpn) } else { (accept.qpn, Qpn::default()) };
    Rep {
        local_comm_id: conn.id,
        remote_comm_id: conn.remote_id(),
        local_qpn,
        local_eecn,
        vendor_id: accept.ece.vendor_id,
        starting_psn: accept.psn,
        responder_resources: conn.terms.max_dest_rd_atomic,
        initiator_depth: conn.terms.max_rd_atomic,
        target_ack_delay: settings.ack_delay,
        // clause: CM-FAILOVER
        failover: if conn.alternate_offered { FAILOVER_UNSUPPORTED } else { Uint::default() },
        flow_control: accept.flow_control,
        rnr_retry_count: accept.rnr_retry_count,
        srq: accept.srq || is_target,
        local_ca_guid: settings.guid,
        private_data: accept.private_data,
        ..Rep::default()
    }
}

pub(super) fn offered_qpn(rep: &Rep, transport: Transport) -> Qpn {
    if transport == Transport::Xrc { rep.local_eecn } else { rep.local_qpn }
}

pub(super) fn rtu(conn: &Connection, private_data: &PrivateData<224>) -> Rtu {
    Rtu { local_comm_id: conn.id, remote_comm_id: conn.remote_id(), private_data: *private_data }
}

pub(super) fn mra(conn: &Connection, service_timeout: TimeCode) -> Mra {
    Mra {
        local_comm_id: conn.id,
        remote_comm_id: conn.remote_id(),
        answered: answered(conn),
        service_timeout,
        private_data: PrivateData::EMPTY,
    }
}

// clause: CM-LAP
pub(super) fn lap(conn: &Connection, alternate: &Alternate, settings: &Settings) -> Lap {
    let subnet_local = alternate.hop_limit <= 1;
    let lid = lid(subnet_local);
    Lap {
        local_comm_id: conn.id,
        remote_comm_id: conn.remote_id(),
        remote_qpn: conn.terms.dest_qpn,
        remote_cm_response_timeout: alternate.response_timeout,
        local_lid: lid,
        remote_lid: lid,
        local_gid: alternate.route.local,
        remote_gid: alternate.route.remote,
        flow_label: alternate.flow_label,
        traffic_class: alternate.traffic_class,
        hop_limit: alternate.hop_limit,
        subnet_local,
        local_ack_timeout: ack_timeout(settings.ack_delay, alternate.packet_lifetime),
        private_data: alternate.private_data,
        ..Lap::default()
    }
}

/// Returns the answer to a LAP; the connection may be unknown.
pub(super) const fn apr(ours: CommId, theirs: CommId, answer: &AlternateAnswer) -> Apr {
    let AlternateAnswer { status, info, private_data } = *answer;
    Apr { local_comm_id: ours, remote_comm_id: theirs, info, status, private_data }
}

pub(super) fn dreq(conn: &Connection) -> Dreq {
    Dreq {
        local_comm_id: conn.id,
        remote_comm_id: conn.remote_id(),
        remote_qpn: conn.terms.dest_qpn,
        private_data: PrivateData::EMPTY,
    }
}

/// Returns the answer to a DREQ; the connection may be unknown.
pub(super) const fn drep(ours: CommId, theirs: CommId) -> Drep {
    Drep { local_comm_id: ours, remote_comm_id: theirs, private_data: PrivateData::EMPTY }
}

/// Returns the peer's message that our program has not answered.
const fn answered(conn: &Connection) -> Answered {
    match conn.state {
        State::ReqRcvd | State::MraReqSent => Answered::Req,
        State::RepRcvd | State::MraRepSent => Answered::Rep,
        _ => Answered::Neither,
    }
}

/// Returns a rejection by the program. In ReqRcvd it carries no id of ours.
// clause: CM-REJECT
pub(super) fn rejection(conn: &Connection, refusal: &Refusal) -> Rej {
    let local_comm_id = if conn.state == State::ReqRcvd { CommId::NONE } else { conn.id };
    Rej {
        local_comm_id,
        remote_comm_id: conn.remote_id(),
        answered: answered(conn),
        info: refusal.info,
        reason: refusal.reason,
        private_data: refusal.private_data,
    }
}

/// Returns a rejection because the peer does not answer. It carries our GUID, because the peer may
/// not know our id.
// clause: CM-RETRIES
pub(super) fn timeout(conn: &Connection, guid: Guid) -> Rej {
    let info = Info::new(&guid.0.to_be_bytes()).unwrap_or_default();
    rej(conn.id, conn.remote_id(), Answered::Neither, RejReason::Timeout, info)
}

pub(super) const fn rej(ours: CommId, theirs: CommId, answered: Answered, reason: RejReason, info: Info) -> Rej {
    let private_data = PrivateData::EMPTY;
    Rej { local_comm_id: ours, remote_comm_id: theirs, answered, info, reason, private_data }
}

pub(super) const fn reject_req(req: &Req, reason: RejReason, info: Info) -> Rej {
    rej(CommId::NONE, req.local_comm_id, Answered::Req, reason, info)
}

pub(super) const fn sidr_req(id: CommId, resolve: &Resolve) -> SidrReq {
    let Resolve { service_id, private_data, .. } = *resolve;
    SidrReq { request_id: id, pkey: Pkey::DEFAULT, service_id, private_data }
}

pub(super) fn sidr_rep(request: &SidrReq, resolution: &Resolution) -> SidrRep {
    let (status, (qpn, qkey)) = match resolution.service {
        Ok(service) => (SidrStatus::Success, service),
        Err(status) => (status, (Qpn::default(), Qkey::default())),
    };
    SidrRep {
        request_id: request.request_id,
        status,
        info: Info::EMPTY,
        vendor_id: resolution.ece.vendor_id,
        qpn,
        service_id: request.service_id,
        qkey,
        private_data: resolution.private_data,
    }
}

/// Reason and additional information of a rejected REQ.
pub(super) type Rejection = (RejReason, Info);

/// Returns the rejection of a path whose address differs from that of the REQ's packet, `correct`.
fn wrong_gid(correct: Gid) -> Rejection {
    (RejReason::InvalidGid, Info::new(&correct.0).unwrap_or_default())
}

/// Checks that a REQ can become a connection, independently of the listener.
// clause: CM-REQ-CHECKS
pub(super) fn check_request(route: Route, req: &Req) -> Result<PathMtu, Rejection> {
    let path = &req.primary;
    // A path to a third party would direct our packets there.
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

/// Returns true if the private data begins with the addresses required by the listener. They must
/// be those of the request itself, so that no host sends requests in another's name.
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
