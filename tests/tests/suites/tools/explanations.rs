//! Checks that `roxe run --explain` explains each failure by its cause, so that causes with the
//! same status or errno can be distinguished. `tests/clients/misuse/failure.c` has the programs.
//! Runs on both links and, as root, towards another host.

use roxe_tests::guest::link;
use roxe_tests::pair::{self, Launch, Program};
use roxe_tests::report::{self, Check, Verdict};
use roxe_tests::veth::{Interface, Veth};
use roxe_tests::{cc, misuse};
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Programs, and words of their explanations.
const CASES: [(&str, &[&str]); 52] = [
    ("retry-no-process", &["(12)", "no process of this user on this host has the queue pair"]),
    ("retry-no-queue-pair", &["(12)", "has no queue pair"]),
    ("retry-not-connected", &["(12)", "is in state Init, which accepts no such packets"]),
    ("retry-in-error", &["(12)", "is in state Err, which accepts no such packets"]),
    ("retry-psn", &["(12)", "its rq_psn 0x500000 is not the sq_psn of its peer, 0x7", "state RTS", "timeout; PSN 7"]),
    ("retry-dest", &["(12)", "as its dest_qp_num instead of 0x", "set dest_qp_num of each end"]),
    ("retry-gid", &["(12)", "compare the GIDs of both ends"]),
    ("retry-died", &["(12)", "has died"]),
    ("retry-stopped", &["(12)", "is stopped"]),
    ("access-key", &["(10)", "there is no region or window with this key"]),
    ("access-dead", &["(10)", "the region or window that had this key is gone"]),
    ("access-range", &["(10)", "the range is not inside the region, which has 65536 bytes from 0x"]),
    ("access-right", &["(10)", "does not grant IBV_ACCESS_REMOTE_WRITE; it grants IBV_ACCESS_LOCAL_WRITE and IBV"]),
    ("access-domain", &["(10)", "the key belongs to another protection domain"]),
    ("access-unmapped", &["(11)", "is no longer mapped"]),
    ("access-readonly", &["(11)", "the memory is mapped read-only now, without PROT_WRITE"]),
    ("window-invalidated", &["(10)", "the memory window with this key is not bound: it was invalidated"]),
    ("window-old-key", &["(10)", "the memory window was bound again, under the key 0x"]),
    ("window-other-qp", &["(10)", "the memory window of type 2 with this key is bound to another queue pair"]),
    ("window-right", &["(10)", "does not grant IBV_ACCESS_REMOTE_WRITE; it grants IBV_ACCESS_REMOTE_READ"]),
    ("bind-right", &["(6)", "does not grant IBV_ACCESS_MW_BIND; it grants"]),
    ("bind-twice", &["(6)", "of type 2 is bound already"]),
    ("invalidate-region", &["(6)", "is that of a region, and only memory windows of type 2 can be invalidated"]),
    (
        "send-invalidate",
        &["SEND with wr_id 23", "(10)", "is that of a region, and only memory windows", "receive with wr_id 1 "],
    ),
    ("invalid-not-enabled", &["(9)", "its qp_access_flags lack the right (they are IBV_ACCESS_REMOTE_READ)"]),
    ("invalid-too-long", &["(9)", "longer than the receive that was posted"]),
    ("invalid-misaligned", &["(9)", "not a multiple of 8"]),
    ("operation-list", &["(11)", "the list of the receive for it cannot be written"]),
    ("rnr-shared", &["(13)", "had no receive posted: its shared receive queue (handle "]),
    ("rnr-mute", &["(13)", "the peer had no receive posted", "records no reasons: start it with"]),
    ("rnr", &["(13)", "had no receive posted", "RNR NAK received; PSN 7", "state ERR"]),
    ("local-key", &["(4)", "there is no region or window with this key"]),
    ("local-range", &["(4)", "the range is not inside the region"]),
    ("local-domain", &["(4)", "the key belongs to another protection domain"]),
    ("local-right", &["(4)", "the region does not grant IBV_ACCESS_LOCAL_WRITE"]),
    ("local-atomic", &["(1)", "the list of an atomic has to have 8 bytes"]),
    (
        "receive-short",
        &["receive with wr_id 23", "(1)", "the message is longer than the receive that was posted for it"],
    ),
    ("datagram-long", &["(1)", "the message is longer than the MTU of the port, 4096 bytes"]),
    ("datagram-grh", &["a message was lost", "of which the first 40 bytes are for the GRH"]),
    (
        "flushed",
        &[
            "are flushed (5), the first with wr_id 23: the program moved the queue pair to ERR (ibv_modify_qp or rdma_disconnect)",
        ],
    ),
    (
        "flushed-by-peer",
        &["are flushed (5), the first with wr_id 23: ", "no request of its own had failed: after \"rkey 0x"],
    ),
    ("overrun", &["it has 2 entries, all unpolled", "(IBV_EVENT_CQ_ERR)"]),
    ("queue-full", &["ibv_post_send failed: the queue is full: max_send_wr is 16", "Cannot allocate memory"]),
    ("state-missing", &["ibv_modify_qp failed: the transition also needs", "DEST_QPN"]),
    ("gid-index", &["ibv_create_ah failed: GID index 9 is empty"]),
    ("memory-hole", &["ibv_reg_mr failed: 12288 bytes at 0x", "are not mapped", "Bad address"]),
    ("cm-nobody-listens", &["RDMA_CM_EVENT_REJECTED, status 8", "no program listens at 127.0.0.1 port 7"]),
    ("cm-refused", &["RDMA_CM_EVENT_REJECTED, status 28", "rdma_reject", "private data \"no such tenant\""]),
    (
        "cm-backlog",
        &["RDMA_CM_EVENT_REJECTED, status 28", "the listener's backlog is full: its program has not read 1 requests"],
    ),
    ("cm-stale", &["RDMA_CM_EVENT_REJECTED, status 10", "is in timewait", "create a new queue pair"]),
    ("cm-own-queue-pair", &["RDMA_CM_EVENT_CONNECT_ERROR", "this end's queue pair could not change its state"]),
    ("cm-create-qp", &["rdma_create_qp failed: max_send_sge is 1000; the device takes at most 32"]),
];

