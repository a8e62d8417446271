//! Why a verb on a queue pair was refused, in words: which argument, its value, and what is
//! accepted. For people; runs only when a verb was refused.

use crate::qp::error::PostError;
use crate::qp::modify::ModifyError;
use crate::qp::queue_pair::Qp;
use crate::qp::{AttrMask, QpAttr};
use crate::wr::{SendData, SendOp, SendRequest, Sge};

impl Qp {
    /// Says why a modify with `attr` was refused.
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
                let most = self.config().port_mtu;
                (
                    format!("{} bytes", attr.path_mtu.bytes()),
                    format!("the active_mtu of the port at most, {most} bytes"),
                )
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
                format!("a step from {:?} that software may take, with an alternate path", self.attr().path_mig_state),
            ),
            AttrMask::RATE_LIMIT => (
                format!("{} kbit/s with bursts of {} bytes", attr.rate_limit.kbps, attr.rate_limit.max_burst),
                "0, or 1,000 kbit/s or more".to_owned(),
            ),
            _ => return error.to_string(),
        };
        format!("the value of {bit} is out of range: it is {value}; accepted is {accepted}")
    }

    /// Says why a send work request was refused.
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
                    SendData::Inline(_) if !is_sent(&request.op) => "its data cannot be inline (IBV_SEND_INLINE)",
                    _ if depth == 0 && awaits_response(&request.op) => "its max_rd_atomic is 0",
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
                format!("{error}: the list of {operation} has {} bytes; accepted are {accepted}", total(sges))
            }
            (PostError::MissingDestination, _) => format!("{error}: wr.ud.ah of a datagram is NULL"),
            _ => error.to_string(),
        }
    }

    /// Says why a receive work request with a list of `num_sge` elements was refused.
    pub fn why_receive_refused(&self, error: PostError, num_sge: usize) -> String {
        let caps = self.config().caps;
        match error {
            PostError::State => format!("{error}: it is in {:?}, and receives are posted from INIT on", self.state()),
            PostError::QueueFull => format!("{error}: max_recv_wr is {}", caps.max_recv_wr),
            PostError::TooManySges => format!("{error}: num_sge is {num_sge}, max_recv_sge {}", caps.max_recv_sge),
            PostError::BadOpcode => {
                format!("{error}: its receives come from elsewhere, as from a shared receive queue")
            }
            _ => error.to_string(),
        }
    }
}

fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Returns true if the data of the operation leaves with the request.
const fn is_sent(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Send
            | SendOp::SendImm(_)
            | SendOp::SendInvalidate(_)
            | SendOp::Write { .. }
            | SendOp::WriteImm { .. }
            | SendOp::AtomicWrite { .. }
    )
}

const fn awaits_response(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. }
            | SendOp::CompareSwap { .. }
            | SendOp::FetchAdd { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush { .. }
    )
}

/// The opcode as in `enum ibv_wr_opcode`.
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
    use crate::qp::Service;
    use crate::sim::{Peer, Setup};

    #[test]
    fn every_bad_value_is_named_with_what_is_accepted() {
        let (qp, _) = Setup::of(Service::Rc).make(Peer::A);
        let attr = QpAttr { retry_cnt: 9, ..QpAttr::default() };
        let text = qp.why_not_modified(ModifyError::BadValue(AttrMask::RETRY_CNT), &attr);
        assert_eq!(text, "the value of RETRY_CNT is out of range: it is 9; accepted is 0 to 7");
        for bit in AttrMask::all() {
            let text = qp.why_not_modified(ModifyError::BadValue(bit), &attr);
            // Those without a rule take every value.
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
