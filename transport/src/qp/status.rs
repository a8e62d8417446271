//! Diagnostics of a queue pair: its progress, its last failure, and why it refused a verb. Read
//! only.

use crate::qp::modify::ModifyError;
use crate::qp::queue_pair::Qp;
use crate::qp::refusal::Refusal;
use crate::qp::shared::{MigState, PostError, QpState, Service};
use crate::qp::{AttrMask, QpAttr};
use crate::wr::{SendData, SendOp, SendRequest};
use roxe_wire::{Gid, Psn, Qpn};

/// Progress of a queue pair. Message numbers and PSNs wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Transport service.
    pub service: Service,
    /// Current state.
    pub state: QpState,
    /// Queue pair and address of the peer; 0 if there is none.
    pub peer: (Qpn, Gid),
    /// Payload bytes of a full packet.
    pub path_mtu: u32,
    /// Completed send work requests, modulo 2^32.
    pub sends: u32,
    /// Incomplete send work requests.
    pub outstanding: u32,
    /// Sent and unacknowledged PSNs (RC, XRC).
    pub unacknowledged: u32,
    /// Send window in PSNs (RC, XRC).
    pub window: u32,
    /// Requests that await a response of their own.
    pub reads: u32,
    /// PSN after the newest sent.
    pub sent: Psn,
    /// Executed messages, modulo 2^24.
    pub received: u32,
    /// Expected PSN.
    pub expected: Psn,
    /// True if an RNR wait is running.
    pub in_rnr_wait: bool,
    /// State of path migration.
    pub migration: MigState,
}

impl Qp {
    /// Returns the progress of the queue pair, for display.
    pub fn status(&self) -> QpStatus {
        let (attr, requester, probe) = (self.attr(), &self.requester, self.probe());
        let unacknowledged = probe.sent.distance(probe.una);
        QpStatus {
            qpn: self.qpn(),
            service: self.service(),
            state: self.state(),
            peer: (attr.dest_qpn, attr.av.dgid),
            path_mtu: attr.path_mtu.bytes(),
            sends: requester.sq.head_index(),
            outstanding: probe.sends,
            unacknowledged: u32::try_from(unacknowledged).unwrap_or(0),
            window: u32::try_from(requester.window).unwrap_or(0),
            reads: requester.reads_out,
            sent: probe.sent,
            received: self.responder.progress.msn.get(),
            expected: probe.expected,
            in_rnr_wait: probe.in_rnr_wait,
            migration: attr.path_mig_state,
        }
    }
}

/// Progress of both roles of a queue pair, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Current state.
    pub state: QpState,
    /// Oldest unacknowledged PSN.
    pub una: Psn,
    /// PSN of the next packet to send; before `sent` only during a retransmission.
    pub next: Psn,
    /// PSN after the newest one ever sent.
    pub sent: Psn,
    /// Expected PSN.
    pub expected: Psn,
    /// Bytes held at [`crate::cx::FlowControl`] (RC).
    pub held: u32,
    /// Incomplete send work requests.
    pub sends: u32,
    /// True if an RNR wait is running.
    pub in_rnr_wait: bool,
}

impl Qp {
    /// Returns the progress of both roles, for tests.
    pub fn probe(&self) -> Probe {
        let (requester, expected) = (&self.requester, self.responder.progress.e_psn);
        Probe {
            state: self.state(),
            una: requester.una_psn,
            next: requester.cursor.psn,
            sent: requester.sent_psn,
            expected,
            held: requester.in_flight.held(),
            sends: requester.sq.tail_index().wrapping_sub(requester.sq.head_index()),
            in_rnr_wait: requester.retry.is_waiting(),
        }
    }

    /// Returns the length in bytes of the last failed request, if none of its packets was
    /// acknowledged although earlier requests were.
    pub fn unanswered(&self) -> Option<u32> {
        self.requester.unanswered
    }

    /// Returns an explanation of the last refused request of the peer; `None` if there is none, or
    /// if the host explains it.
    pub fn last_refusal(&self) -> Option<String> {
        let (refusal, attr) = (self.responder.refused?, self.attr());
        let sentence = refusal.explanation()?;
        Some(match refusal {
            Refusal::NotAllowed => {
                let flags = if attr.access.is_empty() { "0".to_owned() } else { attr.access.names(" and ") };
                format!("{sentence} (they are {flags})")
            }
            Refusal::TooManyReads => format!("{sentence} (it is {})", attr.max_dest_rd_atomic),
            Refusal::Length => format!("{sentence} (path_mtu is {} bytes)", attr.path_mtu.bytes()),
            Refusal::ReceiveTooShort if self.service() == Service::Ud => {
                format!("{sentence}, of which the first 40 bytes are for the GRH")
            }
            _ => sentence.to_owned(),
        })
    }