/// Programs that confuse the lkey and rkey of a region, which differ only under the checker, and
/// words of their explanations.
const CHECKED: [(&str, &[&str]); 2] = [
    ("local-rkey", &["(4)", "the key is the rkey of a region, and lists need the lkey", "use ibv_mr.lkey"]),
    (
        "key-confused",
        &["(10)", "the key is the lkey of a region, and a peer needs the rkey", "send the peer ibv_mr.rkey"],
    ),
];

/// Tables of refused verbs, each of which runs in one process. A row has a name, and words of its
/// line about the argument, its value and the accepted values.
const REFUSED: [(&str, &[(&str, &str)]); 3] = [
    (
        "refused-creations",
        &[
            ("cq-size", "ibv_create_cq failed: cqe is 1073741824; it must be 1 to 1048576"),
            ("cq-negative", "ibv_create_cq failed: cqe is -1; accepted is 1 to max_cqe"),
            ("cq-vector", "ibv_create_cq failed: comp_vector 99 does not exist; the device has vector 0"),
            ("cq-channel", "ibv_create_cq failed: there is no ibv_comp_channel at 0x"),
            (
                "cq-wc-flags",
                "ibv_create_cq_ex failed: wc_flags is 0x100000; accepted are the bits of enum ibv_create_cq_wc_flags",
            ),
            (
                "cq-comp-mask",
                "ibv_create_cq_ex failed: comp_mask is 0x80; accepted are the bits of enum ibv_cq_init_attr_mask",
            ),
            (
                "cq-flags",
                "ibv_create_cq_ex failed: flags is 0x100; accepted are the bits of enum ibv_create_cq_attr_flags",
            ),
            ("cq-resize", "ibv_resize_cq failed: cqe is 1073741824; it must be 1 to 1048576"),
            (
                "cq-busy",
                "ibv_destroy_cq failed: the completion queue is still used by 2 send and receive queues of queue pairs",
            ),
            ("cq-overwritten", "ibv_resize_cq failed: the ibv_cq at 0x"),
            ("qp-null-cq", "ibv_create_qp failed: the ibv_cq is NULL"),
            ("qp-destroyed-cq", "ibv_create_qp failed: there is no ibv_cq at 0x"),
            (
                "qp-foreign-cq",
                "ibv_create_qp failed: a completion queue belongs to another context than the protection domain",
            ),
            ("qp-pd-for-cq", "is not of kind ibv_cq"),
            ("qp-null-pd", "ibv_create_qp failed: the ibv_pd is NULL"),
            ("qp-destroyed-pd", "ibv_create_qp failed: there is no ibv_pd at 0x"),
            ("qp-destroyed-srq", "ibv_create_qp failed: there is no ibv_srq at 0x"),
            ("qp-foreign-srq", "ibv_create_qp failed: the shared receive queue belongs to another context"),
            ("qp-null-attr", "ibv_create_qp failed: init is NULL"),
            ("qp-type", "ibv_create_qp failed: qp_type is 99; accepted are RC 2, UC 3, UD 4"),
            ("qp-send-wr", "ibv_create_qp failed: max_send_wr is 1073741824; the device takes at most 16384"),
            ("qp-recv-wr", "ibv_create_qp failed: max_recv_wr is 1073741824; the device takes at most 16384"),
            ("qp-send-sge", "ibv_create_qp failed: max_send_sge is 1000; the device takes at most 32"),
            ("qp-recv-sge", "ibv_create_qp failed: max_recv_sge is 1000; the device takes at most 32"),
            ("qp-inline", "ibv_create_qp failed: max_inline_data is 1048576; the device takes at most 1024"),
            (
                "qp-comp-mask",
                "ibv_create_qp_ex failed: comp_mask is 0x8001; accepted are the bits of enum ibv_qp_init_attr_mask",
            ),
            ("qp-no-pd", "ibv_create_qp_ex failed: comp_mask is 0x0, without the bit for pd"),
            (
                "qp-create-flags",
                "ibv_create_qp_ex failed: create_flags is 0x40000000; accepted are the bits of enum ibv_qp_create_flags",
            ),
            (
                "qp-send-ops",
                "ibv_create_qp_ex failed: send_ops_flags is 0x40000000; accepted are the bits of enum ibv_qp_create_send_ops",
            ),
            ("srq-size", "ibv_create_srq failed: max_wr is 1073741824; it must be 1 to 32768"),
            ("srq-sge", "ibv_create_srq failed: max_sge is 1000; the device takes at most 32"),
            ("srq-limit", "ibv_modify_srq failed: srq_limit is 9; it must be at most max_wr, 4"),
            (
                "srq-comp-mask",
                "ibv_create_srq_ex failed: comp_mask is 0x100; accepted are the bits of enum ibv_srq_init_attr_mask",
            ),
            (
                "srq-mask",
                "ibv_modify_srq failed: srq_attr_mask is 0x80; accepted are IBV_SRQ_MAX_WR 1, IBV_SRQ_LIMIT 2",
            ),
            ("pd-busy", "ibv_dealloc_pd failed: the protection domain is still used by"),
        ],
    ),
    (
        "refused-changes",
        &[
            (
                "init-access",
                "ibv_modify_qp failed: qp_access_flags is 0x8000; accepted are the bits of enum ibv_access_flags",
            ),
            ("init-port", "ibv_modify_qp failed: the value of PORT is out of range: it is 9; accepted is 1"),
            ("init-pkey", "ibv_modify_qp failed: the value of PKEY_INDEX is out of range: it is 7; accepted is 0"),
            ("init-state", "ibv_modify_qp failed: qp_state is 0x11; accepted are the values of enum ibv_qp_state"),
            ("init-to-rts", "ibv_modify_qp failed: a queue pair cannot go from Reset to Rts"),
            (
                "init-mask",
                "ibv_modify_qp failed: attr_mask is 0x40000039; accepted are the bits of enum ibv_qp_attr_mask",
            ),
            ("init-forbidden", "ibv_modify_qp failed: the transition does not accept QKEY"),
            ("init-null", "ibv_modify_qp failed: attr is NULL"),
            ("rtr-mtu-0", "ibv_modify_qp failed: path_mtu is 0x0; accepted are the values of enum ibv_mtu, 1 to 5"),
            ("rtr-depth", "the value of MAX_DEST_RD_ATOMIC is out of range: it is 200; accepted is 0 to 128"),
            ("rtr-gid-index", "ibv_modify_qp failed: GID index 99 is empty"),
            ("rtr-group", "ibv_modify_qp failed: source ::ffff:127.0.0.1 and destination ff00::ffff:7f00:1"),
            ("rts-timeout", "the value of TIMEOUT is out of range: it is 40; accepted is 0 to 31"),
            ("rts-retry", "the value of RETRY_CNT is out of range: it is 9; accepted is 0 to 7"),
            ("rts-rnr-retry", "the value of RNR_RETRY is out of range: it is 8; accepted is 0 to 7"),
            ("rts-depth", "the value of MAX_QP_RD_ATOMIC is out of range: it is 200; accepted is 0 to 128"),
            (
                "current-state",
                "the value of CUR_STATE is out of range: it is Sqd; accepted is the state that the queue pair is in, Rts",
            ),
            ("destroyed-qp", "ibv_modify_qp failed: there is no ibv_qp at 0x"),
            ("ah-port", "ibv_create_ah failed: port 9 does not exist; the device has port 1"),
            ("ah-null", "ibv_create_ah failed: attr is NULL"),
            ("query-port", "ibv_query_port failed: port 9 does not exist; the device has port 1"),
            ("query-gid", "ibv_query_gid failed: index 9999 is outside the GID table"),
            ("query-null", "ibv_query_qp failed: attr is NULL"),
        ],
    ),
    (
        "refused-requests",
        &[
            (
                "send-state",
                "ibv_post_send failed: the queue pair is not in a state that accepts this work request: it is in Init",
            ),
            (
                "send-sges",
                "ibv_post_send failed: the scatter/gather list has too many elements: num_sge is 9, max_send_sge 2",
            ),
            ("send-any-sges", "ibv_post_send failed: num_sge is 2000; the device takes at most 32"),
            ("send-negative", "ibv_post_send failed: num_sge is -1; accepted is 0 to max_sge"),
            ("send-null-list", "ibv_post_send failed: num_sge is 1 and sg_list is NULL"),
            ("send-opcode", "ibv_post_send failed: opcode is 77; accepted are 0 to 9 and 15"),
            (
                "send-inline",
                "ibv_post_send failed: the inline data is longer than max_inline_data: it has 1000 bytes, max_inline_data is 64",
            ),
            ("send-any-inline", "ibv_post_send failed: the inline data has 60000 bytes; the device takes at most 1024"),
            ("send-inline-read", "the opcode is IBV_WR_RDMA_READ, the queue pair is RC: its data cannot be inline"),
            ("send-long", "the list of IBV_WR_RDMA_WRITE has 2147483649 bytes; accepted are 2147483648 at most"),
            ("send-read-0", "the opcode is IBV_WR_RDMA_READ, the queue pair is RC: its max_rd_atomic is 0"),
            (
                "send-ud-write",
                "the opcode is IBV_WR_RDMA_WRITE, the queue pair is UD: its service has no such operation",
            ),
            ("send-ud-nowhere", "ibv_post_send failed: wr.ud.ah, the address handle of a datagram, is NULL"),
            (
                "recv-sges",
                "ibv_post_recv failed: the scatter/gather list has too many elements: num_sge is 9, max_recv_sge 2",
            ),
            (
                "recv-state",
                "ibv_post_recv failed: the queue pair is not in a state that accepts this work request: it is in Reset",
            ),
            ("recv-full", "ibv_post_recv failed: the queue is full: max_recv_wr is 4"),
            ("srq-full", "ibv_post_srq_recv failed: the queue is full: max_wr of the shared receive queue is 4"),
            ("srq-sges", "num_sge is 9, max_sge of the shared receive queue is 1"),
            ("mr-access", "ibv_reg_mr failed: access is 0x8000; accepted are the bits of enum ibv_access_flags"),
            (
                "mr-local",
                "ibv_reg_mr failed: access is 0x2: IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL",
            ),
            ("mr-end", "ibv_reg_mr failed: 1048576 bytes at 0xfffffffffffff000"),
            ("mr-null-pd", "ibv_reg_mr failed: the ibv_pd is NULL"),
            ("mr-readonly", "are not mapped for reading and writing"),
            (
                "mr-rereg",
                "ibv_rereg_mr failed: flags is 0x40, access 0x0; accepted are the bits of enum ibv_rereg_mr_flags",
            ),
            ("mr-windows", "ibv_dereg_mr failed: the memory region is still used by 1 memory window; destroy it first"),
            ("mw-type", "ibv_alloc_mw failed: type is 9; accepted is IBV_MW_TYPE_1 and IBV_MW_TYPE_2"),
        ],
    ),
];

