//! Names and numbers of types, states, opcodes, flags, statuses and events. The names are those of
//! `infiniband/verbs.h` without their prefixes.

/// Names and their numbers.
pub type Table = &'static [(&'static str, u32)];

/// `enum ibv_qp_type`.
pub const QP_TYPES: Table = &[("RC", 2), ("UC", 3), ("UD", 4), ("XRC_SEND", 9), ("XRC_RECV", 10)];

/// `enum ibv_qp_state`.
pub const STATES: Table = &[("RESET", 0), ("INIT", 1), ("RTR", 2), ("RTS", 3), ("SQD", 4), ("SQE", 5), ("ERR", 6)];

/// `enum ibv_wr_opcode`: the opcodes of `post_send`.
pub const SEND_OPCODES: Table = &[
    ("RDMA_WRITE", 0),
    ("RDMA_WRITE_WITH_IMM", 1),
    ("SEND", 2),
    ("SEND_WITH_IMM", 3),
    ("RDMA_READ", 4),
    ("ATOMIC_CMP_AND_SWP", 5),
    ("ATOMIC_FETCH_AND_ADD", 6),
    ("LOCAL_INV", 7),
    ("SEND_WITH_INV", 9),
];

/// `IBV_WR_BIND_MW`, which `bind_mw` posts.
pub const OPCODE_BIND_MW: u32 = 8;

/// `enum ibv_send_flags`.
pub const SEND_FLAGS: Table = &[("FENCE", 1), ("SIGNALED", 2), ("SOLICITED", 4), ("INLINE", 8)];

/// `enum ibv_access_flags`.
pub const ACCESS: Table = &[
    ("LOCAL_WRITE", 1),
    ("REMOTE_WRITE", 2),
    ("REMOTE_READ", 4),
    ("REMOTE_ATOMIC", 8),
    ("MW_BIND", 16),
    ("ZERO_BASED", 32),
    ("FLUSH_GLOBAL", 1 << 8),
    ("FLUSH_PERSISTENT", 1 << 9),
    ("RELAXED_ORDERING", 1 << 20),
];

/// `enum ibv_wc_status`.
pub const WC_STATUSES: Table = &[
    ("SUCCESS", 0),
    ("LOC_LEN_ERR", 1),
    ("LOC_QP_OP_ERR", 2),
    ("LOC_EEC_OP_ERR", 3),
    ("LOC_PROT_ERR", 4),
    ("WR_FLUSH_ERR", 5),
    ("MW_BIND_ERR", 6),
    ("BAD_RESP_ERR", 7),
    ("LOC_ACCESS_ERR", 8),
    ("REM_INV_REQ_ERR", 9),
    ("REM_ACCESS_ERR", 10),
    ("REM_OP_ERR", 11),
    ("RETRY_EXC_ERR", 12),
    ("RNR_RETRY_EXC_ERR", 13),
    ("LOC_RDD_VIOL_ERR", 14),
    ("REM_INV_RD_REQ_ERR", 15),
    ("REM_ABORT_ERR", 16),
    ("INV_EECN_ERR", 17),
    ("INV_EEC_STATE_ERR", 18),
    ("FATAL_ERR", 19),
    ("RESP_TIMEOUT_ERR", 20),
    ("GENERAL_ERR", 21),
    ("TM_ERR", 22),
    ("TM_RNDV_INCOMPLETE", 23),
];

/// `enum ibv_wc_opcode`.
pub const WC_OPCODES: Table = &[
    ("SEND", 0),
    ("RDMA_WRITE", 1),
    ("RDMA_READ", 2),
    ("COMP_SWAP", 3),
    ("FETCH_ADD", 4),
    ("BIND_MW", 5),
    ("LOCAL_INV", 6),
    ("RECV", 128),
    ("RECV_RDMA_WITH_IMM", 129),
    ("TM_ADD", 130),
    ("TM_DEL", 131),
    ("TM_SYNC", 132),
    ("TM_RECV", 133),
    ("TM_NO_TAG", 134),
];

/// `enum ibv_wc_flags`.
pub const WC_FLAGS: Table = &[
    ("GRH", 1),
    ("WITH_IMM", 2),
    ("IP_CSUM_OK", 4),
    ("WITH_INV", 8),
    ("TM_SYNC_REQ", 16),
    ("TM_MATCH", 32),
    ("TM_DATA_VALID", 64),
];

/// `enum ibv_ops_wr_opcode`: operations on the tags of a shared receive queue.
pub const TAG_OPERATIONS: Table = &[("ADD", 0), ("DEL", 1), ("SYNC", 2)];

/// `enum ibv_event_type`.
pub const EVENTS: Table = &[
    ("CQ_ERR", 0),
    ("QP_FATAL", 1),
    ("QP_REQ_ERR", 2),
    ("QP_ACCESS_ERR", 3),
    ("COMM_EST", 4),
    ("SQ_DRAINED", 5),
    ("PATH_MIG", 6),
    ("PATH_MIG_ERR", 7),
    ("DEVICE_FATAL", 8),
    ("PORT_ACTIVE", 9),
    ("PORT_ERR", 10),
    ("LID_CHANGE", 11),
    ("PKEY_CHANGE", 12),
    ("SM_CHANGE", 13),
    ("SRQ_ERR", 14),
    ("SRQ_LIMIT_REACHED", 15),
    ("QP_LAST_WQE_REACHED", 16),
    ("CLIENT_REREGISTER", 17),
    ("GID_CHANGE", 18),
    ("WQ_FATAL", 19),
];

/// `enum ibv_mig_state`.
pub const MIGRATION: Table = &[("MIGRATED", 0), ("REARM", 1), ("ARMED", 2)];

/// `enum rdma_port_space`: for connections, and for lookups of datagram services.
pub const PORT_SPACES: Table = &[("TCP", 0x106), ("UDP", 0x111)];

/// `enum rdma_cm_event_type`.
pub const CM_EVENTS: Table = &[
    ("ADDR_RESOLVED", 0),
    ("ADDR_ERROR", 1),
    ("ROUTE_RESOLVED", 2),
    ("ROUTE_ERROR", 3),
    ("CONNECT_REQUEST", 4),
    ("CONNECT_RESPONSE", 5),
    ("CONNECT_ERROR", 6),
    ("UNREACHABLE", 7),
    ("REJECTED", 8),
    ("ESTABLISHED", 9),
    ("DISCONNECTED", 10),
    ("DEVICE_REMOVAL", 11),
    ("MULTICAST_JOIN", 12),
    ("MULTICAST_ERROR", 13),
    ("ADDR_CHANGE", 14),
    ("TIMEWAIT_EXIT", 15),
];

/// Returns the number of a name.
pub fn number(table: Table, name: &str) -> Option<u32> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// Returns the name of a number, or the number itself.
pub fn name(table: Table, number: u32) -> String {
    table.iter().find(|(_, known)| *known == number).map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

/// Returns the names of the set bits, and one number for the bits without a name.
pub fn flags(table: Table, bits: u32) -> Vec<String> {
    let mut names: Vec<String> =
        table.iter().filter(|(_, bit)| bits & bit != 0).map(|(name, _)| (*name).to_owned()).collect();
    let rest = table.iter().fold(bits, |bits, (_, bit)| bits & !bit);
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names
}