    /// Explains a refused modify with `attr`.
    pub fn why_not_modified(&self, error: ModifyError, attr: &QpAttr) -> String {
        let ModifyError::BadValue(bit) = error else { return error.to_string() };
        let (value, accepted): (String, String) = match bit {
            AttrMask::CUR_STATE => {
                let value = attr.cur_state.map_or_else(|| "none".to_owned(), |state| format!("{state:?}"));
                (value, format!("the state that the queue pair is in, {:?}, from RTR on", self.state()))
            }
            AttrMask::PKEY_INDEX => (attr.pkey_index.to_string(), "0, as the table has one entry".to_owned()),
            AttrMask::PORT => (attr.port.to_string(), "1, as the device has one port".to_owned()),
            AttrMask::AV => (
                format!("from {} to {}", attr.av.sgid.to_ip(), attr.av.dgid.to_ip()),
                "a dgid of one host, of the same IP version as the GID at sgid_index".to_owned(),
            ),
            AttrMask::PATH_MTU => {
                let max = self.config().port_mtu;
                (format!("{} bytes", attr.path_mtu.bytes()), format!("at most the active_mtu of the port, {max} bytes"))
            }
            AttrMask::TIMEOUT => (attr.timeout.to_string(), "0 to 31".to_owned()),
            AttrMask::RETRY_CNT => (attr.retry_cnt.to_string(), "0 to 7".to_owned()),
            AttrMask::RNR_RETRY => (attr.rnr_retry.to_string(), "0 to 7".to_owned()),
            AttrMask::MAX_QP_RD_ATOMIC => (attr.max_rd_atomic.to_string(), "0 to 128 (max_qp_init_rd_atom)".to_owned()),
            AttrMask::MAX_DEST_RD_ATOMIC => {
                (attr.max_dest_rd_atomic.to_string(), "0 to 128 (max_qp_rd_atom)".to_owned())
            }
            AttrMask::ALT_PATH => (
                format!(
                    "port {}, pkey_index {}, timeout {}, to {}",
                    attr.alt_port,
                    attr.alt_pkey_index,
                    attr.alt_timeout,
                    attr.alt_av.dgid.to_ip()
                ),
                "port 1, pkey_index 0, a timeout up to 31 and a dgid of one host".to_owned(),
            ),
            AttrMask::PATH_MIG_STATE => (
                format!("{:?}", attr.path_mig_state),
                format!(
                    "a transition from {:?} that software may request, with an alternate path",
                    self.attr().path_mig_state
                ),
            ),
            AttrMask::RATE_LIMIT => (
                format!("{} kbit/s with bursts of {} bytes", attr.rate_limit.kbps, attr.rate_limit.max_burst),
                "0, or 1,000 kbit/s or more".to_owned(),
            ),
            _ => return error.to_string(),
        };
        format!("the value of {bit} is out of range: it is {value}; accepted is {accepted}")
    }