/// A program that sends packets to another host, its environment variables, and words of its
/// explanation.
struct OtherHost {
    name: &'static str,
    case: &'static str,
    envs: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
}

/// Cases with another host, 192.0.2.2 through the interface `near`. The last case takes the
/// interface down.
const OTHER_HOST: [OtherHost; 14] = [
    OtherHost {
        name: "network: a host without a card, a connection",
        case: "cm-no-card",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2")],
        words: &["RDMA_CM_EVENT_UNREACHABLE", "192.0.2.2 reports that UDP port 4791 is closed"],
    },
    OtherHost {
        name: "network: the interface is not a device, a connection",
        case: "cm-address",
        envs: &[("PEER", "192.0.2.2")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR", "set ROXE_NETDEV=near"],
    },
    OtherHost {
        name: "network: no route, a connection",
        case: "cm-address",
        envs: &[("PEER", "198.51.100.7")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR", "no route to 198.51.100.7"],
    },
    OtherHost {
        name: "network: a host without a card, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2")],
        words: &["(12)", "192.0.2.2 reports that UDP port 4791 is closed"],
    },
    OtherHost {
        name: "network: a host without a card, a request with many retries",
        case: "retry-often",
        // From another address, because the host limits its ICMP messages to an address.
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2"), ("GID_INDEX", "1")],
        words: &["(12)", "192.0.2.2 reports that UDP port 4791 is closed"],
    },
    OtherHost {
        name: "network: a neighbour that has disappeared, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.80"), ("THEN", "ip neigh del 192.0.2.80 dev near")],
        words: &["(12)", "no host on near answers that it has 192.0.2.80 (ARP)"],
    },
    OtherHost {
        name: "network: a broadcast address, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.255")],
        words: &["(12)", "192.0.2.255 is a broadcast address"],
    },
    OtherHost {
        name: "network: the route leads over another interface, a request",
        case: "retry-far",
        envs: &[("PEER", "192.0.2.2")],
        words: &["(12)", "packets to 192.0.2.2 leave through near, and this device is lo: set ROXE_NETDEV=near"],
    },
    OtherHost {
        name: "network: a neighbour that does not answer, a connection",
        case: "cm-address",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.76")],
        words: &["RDMA_CM_EVENT_ADDR_ERROR, status -110", "192.0.2.76 does not answer ARP"],
    },
    OtherHost {
        name: "network: a host that has disappeared, a connection",
        case: "cm-no-card",
        // The kernel forgets the host's MAC address, and the host does not answer ARP.
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.77"), ("THEN", "ip neigh del 192.0.2.77 dev near")],
        words: &["RDMA_CM_EVENT_UNREACHABLE", "the network answers that the host 192.0.2.77 cannot be reached"],
    },
    OtherHost {
        name: "network: a host that the network cannot reach, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.79"), ("THEN", "ip route add unreachable 192.0.2.79")],
        words: &["(12)", "the network answers that 192.0.2.79 cannot be reached"],
    },
    OtherHost {
        name: "network: packets vanish, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.78")],
        words: &["(12)", "no acknowledgment arrived after 1 retry (retry_cnt); the cause is unknown"],
    },
    OtherHost {
        name: "network: long packets vanish",
        case: "retry-long",
        envs: &[("ROXE_FAULTS", "drop tx qp=#0 msg=2..")],
        words: &["(12)", "the path may lose long packets; try a smaller path_mtu"],
    },
    OtherHost {
        name: "network: the interface is down, a request",
        case: "retry-far",
        envs: &[("ROXE_NETDEV", "near"), ("PEER", "192.0.2.2"), ("THEN", "ip link set near down")],
        words: &["(12)", "the interface near is down: `ip link set near up`"],
    },
];

