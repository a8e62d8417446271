//! Explanations of failed connections for the user (`ROXE_EXPLAIN`): each kind and number of an
//! event has several causes. Nothing here runs unless something failed.

use super::event::{EventData, EventKind};
use super::id::{Id, Inner, Side};
use super::route::Address;
use roxe_base::config::Explain;
use roxe_base::error::Error;
use roxe_check::explain::{self, Connection, explains};
use roxe_observe::reasons;
use roxe_transport::qp::Service;
use roxe_wire::Qpn;
use roxe_wire::cm::{RejReason, SidrStatus};

/// Maximum number of printed bytes of private data.
const MAX_SHOWN: usize = 32;

type Cause = (String, &'static str);

impl Id {
    /// Prints an explanation if `kind` ends an attempt; `error` is the failure on this side, if
    /// any.
    pub(super) fn explain(
        &self,
        inner: &Inner,
        (kind, status, data): (EventKind, i32, &EventData),
        error: Option<&Error>,
    ) {
        if explains() == Explain::Off {
            return;
        }
        let Some((cause, advice)) = self.cause(inner, (kind, status, data), error) else { return };
        let what = if self.service() == Service::Ud { "look-up" } else { "connection" };
        let end =
            |address: Option<Address>| address.map_or_else(|| "nowhere".to_owned(), |address| format_address(&address));
        let what = format!("the {what} from {} to {}", end(inner.local), end(inner.peer));
        let private_data = private_data(data).map(format_private_data);
        explain::not_connected(&Connection { what, event: event_name(kind), status, cause, private_data, advice });
    }

    fn cause(
        &self,
        inner: &Inner,
        (kind, status, data): (EventKind, i32, &EventData),
        error: Option<&Error>,
    ) -> Option<Cause> {
        let peer = || inner.peer.map_or_else(String::new, |peer| format_address(&peer));
        Some(match kind {
            EventKind::AddrError => (error?.to_string(), route_advice(error?.errno())),
            EventKind::ConnectError => (
                format!("the peer accepted, but this end's queue pair could not change its state: {}", error?),
                "create the queue pair on the device of the id (id->verbs), and let librdmacm change its state",
            ),
            EventKind::Unreachable if status > 0 => look_up(status, &peer()),
            EventKind::Unreachable => (unanswered(status, inner), UNANSWERED),
            EventKind::Rejected => {
                let reason = u16::try_from(status).map_or(RejReason::ConsumerDefined, RejReason::from_code);
                rejected(reason, &peer(), inner, data)
            }
            _ => return None,
        })
    }
}

const UNANSWERED: &str = "check that the host is up, that UDP port 4791 is open both ways, and that a program there \
                          has opened its RDMA device on the interface with this address (ROXE_NETDEV)";

/// Returns advice for an address that cannot be reached.
const fn route_advice(errno: i32) -> &'static str {
    match errno {
        libc::ENODEV => "open the interface that the route uses: `roxe run --netdev NAME`, or ROXE_NETDEV=NAME",
        libc::EADDRNOTAVAIL => "use an address of this host as the source; `ip addr` lists them",
        _ => "check `ip route get ADDRESS`: the host needs a route, and its interface has to be up",
    }
}

fn look_up(status: i32, peer: &str) -> Cause {
    match u8::try_from(status).map(SidrStatus::from_code) {
        Ok(SidrStatus::Unsupported) => {
            (format!("no program serves datagrams at {peer}"), "start the server, or correct the port")
        }
        Ok(SidrStatus::Reject) => ("the server refused the look-up".to_owned(), "read the server's messages"),
        _ => (format!("the server responded with status {status}"), "read the server's messages"),
    }
}

fn unanswered(status: i32, inner: &Inner) -> String {
    let host = inner.peer.map_or_else(String::new, |peer| peer.gid().to_ip().to_string());
    match -status {
        libc::ECONNREFUSED => {
            format!("{host} reports that UDP port 4791 is closed: no RoCE device is open there")
        }
        libc::EHOSTUNREACH | libc::ENETUNREACH => format!("the network answers that the host {host} cannot be reached"),
        _ => format!("{host} did not respond to any request"),
    }
}

fn rejected(reason: RejReason, peer: &str, inner: &Inner, data: &EventData) -> Cause {
    let other = |advice| (format!("the other end refused: {reason}"), advice);
    match reason {
        RejReason::InvalidServiceId => (
            format!("a card responded, but no program listens at {peer}"),
            "start the server first, or correct the port; the server has to call rdma_listen on an id that is bound \
             to this address or to all addresses",
        ),
        RejReason::ConsumerDefined => consumer(inner, data),
        RejReason::StaleConnection => (
            "the other end still has a connection with this queue pair number, or it is in timewait there".to_owned(),
            "create a new queue pair for each connection, and disconnect before it is destroyed",
        ),
        RejReason::Timeout if inner.side == Side::Passive => (
            "the client gave up, because its request was not accepted in time (rdma_accept)".to_owned(),
            "read RDMA_CM_EVENT_CONNECT_REQUEST from the channel and accept in time",
        ),
        RejReason::Timeout => (
            "the other end accepted, but did not receive the last message of the exchange in time".to_owned(),
            "read and handle the events of the channel in time",
        ),
        RejReason::InvalidCommId | RejReason::InvalidCommInstance => (
            format!(
                "the other end does not know this connection ({reason}): its program has ended, or destroyed the \
                 identifier"
            ),
            "find out why the other program ended during the connection attempt",
        ),
        RejReason::NoResources | RejReason::NoQp => other("find out why the other end could not create its queue pair"),
        RejReason::InsufficientResponderResources => other("request a smaller initiator_depth"),
        RejReason::InvalidGid | RejReason::InvalidAltGid => other("use a GID that the device of the other end has"),
        RejReason::InvalidMtu => {
            other("use a path_mtu of at most the active_mtu of the other end's port (ibv_devinfo)")
        }
        RejReason::InvalidRnrRetry => other("use an rnr_retry_count of 7 or less"),
        _ => other("read the messages of the program and the connection manager of the other end"),
    }
}

