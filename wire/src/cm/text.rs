//! Messages as one line of text: who, what, and the numbers that a connection begins with.

use super::ip::IpCmHeader;
use super::mad::Mad;
use super::message::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use super::num::{CommId, ServiceId};
use core::fmt;
use core::net::SocketAddr;

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {}", self.message)
    }
}

/// The two ids of a connection, as the sender sees them.
struct Ids(CommId, CommId);

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "comm={} peer={}", self.0, self.1)
    }
}

/// A service, with the addresses that RDMA CM puts into private data.
struct Target<'a>(ServiceId, &'a [u8]);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(service, private_data) = self;
        let header = IpCmHeader::parse(private_data).map(|(header, _)| header);
        match (service.port(), header) {
            (Some((space, port)), Ok(IpCmHeader { src_port, addresses })) => {
                let (src, dst) = (SocketAddr::new(addresses.src(), src_port), SocketAddr::new(addresses.dst(), port));
                write!(f, "{} {src} > {dst}", space.name())
            }
            _ => write!(f, "service={service}"),
        }
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, service_id, private_data, transport, local_qpn, starting_psn, .. } = self;
        write!(f, "comm={local_comm_id} {} ", Target(*service_id, private_data.as_bytes()))?;
        write!(f, "{transport} qpn={local_qpn} psn={starting_psn} ")?;
        match self.path_mtu.mtu() {
            Some(mtu) => write!(f, "mtu={}", mtu.bytes())?,
            None => write!(f, "mtu=code {}", self.path_mtu.get())?,
        }
        write!(f, " resources={} depth={}", self.responder_resources, self.initiator_depth)
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, answered, service_timeout, .. } = self;
        write!(f, "{} of={answered} timeout={:?}", Ids(*local_comm_id, *remote_comm_id), service_timeout.duration())
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, answered, reason, .. } = self;
        write!(f, "{} of={answered} reason={reason}", Ids(*local_comm_id, *remote_comm_id))
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, local_qpn, local_eecn, starting_psn, .. } = self;
        write!(f, "{} qpn={local_qpn} ", Ids(*local_comm_id, *remote_comm_id))?;
        if local_eecn.get() != 0 {
            write!(f, "eecn={local_eecn} ")?;
        }
        write!(f, "psn={starting_psn} resources={} depth={}", self.responder_resources, self.initiator_depth)
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ids(self.local_comm_id, self.remote_comm_id).fmt(f)
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qpn={}", Ids(self.local_comm_id, self.remote_comm_id), self.remote_qpn)
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ids(self.local_comm_id, self.remote_comm_id).fmt(f)
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, remote_qpn, local_gid, remote_gid, .. } = self;
        write!(f, "{} qpn={remote_qpn} ", Ids(*local_comm_id, *remote_comm_id))?;
        write!(f, "{} > {}", local_gid.to_ip(), remote_gid.to_ip())
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} status={}", Ids(self.local_comm_id, self.remote_comm_id), self.status)
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, service_id, private_data, .. } = self;
        write!(f, "request={request_id} {}", Target(*service_id, private_data.as_bytes()))
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, service_id, status, qpn, qkey, .. } = self;
        write!(f, "request={request_id} service={service_id} status={status} qpn={qpn} qkey={:#x}", qkey.0)
    }
}