pub(crate) fn main() -> ExitCode {
    let checks = CASES.iter().flat_map(|(case, words)| {
        ["auto", "udp"]
            .map(|link| Check::new(format!("{case}, link {link}"), move || judge(case, words, &[("ROXE_LINK", link)])))
    });
    let checked = CHECKED.map(|(case, words)| {
        Check::new(format!("{case}, with the checker"), move || judge(case, words, &[("ROXE_CHECK", "warn")]))
    });
    let refused =
        REFUSED.map(|(table, rows)| Check::new(format!("verbs: {table}"), move || judge_refused(table, rows)));
    let bypass = Check::new("program that loads another libibverbs is reported", judge_bypass);
    let late = EXIT_HANDLER_OPTIONS
        .map(|option| Check::new(format!("exit handler, {option}"), move || judge_exit_handler(option)));
    let far = OTHER_HOST.iter().map(|far| Check::new(far.name.to_owned(), move || judge_other_host(far)));
    report::main(checks.chain(checked).chain(refused).chain([bypass]).chain(late).chain(far).collect())
}

/// Options that make verbs use thread-local variables, which no longer exist in an exit handler.
const EXIT_HANDLER_OPTIONS: [&str; 5] = ["--explain", "--check", "--faults=none", "--trace=/dev/null", "--weakest=1"];

