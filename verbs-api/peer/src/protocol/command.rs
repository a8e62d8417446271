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
    /// `{srq}`.
    CreateSrq "create_srq" ["pd" "max_wr" "max_sge"];
    /// `{qp, qpn, cq, recv_cq}`.
    CreateQp "create_qp"
        ["type" "pd" "cq" "recv_cq" "srq" "max_send_wr" "max_recv_wr" "max_sge" "max_inline" "sig_all"];
    /// Changes state and attributes; what the change needs and nobody said has a default, unless
    /// `exact` is true.
    ModifyQp "modify_qp"
        ["qp" "to" "exact" "port" "access" "qkey" "path_mtu" "dest_qpn" "rq_psn" "sq_psn" "dgid" "sgid_index"
         "hop_limit" "traffic_class" "flow_label" "sl" "timeout" "retry_cnt" "rnr_retry" "min_rnr_timer"
         "max_rd_atomic" "max_dest_rd_atomic" "pkey_index" "sqd_event"];
    /// The attributes.
    QueryQp "query_qp" ["qp"];
    /// Posts one send request.
    PostSend "post_send"
        ["qp" "wr_id" "opcode" "flags" "sge" "remote_addr" "rkey" "imm" "invalidate_rkey" "compare_add" "swap"
         "inline_data" "ah" "remote_qpn" "remote_qkey"];
    /// Posts one receive request, on a QP or an SRQ.
    PostRecv "post_recv" ["qp" "srq" "wr_id" "sge"];
    /// Takes completions, after waiting for `min` (1) of them: `{completions}`.
    Poll "poll" ["cq" "max" "min" "timeout_ms"];
    /// Asks for an event of the next completion, or of the next solicited one.
    Notify "notify" ["cq" "solicited"];
    /// Waits for that event: `{fired}`.
    CqEvent "cq_event" ["cq" "timeout_ms"];
    /// Bytes of a region: `{hex}`.
    Read "read" ["mr" "offset" "length"];
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