    /// Explains a refused send work request.
    pub fn why_send_refused(&self, error: PostError, request: &SendRequest<'_>) -> String {
        let (caps, operation) = (self.config().caps, operation(&request.op));
        match (error, request.data) {
            (PostError::State, _) => {
                format!("{error}: it is in {:?}, and sends are posted from RTS on", self.state())
            }
            (PostError::QueueFull, _) => format!(
                "{error}: max_send_wr is {}, and a place is free again once its completion, or a later one, was polled",
                caps.max_send_wr
            ),
            (PostError::TooManySges, SendData::Sges(sges)) => {
                format!("{error}: num_sge is {}, max_send_sge {}", sges.len(), caps.max_send_sge)
            }
            (PostError::InlineTooLong, SendData::Inline(bytes)) => {
                format!("{error}: it has {} bytes, max_inline_data is {}", bytes.len(), caps.max_inline_data)
            }
            (PostError::BadOpcode, data) => {
                let (service, depth) = (self.service().name(), self.attr().max_rd_atomic);
                let why = match data {
                    SendData::Inline(_) if !can_be_inline(&request.op) => "its data cannot be inline (IBV_SEND_INLINE)",
                    _ if depth == 0 && request.op.awaits_response() => "its max_rd_atomic is 0",
                    _ => "its service has no such operation",
                };
                format!("{error}: the opcode is {operation}, the queue pair is {service}: {why}")
            }
            (PostError::BadLength, SendData::Sges(sges)) => {
                let accepted = match request.op {
                    SendOp::AtomicWrite { .. } => "8",
                    SendOp::Flush { .. } => "no data, and a range of 2147483648 at most",
                    _ => "2147483648 at most",
                };
                format!(
                    "{error}: the list of {operation} has {} bytes; accepted are {accepted}",
                    sges.iter().map(|sge| u64::from(sge.length)).sum::<u64>()
                )
            }
            (PostError::MissingDestination, _) => format!("{error}: wr.ud.ah of a datagram is NULL"),
            _ => error.to_string(),
        }
    }

    /// Explains a refused receive work request with `num_sge` list elements.
    pub fn why_receive_refused(&self, error: PostError, num_sge: usize) -> String {
        let caps = self.config().caps;
        match error {
            PostError::State => format!("{error}: it is in {:?}, and receives are posted from INIT on", self.state()),
            PostError::QueueFull => format!("{error}: max_recv_wr is {}", caps.max_recv_wr),
            PostError::TooManySges => format!("{error}: num_sge is {num_sge}, max_recv_sge {}", caps.max_recv_sge),
            PostError::BadOpcode => {
                format!(
                    "{error}: it has no receive queue of its own, for example because it uses a shared receive queue"
                )
            }
            _ => error.to_string(),
        }
    }
}

const fn can_be_inline(op: &SendOp) -> bool {
    matches!(op, SendOp::AtomicWrite { .. }) || !op.awaits_response() && !op.is_local()
}

/// Returns the opcode as in `enum ibv_wr_opcode`.
const fn operation(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send => "IBV_WR_SEND",
        SendOp::SendImm(_) => "IBV_WR_SEND_WITH_IMM",
        SendOp::SendInvalidate(_) => "IBV_WR_SEND_WITH_INV",
        SendOp::Write { .. } => "IBV_WR_RDMA_WRITE",
        SendOp::WriteImm { .. } => "IBV_WR_RDMA_WRITE_WITH_IMM",
        SendOp::Read { .. } => "IBV_WR_RDMA_READ",
        SendOp::CompareSwap { .. } => "IBV_WR_ATOMIC_CMP_AND_SWP",
        SendOp::FetchAdd { .. } => "IBV_WR_ATOMIC_FETCH_AND_ADD",
        SendOp::AtomicWrite { .. } => "IBV_WR_ATOMIC_WRITE",
        SendOp::Flush { .. } => "IBV_WR_FLUSH",
        SendOp::LocalInvalidate(_) => "IBV_WR_LOCAL_INV",
        SendOp::BindWindow { .. } => "IBV_WR_BIND_MW",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::{QpCaps, QpConfig, Service};

    #[test]
    fn bad_values_are_explained_with_the_accepted_range() {
        let qp = Qp::new(QpConfig::new(Qpn::new(2), Service::Rc, QpCaps::default()));
        let attr = QpAttr { retry_cnt: 9, ..QpAttr::default() };
        let text = qp.why_not_modified(ModifyError::BadValue(AttrMask::RETRY_CNT), &attr);
        assert_eq!(text, "the value of RETRY_CNT is out of range: it is 9; accepted is 0 to 7");
        for bit in AttrMask::all() {
            let text = qp.why_not_modified(ModifyError::BadValue(bit), &attr);
            // Attributes without a rule accept every value.
            let has_rule = !matches!(
                bit,
                AttrMask::STATE
                    | AttrMask::EN_SQD_ASYNC_NOTIFY
                    | AttrMask::ACCESS_FLAGS
                    | AttrMask::QKEY
                    | AttrMask::MIN_RNR_TIMER
                    | AttrMask::RQ_PSN
                    | AttrMask::SQ_PSN
                    | AttrMask::CAP
                    | AttrMask::DEST_QPN
            );
            assert_eq!(text.contains("accepted is"), has_rule, "{text}");
        }
    }
}