fn judge_exit_handler(option: &str) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    let run = || {
        let compiled = cc::Compiled::new("gcc", "late/late.c", &["ibverbs", "rdmacm"], "late")?;
        let program = Program { name: compiled.program.display().to_string(), args: vec![] };
        let launch = Launch { options: vec![option.to_owned()], ..Launch::default() };
        let outcome = pair::run_with(&program, &launch, TIME_LIMIT).map_err(|e| e.to_string())?;
        if outcome.ok && outcome.output.contains("end\n") { Ok(()) } else { Err(outcome.output) }
    };
    run().into()
}

fn judge(case: &str, words: &[&str], envs: &[(&str, &str)]) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    match misuse::program().and_then(|program| run(program, case, envs)) {
        Ok(output) if output.matches("last events").count() != output.matches(") failed: ").count() => {
            Verdict::Failed(format!("not every failed queue pair prints its last events once:\n{output}"))
        }
        Ok(output) if words.iter().all(|word| output.contains(word)) => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!("{words:?} are not all in:\n{output}")),
        Err(why) => Verdict::Failed(why),
    }
}

/// Checks that each row of a table has exactly one line, with the row's words.
fn judge_refused(table: &str, rows: &[(&str, &str)]) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    let output = match misuse::program().and_then(|program| run(program, table, &[])) {
        Ok(output) => output,
        Err(why) => return Verdict::Failed(why),
    };
    let found: Vec<(&str, &str)> =
        output.split("row ").skip(1).map(|row| row.split_once('\n').unwrap_or((row, ""))).collect();
    let names = |rows: &[(&str, &str)]| rows.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    if names(&found) != names(rows) {
        return Verdict::Failed(format!("the rows are {:?}, not {:?}:\n{output}", names(&found), names(rows)));
    }
    let is_wrong = |(row, (_, words)): &(&(&str, &str), &(&str, &str))| {
        row.1.lines().filter(|line| line.starts_with("roxe: ")).count() != 1 || !row.1.contains(words)
    };
    let wrong: Vec<_> = found.iter().zip(rows).filter(is_wrong).collect();
    if wrong.is_empty() { Verdict::Passed } else { Verdict::Failed(format!("{wrong:#?}")) }
}

