//! Rules about calls of verbs, about completions and about events, as values with their text.

use super::rule::{Hold, QpSelector, Rate, Spans, Window, write_word};
use crate::wr::{WcOpcode, WcStatus};
use core::fmt::{self, Display, Formatter};

/// An error number of Linux (`man 3 errno`), which is the same on all supported processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno {
    /// Name, such as `ENOMEM`.
    pub name: &'static str,
    /// Number, such as 12 for `ENOMEM`.
    pub number: i32,
}

macro_rules! errnos {
    ($($name:ident $number:literal)+) => {
        $(const $name: Errno = Errno { name: stringify!($name), number: $number };)+
        /// All error numbers of rules.
        const ERRNOS: &[Errno] = &[$($name),+];
    };
}

errnos! {
    EPERM 1 ENOENT 2 EINTR 4 EIO 5 EAGAIN 11 ENOMEM 12 EACCES 13 EFAULT 14 EBUSY 16 ENODEV 19 EINVAL 22 EMFILE 24
    ENOSPC 28 ENOSYS 38 EOPNOTSUPP 95 EADDRINUSE 98 EADDRNOTAVAIL 99 ENETUNREACH 101 ECONNRESET 104 ENOBUFS 105
    ENOTCONN 107 ETIMEDOUT 110 ECONNREFUSED 111 EHOSTUNREACH 113
}

impl Errno {
    /// Returns the error number `name`, such as `ENOMEM`.
    pub fn named(name: &str) -> Option<Self> {
        ERRNOS.iter().find(|errno| errno.name == name).copied()
    }
}

/// A call that rules may let fail.
#[derive(Debug, PartialEq, Eq)]
pub struct Verb {
    /// The function of `verbs.h`, `rdma_cma.h` or `rsocket.h`. Variants of a call (`_ex`, `_iova`,
    /// `_iova2`) count as the call.
    pub name: &'static str,
    /// Errors that its man page allows or that the kernel returns, the default first.
    pub errnos: &'static [Errno],
    /// True if the call can fail although the program uses it correctly. A sweep leaves the other
    /// calls, such as `ibv_destroy_qp`, alone.
    pub can_fail_in_correct_use: bool,
}

const fn verb(name: &'static str, errnos: &'static [Errno]) -> Verb {
    Verb { name, errnos, can_fail_in_correct_use: true }
}

const fn destroyer(name: &'static str) -> Verb {
    Verb { name, errnos: &[EBUSY, EINVAL, EIO], can_fail_in_correct_use: false }
}

const CREATE: &[Errno] = &[ENOMEM, EINVAL, ENOSPC, EPERM, EACCES, ENODEV, EIO, EAGAIN, EOPNOTSUPP, ENOSYS];
const QUERY: &[Errno] = &[EIO, EINVAL, ENOMEM, ENODEV, EOPNOTSUPP];
const MODIFY: &[Errno] = &[ENOMEM, EINVAL, EIO, ENODEV, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EOPNOTSUPP];
const POST: &[Errno] = &[ENOMEM, EINVAL, EFAULT];
const WAIT: &[Errno] = &[EINTR, EAGAIN, EIO];
const CM: &[Errno] = &[ENOMEM, EINVAL, ENODEV, EIO, EADDRNOTAVAIL, EADDRINUSE, ENETUNREACH, EHOSTUNREACH, ETIMEDOUT];
const SOCKET: &[Errno] = &[ECONNRESET, ENOMEM, EINTR, EAGAIN, ENOTCONN, ETIMEDOUT, EINVAL, ENOBUFS];