/// Explains a refusal by the peer's program or its library; on this host the library's reason is
/// known.
fn consumer(inner: &Inner, data: &EventData) -> Cause {
    let reason = inner.qp.as_ref();
    let reason = reason.and_then(|qp| reasons::find_refusal(qp.pd().context().device().ifindex(), qp.qpn()));
    match reason {
        Some(reason) => {
            (reason, "read the events of the listener's channel in time, or call rdma_listen with a larger backlog")
        }
        None if private_data(data).is_some() => {
            ("the peer's program refused (rdma_reject) and sent private data".to_owned(), "read its private data")
        }
        None => (
            "the peer's program refused (rdma_reject), or its backlog was full".to_owned(),
            "read the server's messages; on this host start it with `roxe run --explain` too",
        ),
    }
}

/// Records for the peer that its request was refused without reaching the program.
pub(super) fn note_refusal(ifindex: u32, peer: Qpn, backlog: usize) {
    reasons::record_refusal(ifindex, peer, || {
        format!("the listener's backlog is full: its program has not read {backlog} requests")
    });
}

/// Returns the private data without trailing zeros; `None` if there is none.
fn private_data(data: &EventData) -> Option<&[u8]> {
    let all = data.private_data();
    let end = all.iter().rposition(|byte| *byte != 0)?;
    all.get(..=end)
}

fn format_private_data(bytes: &[u8]) -> String {
    let (first, rest) = bytes.split_at(bytes.len().min(MAX_SHOWN));
    let more = if rest.is_empty() { String::new() } else { format!("... ({} bytes)", bytes.len()) };
    if first.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        return format!("\"{}\"{more}", String::from_utf8_lossy(first));
    }
    let words: Vec<String> =
        first.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    words.join(" ") + &more
}

fn format_address(address: &Address) -> String {
    match address {
        Address::Ip(ip) => format!("{} port {}", ip.ip(), ip.port()),
        Address::Ib(ib) => format!("{} service {:#x}", ib.gid, ib.sid),
    }
}

const fn event_name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
        EventKind::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
        EventKind::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
        _ => "RDMA_CM_EVENT_REJECTED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::event::ConnParam;
    use crate::cm::{Channel, Event, IbAddress, PortSpace};
    use roxe_base::clock;
    use roxe_wire::cm::ServiceId;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    /// Connects to an address without a card, lets the connection manager's time run out, and
    /// returns the event and its cause.
    fn attempt_without_answer() -> (Event, Cause) {
        let channel = Channel::create().unwrap();
        let id = Id::create(&channel, PortSpace::Tcp, 0).unwrap();
        let expect = |kind| {
            let event = channel.next().unwrap();
            assert_eq!(event.kind, kind);
            event
        };
        // An IP address of the loopback interface would resolve to the device.
        let (gid, sid) = (Ipv4Addr::new(127, 9, 8, 7).into(), ServiceId::new(PortSpace::Tcp, 7471).0);
        let peer = IbAddress { gid, sid, sid_mask: u64::MAX, ..IbAddress::default() };
        id.resolve_addr(None, &Address::Ib(peer), 2000).unwrap();
        expect(EventKind::AddrResolved);
        id.resolve_route(2000).unwrap();
        expect(EventKind::RouteResolved);
        id.connect(&ConnParam::NOTHING).unwrap();
        let runtime = id.runtime().unwrap();
        for second in 1..=100 {
            let at = clock::now().after(Duration::from_secs(second));
            runtime.cm(|session| session.cm.handle_timeout(at)).unwrap();
        }
        let event = expect(EventKind::Unreachable);
        let cause = id.cause(&id.lock(), (event.kind, event.status, &event.data), None).unwrap();
        (event, cause)
    }

    // clause: CM-RETRIES
    #[test]
    fn unanswered_connect_ends_with_explanation() {
        // Only after seconds of real time the loopback interface reports that the port is closed.
        let unanswered = (0..5).map(|_| attempt_without_answer()).find(|(event, _)| event.status == -libc::ETIMEDOUT);
        let (_, (cause, advice)) = unanswered.expect("the connect ends with a timeout");
        assert_eq!(cause, "127.9.8.7 did not respond to any request");
        assert!(advice.contains("UDP port 4791 is open both ways"), "{advice}");
    }

    #[test]
    fn private_data_prints_as_text_or_hex_without_zeros() {
        let data = |private_data| EventData::Conn(ConnParam { private_data, ..ConnParam::NOTHING });
        let text_of = |bytes: &[u8]| private_data(&data(bytes.to_vec())).map(format_private_data);
        assert_eq!(text_of(b"no room\0\0"), Some("\"no room\"".to_owned()));
        assert_eq!(text_of(&[1, 2, 3, 4, 0xff, 0]), Some("01020304 ff".to_owned()));
        assert_eq!(text_of(&[0; 8]), None);
        assert_eq!(text_of(&[b'a'; 40]).unwrap(), format!("\"{}\"... (40 bytes)", "a".repeat(32)));
    }
}