/// Runs a case, which exits with 0 although its requests fail, and returns its output.
fn run(program: String, case: &str, envs: &[(&str, &str)]) -> Result<String, String> {
    let program = Program { name: program, args: vec![case.to_owned(), "wrong".to_owned()] };
    let envs = envs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let launch = Launch { envs, options: vec!["--explain".to_owned()], ..Launch::default() };
    let outcome = pair::run_with(&program, &launch, TIME_LIMIT).map_err(|e| e.to_string())?;
    if outcome.ok { Ok(outcome.output) } else { Err(outcome.output) }
}

/// Runs a program without a view and without roxe's environment variables, which loads the system's
/// libibverbs. It runs until roxe has printed a line about it.
fn judge_bypass() -> Verdict {
    let script = "until grep -qs roxe /proc/$$/fd/2; do sleep 0.01; done";
    let args = ["-i", "LD_PRELOAD=libibverbs.so.1", "sh", "-c", script].map(str::to_owned).to_vec();
    let launch = Launch { options: ["--no-view", "--explain"].map(str::to_owned).into(), ..Launch::default() };
    match pair::run_with(&Program { name: "env".to_owned(), args }, &launch, TIME_LIMIT) {
        Ok(outcome) if outcome.output.contains("libibverbs.so.1") && outcome.output.contains("env -i") => {
            Verdict::Passed
        }
        Ok(outcome) if outcome.output.contains("cannot be preloaded") => Verdict::not_installed("libibverbs"),
        Ok(outcome) => Verdict::Failed(outcome.output),
        Err(e) => Verdict::Failed(e.to_string()),
    }
}