/// The calls that rules may let fail.
pub const VERBS: &[Verb] = &[
    verb("ibv_get_device_list", &[ENOMEM, EPERM, ENOSYS]),
    verb("ibv_open_device", &[ENOMEM, EMFILE, EACCES, EPERM, ENODEV, EIO]),
    verb("ibv_query_device", QUERY),
    verb("ibv_query_port", QUERY),
    verb("ibv_query_gid", QUERY),
    verb("ibv_query_gid_table", QUERY),
    verb("ibv_query_pkey", QUERY),
    verb("ibv_get_pkey_index", QUERY),
    verb("ibv_query_rt_values", QUERY),
    verb("ibv_alloc_pd", CREATE),
    verb("ibv_alloc_td", CREATE),
    verb("ibv_alloc_parent_domain", CREATE),
    verb("ibv_open_xrcd", CREATE),
    verb("ibv_reg_mr", &[ENOMEM, EINVAL, EFAULT, EPERM, EACCES, EAGAIN, EIO, EOPNOTSUPP]),
    verb("ibv_reg_dmabuf_mr", CREATE),
    verb("ibv_rereg_mr", &[ENOMEM, EINVAL, EFAULT]),
    verb("ibv_advise_mr", &[EFAULT, EINVAL, EOPNOTSUPP]),
    verb("ibv_alloc_mw", CREATE),
    verb("ibv_bind_mw", &[ENOMEM, EINVAL, EPERM, EOPNOTSUPP]),
    verb("ibv_alloc_dm", CREATE),
    verb("ibv_reg_dm_mr", CREATE),
    verb("ibv_create_comp_channel", &[ENOMEM, EMFILE, EIO]),
    verb("ibv_create_cq", CREATE),
    verb("ibv_resize_cq", MODIFY),
    verb("ibv_modify_cq", MODIFY),
    verb("ibv_req_notify_cq", &[EIO, ENOMEM]),
    verb("ibv_get_cq_event", WAIT),
    verb("ibv_get_async_event", WAIT),
    verb("ibv_create_qp", CREATE),
    verb("ibv_open_qp", CREATE),
    verb("ibv_modify_qp", MODIFY),
    verb("ibv_query_qp", QUERY),
    verb("ibv_create_srq", CREATE),
    verb("ibv_modify_srq", MODIFY),
    verb("ibv_query_srq", QUERY),
    verb("ibv_create_ah", &[ENOMEM, EINVAL, ENODEV, EIO, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH]),
    verb("ibv_create_ah_from_wc", &[ENOMEM, EINVAL, ENODEV, EIO]),
    verb("ibv_init_ah_from_wc", &[EINVAL, EIO]),
    verb("ibv_attach_mcast", MODIFY),
    verb("ibv_detach_mcast", MODIFY),
    verb("ibv_create_wq", CREATE),
    verb("ibv_modify_wq", MODIFY),
    verb("ibv_create_rwq_ind_table", CREATE),
    verb("ibv_create_flow", CREATE),
    verb("ibv_create_counters", CREATE),
    verb("ibv_post_send", POST),
    verb("ibv_post_recv", POST),
    verb("ibv_post_srq_recv", POST),
    verb("ibv_wr_complete", POST),
    verb("ibv_poll_cq", &[EIO, EINVAL]),
    verb("ibv_start_poll", &[EIO, EINVAL]),
    destroyer("ibv_close_device"),
    destroyer("ibv_dealloc_pd"),
    destroyer("ibv_dereg_mr"),
    destroyer("ibv_dealloc_mw"),
    destroyer("ibv_free_dm"),
    destroyer("ibv_destroy_comp_channel"),
    destroyer("ibv_destroy_cq"),
    destroyer("ibv_destroy_qp"),
    destroyer("ibv_destroy_srq"),
    destroyer("ibv_destroy_ah"),
    destroyer("ibv_destroy_wq"),
    destroyer("ibv_destroy_rwq_ind_table"),
    destroyer("ibv_destroy_flow"),
    verb("rdma_create_event_channel", &[ENODEV, EMFILE, ENOMEM]),
    verb("rdma_create_id", CM),
    verb("rdma_bind_addr", &[EADDRINUSE, EADDRNOTAVAIL, ENODEV, ENOMEM, EINVAL]),
    verb("rdma_listen", &[EADDRINUSE, ENOMEM, EINVAL, ENODEV]),
    verb("rdma_resolve_addr", CM),
    verb("rdma_resolve_route", CM),
    verb("rdma_create_qp", CREATE),
    verb("rdma_create_srq", CREATE),
    verb("rdma_connect", &[ENOMEM, EINVAL, EIO, ENODEV, ECONNREFUSED, ETIMEDOUT]),
    verb("rdma_accept", &[ENOMEM, EINVAL, EIO, ENODEV, ETIMEDOUT]),
    verb("rdma_reject", CM),
    verb("rdma_establish", CM),
    verb("rdma_disconnect", CM),
    verb("rdma_get_cm_event", WAIT),
    verb("rdma_get_request", WAIT),
    verb("rdma_create_ep", CM),
    verb("rdma_join_multicast", CM),
    verb("rdma_set_option", CM),
    verb("rdma_migrate_id", CM),
    verb("rdma_get_devices", &[ENOMEM, ENODEV]),
    destroyer("rdma_destroy_id"),
    verb("rsocket", &[ENOMEM, EMFILE, ENODEV]),
    verb("rbind", &[EADDRINUSE, EADDRNOTAVAIL, EINVAL]),
    verb("rlisten", &[EADDRINUSE, EINVAL]),
    verb("raccept", &[EMFILE, EINTR, EAGAIN, ENOMEM]),
    verb("rconnect", &[ECONNREFUSED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EINTR]),
    verb("rsend", SOCKET),
    verb("rsendto", SOCKET),
    verb("rwrite", SOCKET),
    verb("rwritev", SOCKET),
    verb("rrecv", SOCKET),
    verb("rrecvfrom", SOCKET),
    verb("rread", SOCKET),
    verb("rreadv", SOCKET),
    verb("rpoll", &[EINTR, ENOMEM]),
];

