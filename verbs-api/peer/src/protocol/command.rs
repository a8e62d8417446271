//! The commands and the names of their arguments. Touches nothing.

/// The enumeration, the names and the arguments of each command, told once.
macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident $name:literal [$($argument:literal)*];)+) => {
        /// What an agent can be told to do; its arguments are those of the verb of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $($(#[$doc])* $variant,)+
        }

        impl Command {
            /// Every command.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Its name, which stands in `"do"`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The names of its arguments.
            #[must_use]
            pub const fn arguments(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($argument,)*],)+
                }
            }
        }
    };
}

commands! {
    /// Opens the session: the token, then what the card is.
    Hello "hello" ["token"];
    /// Registers memory of the agent: `{mr, addr, lkey, rkey}`.
    Reg "reg" ["length" "access" "fill" "pd"];
    /// Deregisters it.
    Dereg "dereg" ["mr"];
    /// `{pd}`.
    AllocPd "alloc_pd" [];
    /// `{cq, cqe}`.
    CreateCq "create_cq" ["cqe"];
    /// `{srq}`; in a domain of XRC, with the completion queue `cq`, `{srq, srqn}`.
    CreateSrq "create_srq" ["pd" "max_wr" "max_sge" "xrcd" "cq"];
    /// Opens a domain of XRC: `{xrcd}`.
    OpenXrcd "open_xrcd" [];
    /// `{qp, qpn, cq, recv_cq}`.
    CreateQp "create_qp"
        ["type" "pd" "cq" "recv_cq" "srq" "xrcd" "max_send_wr" "max_recv_wr" "max_sge" "max_inline" "sig_all"];
    /// Changes state and attributes; what the change needs and nobody said has a default, unless
    /// `exact` is true.
    ModifyQp "modify_qp"
        ["qp" "to" "exact" "port" "access" "qkey" "path_mtu" "dest_qpn" "rq_psn" "sq_psn" "dgid" "sgid_index"
         "hop_limit" "traffic_class" "flow_label" "sl" "timeout" "retry_cnt" "rnr_retry" "min_rnr_timer"
         "max_rd_atomic" "max_dest_rd_atomic" "pkey_index" "sqd_event" "alt_dgid" "alt_timeout" "path_mig"];
    /// The attributes.
    QueryQp "query_qp" ["qp"];
    /// Posts one send request.
    PostSend "post_send"
        ["qp" "wr_id" "opcode" "flags" "sge" "remote_addr" "rkey" "imm" "invalidate_rkey" "compare_add" "swap"
         "inline_data" "ah" "remote_qpn" "remote_qkey" "remote_srqn"];
    /// Posts one receive request, on a QP or an SRQ.
    PostRecv "post_recv" ["qp" "srq" "wr_id" "sge"];
    /// Takes completions, after waiting for `min` (1) of them: `{completions}`.
    Poll "poll" ["cq" "max" "min" "timeout_ms"];
    /// Asks for an event of the next completion, or of the next solicited one.
    Notify "notify" ["cq" "solicited"];
    /// Waits for that event: `{fired}`.
    CqEvent "cq_event" ["cq" "timeout_ms"];
    /// Bytes of a region: `{hex}`, or `{runs}`.
    Read "read" ["mr" "offset" "length" "runs"];
    /// Writes them, or `length` times the byte `fill`.
    Write "write" ["mr" "offset" "hex" "fill" "length"];
    /// Asynchronous events, after waiting for one: `{events}`.
    Events "events" ["timeout_ms"];
    /// `{ah}`.
    CreateAh "create_ah" ["pd" "dgid" "sgid_index" "port" "hop_limit" "traffic_class" "flow_label" "sl"];
    /// `{mw, rkey}`.
    AllocMw "alloc_mw" ["pd" "type"];
    /// Posts the binding of a window: `{rkey}`.
    BindMw "bind_mw" ["qp" "mw" "mr" "offset" "length" "access" "wr_id" "flags"];
    /// Joins a UD QP to a multicast group.
    AttachMcast "attach_mcast" ["qp" "gid"];
    /// Leaves it.
    DetachMcast "detach_mcast" ["qp" "gid"];
    /// Listens for requests at an address and a port, 0: any: `{cm, port}`.
    CmListen "cm_listen" ["gid" "port" "space" "backlog"];
    /// Asks for a connection to a service, with a queue pair on its way to INIT: `{cm}`.
    CmConnect "cm_connect"
        ["gid" "from" "port" "space" "qp" "hex" "responder_resources" "initiator_depth" "retry_cnt" "rnr_retry"];
    /// Accepts a request; the queue pair is brought to RTS, or only as far as `to`.
    CmAccept "cm_accept"
        ["cm" "qp" "to" "hex" "responder_resources" "initiator_depth" "retry_cnt" "rnr_retry"];
    /// Confirms a response; the queue pair is brought to RTS.
    CmEstablish "cm_establish" ["cm" "qp"];
    /// Refuses a request or a response.
    CmReject "cm_reject" ["cm" "hex"];
    /// Ends a connection, or agrees to its end.
    CmDisconnect "cm_disconnect" ["cm"];
    /// Tells librdmacm that COMM_EST was raised.
    CmNotify "cm_notify" ["cm"];
    /// Events of the connection manager, after waiting for one: `{events}`.
    CmEvents "cm_events" ["timeout_ms"];
    /// The hardware counters of the port: `{name: value}`.
    Counters "counters" [];
    /// Destroys an object.
    Destroy "destroy" ["kind" "handle"];
    /// Destroys all of them.
    Reset "reset" [];
    /// Ends the session.
    Bye "bye" [];
}

impl Command {
    /// The command of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|command| command.name() == name)
    }
}