/// Creates the other host on first use. It exists until this process ends, because the kernel
/// removes interfaces with a delay, and their names could not be used again at once.
fn create_other_host() -> Result<(), String> {
    static HOST: OnceLock<Result<Veth, String>> = OnceLock::new();
    let end = |name, mac, addresses: &[&str]| {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Interface { name, mac, addresses }
    };
    let build = || {
        let here = end("near", "02:00:00:00:00:01", &["192.0.2.1/24", "192.0.2.9/24"]);
        let there = end("far", "02:00:00:00:00:02", &["192.0.2.2/24"]);
        let veth = Veth::build(&here, &there).map_err(|e| e.to_string())?;
        // No host has these addresses. With these entries the kernel sends no ARP for them.
        for silent in ["192.0.2.77", "192.0.2.78", "192.0.2.79", "192.0.2.80"] {
            let args = ["neigh", "add", silent, "lladdr", "02:00:00:00:00:09", "dev", "near"];
            let made = Command::new("ip").args(args).status().map_err(|e| format!("ip: {e}"))?;
            if !made.success() {
                return Err(format!("ip {}: {made}", args.join(" ")));
            }
        }
        Ok(veth)
    };
    HOST.get_or_init(build).as_ref().map(|_| ()).map_err(Clone::clone)
}

fn judge_other_host(far: &OtherHost) -> Verdict {
    if let Some(why) = cc::missing() {
        return Verdict::Skipped(why);
    }
    if !link::is_root() {
        return Verdict::Skipped("needs root, for a network of its own".to_owned());
    }
    match create_other_host().and_then(|()| run(misuse::program()?, far.case, far.envs)) {
        Ok(output) if far.words.iter().all(|word| output.contains(word)) => Verdict::Passed,
        Ok(output) => Verdict::Failed(format!("{:?} are not all in:\n{output}", far.words)),
        Err(why) => Verdict::Failed(why),
    }
}