impl Verb {
    /// Returns the verb `name`: a function, or its name without `ibv_` or `rdma_` if that is
    /// unambiguous (`rdma_create_qp` needs its prefix).
    pub fn named(name: &str) -> Option<&'static Self> {
        let is = |verb: &&Self| verb.name == name || verb.name.strip_prefix("ibv_") == Some(name);
        let is_rdma = |verb: &&Self| verb.name.strip_prefix("rdma_") == Some(name);
        VERBS.iter().find(is).or_else(|| VERBS.iter().find(is_rdma))
    }

    /// Returns the verb that a call of `function` counts as; `None` for functions that never fail.
    pub fn called(function: &str) -> Option<&'static Self> {
        let name = ["_iova2", "_iova", "_ex"].iter().find_map(|variant| function.strip_suffix(variant));
        let is = |verb: &&Self| verb.name == name.unwrap_or(function);
        VERBS.iter().find(is)
    }
}

/// An event that rules may raise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventFault {
    /// The port is down for the time of the rule.
    PortErr,
    /// The GID table changed.
    GidChange,
    /// The device failed.
    DeviceFatal,
    /// The queue pair of a completion failed and enters the error state.
    QpFatal,
    /// The completion queue of a completion failed and accepts no more entries.
    CqErr,
    /// `rdma_resolve_addr` finds no route.
    AddrError,
    /// `rdma_resolve_route` finds no path.
    RouteError,
    /// The request of `rdma_connect` is rejected, because the peer has no listener.
    Rejected,
    /// The request of `rdma_connect` is not answered.
    Unreachable,
    /// An established connection ends after the time of the rule.
    Disconnected,
}

const EVENTS: [(&str, EventFault); 10] = [
    ("PORT_ERR", EventFault::PortErr),
    ("GID_CHANGE", EventFault::GidChange),
    ("DEVICE_FATAL", EventFault::DeviceFatal),
    ("QP_FATAL", EventFault::QpFatal),
    ("CQ_ERR", EventFault::CqErr),
    ("ADDR_ERROR", EventFault::AddrError),
    ("ROUTE_ERROR", EventFault::RouteError),
    ("REJECTED", EventFault::Rejected),
    ("UNREACHABLE", EventFault::Unreachable),
    ("DISCONNECTED", EventFault::Disconnected),
];

impl EventFault {
    /// Returns the event `name`.
    pub fn named(name: &str) -> Option<Self> {
        EVENTS.iter().find(|(event, _)| *event == name).map(|(_, event)| *event)
    }

    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        EVENTS.iter().map(|(name, _)| *name)
    }

    /// Returns the name in rules.
    pub fn name(self) -> &'static str {
        EVENTS.iter().find(|(_, event)| *event == self).map_or("", |(name, _)| name)
    }

    /// Returns true if this is an event of the device, which any call may raise.
    pub(super) const fn is_of_device(self) -> bool {
        matches!(self, Self::PortErr | Self::GidChange | Self::DeviceFatal)
    }

    /// Returns true if a completion raises this event.
    pub(super) const fn is_of_completion(self) -> bool {
        matches!(self, Self::QpFatal | Self::CqErr)
    }

    /// Returns true if the event accepts `by=TIME`.
    pub(super) const fn takes_time(self) -> bool {
        matches!(self, Self::PortErr | Self::Disconnected)
    }
}

/// The statuses of failed completions, by their names in `enum ibv_wc_status` without `IBV_WC_`.
const STATUSES: [(&str, WcStatus); 14] = [
    ("LOC_LEN_ERR", WcStatus::LocLenErr),
    ("LOC_QP_OP_ERR", WcStatus::LocQpOpErr),
    ("LOC_PROT_ERR", WcStatus::LocProtErr),
    ("WR_FLUSH_ERR", WcStatus::WrFlushErr),
    ("MW_BIND_ERR", WcStatus::MwBindErr),
    ("BAD_RESP_ERR", WcStatus::BadRespErr),
    ("LOC_ACCESS_ERR", WcStatus::LocAccessErr),
    ("REM_INV_REQ_ERR", WcStatus::RemInvReqErr),
    ("REM_ACCESS_ERR", WcStatus::RemAccessErr),
    ("REM_OP_ERR", WcStatus::RemOpErr),
    ("RETRY_EXC_ERR", WcStatus::RetryExcErr),
    ("RNR_RETRY_EXC_ERR", WcStatus::RnrRetryExcErr),
    ("LOC_EEC_OP_ERR", WcStatus::LocEecOpErr),
    ("GENERAL_ERR", WcStatus::GeneralErr),
];

/// Returns the status `name`.
pub(super) fn status_named(name: &str) -> Option<WcStatus> {
    STATUSES.iter().find(|(status, _)| *status == name).map(|(_, status)| *status)
}

/// Returns the names of all statuses.
pub(super) fn status_names() -> Vec<&'static str> {
    STATUSES.iter().map(|(name, _)| *name).collect()
}

fn status_name(status: WcStatus) -> &'static str {
    STATUSES.iter().find(|(_, known)| *known == status).map_or("", |(name, _)| name)
}

/// Operations of completions.
const OPERATIONS: [(&str, &[WcOpcode]); 7] = [
    ("SEND", &[WcOpcode::Send]),
    ("WRITE", &[WcOpcode::RdmaWrite]),
    ("READ", &[WcOpcode::RdmaRead]),
    ("ATOMIC", &[WcOpcode::CompareSwap, WcOpcode::FetchAdd, WcOpcode::AtomicWrite]),
    ("BIND", &[WcOpcode::BindWindow]),
    ("INVALIDATE", &[WcOpcode::LocalInvalidate]),
    ("RECV", &[WcOpcode::Recv, WcOpcode::RecvRdmaWithImm]),
];

/// A set of operations of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WcOps(u8);

impl WcOps {
    /// Returns the operation `name`: `SEND`, `WRITE`, `READ`, `ATOMIC`, `BIND`, `INVALIDATE` or
    /// `RECV`.
    pub fn named(name: &str) -> Option<Self> {
        OPERATIONS.iter().position(|(operation, _)| operation.eq_ignore_ascii_case(name)).map(|at| Self(1 << at))
    }

    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        OPERATIONS.iter().map(|(name, _)| *name)
    }

    /// Returns the name of the operation of a completion; `None` for others, such as tag matching.
    pub fn name_of(opcode: WcOpcode) -> Option<&'static str> {
        OPERATIONS.iter().find(|(_, opcodes)| opcodes.contains(&opcode)).map(|(name, _)| *name)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn contains(self, opcode: WcOpcode) -> bool {
        let has =
            |(at, (_, opcodes)): (usize, &(&str, &[WcOpcode]))| self.0 & 1 << at != 0 && opcodes.contains(&opcode);
        OPERATIONS.iter().enumerate().any(has)
    }
}

/// Action of a rule about calls, completions or events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallAction {
    /// A call fails.
    Fail {
        /// The verb that fails.
        verb: &'static Verb,
        /// For `ibv_modify_qp`: only calls with this state, such as `RTR`.
        state: Option<Box<str>>,
        /// Error that the call returns.
        errno: Errno,
        /// True if `errno` may be one that the call never returns.
        illegal: bool,
    },
    /// A call returns later.
    Slow {
        /// The verb that returns later.
        verb: &'static Verb,
        /// Requested state of `ibv_modify_qp`; `None` matches any.
        state: Option<Box<str>>,
        /// Time before the call.
        by: Hold,
    },
    /// A completion reports a failure, and its queue pair enters the error state.
    Complete(WcStatus),
    /// An event is raised.
    Event {
        /// Kind of the event.
        event: EventFault,
        /// The call that raises an event of the device; `None` is the opening of the device.
        call: Option<&'static Verb>,
        /// Time, for events that have one.
        by: Option<Hold>,
    },
}

/// A rule about calls, completions or events. A field that is `None` allows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRule {
    /// Effect on a matching call, completion or event.
    pub action: CallAction,
    /// Share of the calls, completions or events that all other fields allow.
    pub rate: Option<Rate>,
    /// Program, or program and arguments; see [`Process`].
    pub process: Option<Box<str>>,
    /// Function of the program, `file:line`, or `file+0xoffset`, somewhere on the stack of the
    /// call.
    pub site: Option<Box<str>>,
    /// Time since the process opened its first device.
    pub at: Option<Window>,
    /// Local queue pair of the completion.
    pub qp: Option<QpSelector>,
    /// Operations of the completion.
    pub ops: Option<WcOps>,
    /// `wr_id` of the completion.
    pub wr_id: Option<Spans>,
    /// Positions among those that the fields above allow, from 1.
    pub nth: Option<Spans>,
    /// Maximum number of faults.
    pub times: Option<u32>,
}

impl CallRule {
    /// Creates a rule that applies `action` to each of its calls, completions or events.
    pub fn new(action: CallAction) -> Self {
        let (rate, process, site, at, qp, ops, wr_id, nth, times) = Default::default();
        Self { action, rate, process, site, at, qp, ops, wr_id, nth, times }
    }
}

/// Identification of a process in rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Name of the program's file.
    pub program: String,
    /// Hash of the arguments.
    pub arguments: u32,
}

impl Process {
    /// Returns the process with this command line, as in `/proc/PID/cmdline`: each argument ends
    /// with a zero byte.
    pub fn of_command_line(line: &[u8]) -> Self {
        let end = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
        let program = String::from_utf8_lossy(&line[..end]);
        let program = program.rsplit('/').next().unwrap_or_default();
        let name = program.chars().map(|c| if c.is_whitespace() || c == ';' || c == ':' { '_' } else { c }).collect();
        let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        Self { program: name, arguments: line[end..].iter().fold(0x811c_9dc5, hash) }
    }

    /// Returns true if `process=NAME` or `process=NAME:HASH` means this process.
    pub fn is(&self, named: &str) -> bool {
        named == self.program || named == self.to_string()
    }
}

impl Display for Process {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:08x}", self.program, self.arguments)
    }
}

impl Display for CallRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        write_word(f, "", self.rate.as_ref())?;
        write_word(f, "process=", self.process.as_ref())?;
        write_word(f, "site=", self.site.as_ref())?;
        write_word(f, "at=", self.at.as_ref())?;
        write_word(f, "qp=", self.qp.as_ref())?;
        write_word(f, "op=", self.ops.as_ref())?;
        write_word(f, "wr_id=", self.wr_id.as_ref())?;
        write_word(f, "nth=", self.nth.as_ref())?;
        write_word(f, "times=", self.times.as_ref())
    }
}

impl Display for CallAction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail { verb, state, errno, illegal } => {
                write!(f, "fail {}", verb.name)?;
                write_word(f, "", state.as_ref())?;
                write!(f, " errno={}", errno.name)?;
                if *illegal { f.write_str(" illegal") } else { Ok(()) }
            }
            Self::Slow { verb, state, by } => {
                write!(f, "slow {}", verb.name)?;
                write_word(f, "", state.as_ref())?;
                write!(f, " by={by}")
            }
            Self::Complete(status) => write!(f, "complete {}", status_name(*status)),
            Self::Event { event, call, by } => {
                write!(f, "event {}", event.name())?;
                write_word(f, "call=", call.map(|verb| verb.name).as_ref())?;
                write_word(f, "by=", by.as_ref())
            }
        }
    }
}

impl Display for WcOps {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let names = OPERATIONS.iter().enumerate().filter(|(at, _)| self.0 & 1 << at != 0).map(|(_, (name, _))| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// A call to judge.
#[derive(Debug)]
pub struct Call<'a> {
    /// The verb that the program calls.
    pub verb: &'static Verb,
    /// The state that `ibv_modify_qp` requests.
    pub state: Option<&'a str>,
    /// Time since the rules were set.
    pub at: core::time::Duration,
}

/// A completion to judge.
#[derive(Debug)]
pub struct Completion {
    /// Operation of the work request.
    pub opcode: WcOpcode,
    /// Identifier of the work request.
    pub wr_id: u64,
    /// Number of the local queue pair.
    pub qpn: roxe_wire::Qpn,
    /// Number of that queue pair in order of creation, from 0.
    pub ordinal: u32,
    /// Time since the rules were set.
    pub at: core::time::Duration,
}

impl CallRule {
    /// Returns true if the fields that need no counting allow the call; `is_at` compares a site
    /// with the stack of the call.
    pub(super) fn is_for_call(&self, call: &Call<'_>, is_at: &mut dyn FnMut(&str) -> bool) -> bool {
        let is_verb = match &self.action {
            CallAction::Fail { verb, state, .. } | CallAction::Slow { verb, state, .. } => {
                *verb == call.verb && state.as_deref().is_none_or(|state| call.state == Some(state))
            }
            CallAction::Event { call: Some(verb), .. } => *verb == call.verb,
            _ => false,
        };
        is_verb && self.at.is_none_or(|window| window.contains(call.at)) && self.site.as_deref().is_none_or(is_at)
    }

    /// Returns true if the fields that need no counting allow the completion.
    pub(super) fn is_for_completion(&self, done: &Completion) -> bool {
        let is_about = match self.action {
            CallAction::Complete(_) => true,
            CallAction::Event { event, .. } => event.is_of_completion(),
            _ => false,
        };
        is_about
            && self.at.is_none_or(|window| window.contains(done.at))
            && self.qp.is_none_or(|qp| qp.selects(done.qpn, done.ordinal))
            && self.ops.is_none_or(|ops| ops.contains(done.opcode))
            && self.wr_id.as_ref().is_none_or(|ids| ids.contains(done.wr_id))
    }
}
