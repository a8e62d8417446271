//! Records of devices and of live verbs objects. The devices are those that this process would
//! open; the objects are those that the processes of this user on this host report.

use super::record::Record;
use crate::output::Result;
use crate::status::{KeyValues, command_of};
use crate::view::hex_groups;
use roxe_provider::config::variable;
use roxe_provider::{Answer, Device, ObjectKind, Query, SHORTENED, ask_here, counter_files, preview};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Time limit for an answer: a stopped process never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of the only port of a device.
pub(super) const PORT: u32 = 1;

/// A device with its index in lists.
#[derive(Debug)]
pub(super) struct Card {
    pub(super) index: u32,
    pub(super) device: Device,
}

/// Returns the devices that programs with this environment see, with indices from `first`.
pub(super) fn cards(first: u32) -> Result<Vec<Card>> {
    let devices = preview()?;
    Ok((first..).zip(devices).map(|(index, device)| Card { index, device }).collect())
}

impl Card {
    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns a record that begins with the device.
    fn of_device(&self) -> Record {
        let mut record = Record::default();
        record.shown_as("ifindex", self.index, "").shown_as("ifname", self.name(), format!("dev {} ", self.name()));
        record
    }

    /// Returns a record that begins with the link.
    fn of_link(&self) -> Record {
        let mut record = Record::default();
        record.shown_as("ifindex", self.index, "").shown_as("ifname", self.name(), "");
        record.shown_as("port", PORT, format!("link {}/{PORT} ", self.name()));
        record
    }

    /// Returns a line of `rdma link`.
    pub(super) fn link(&self, has_details: bool) -> Record {
        let attr = self.device.port_attr();
        let (state, physical) = (port_state(attr.state), physical_state(attr.phys_state));
        let index = self.device.ifindex();
        let mut record = self.of_link();
        record.word("state", state).word("physical_state", physical).word("netdev", self.device.netdev());
        record.shown_as(
            "netdev_index",
            index,
            if has_details { format!("netdev_index {index} ") } else { String::new() },
        );
        if has_details {
            add_caps(&mut record, &PORT_CAPS, attr.port_cap_flags.into());
        }
        record
    }

    /// Returns a line of `rdma dev`.
    pub(super) fn dev(&self, has_details: bool) -> Record {
        let attr = self.device.attr();
        let (index, name) = (self.index, self.name());
        let mut record = Record::default();
        record.shown_as("ifindex", index, format!("{index}: ")).shown_as("ifname", name, format!("{name}: "));
        record.word("node_type", "ca").word("fw", attr.fw_ver);
        record
            .word("node_guid", &hex_groups(&attr.node_guid.to_be_bytes()))
            .word("sys_image_guid", &hex_groups(&attr.sys_image_guid.to_be_bytes()));
        if has_details {
            record.shown_as("adaptive-moderation", false, "adaptive-moderation off ");
            add_caps(&mut record, &DEVICE_CAPS, attr.device_cap_flags_ex);
        }
        record
    }

    /// Returns the line of `rdma resource` with the numbers of objects.
    pub(super) fn summary(&self, answers: &[Answer]) -> Record {
        let (index, name) = (self.index, self.name());
        let mut record = Record::default();
        record.shown_as("ifindex", index, format!("{index}: ")).shown_as("ifname", name, format!("{name}: "));
        for kind in ObjectKind::ALL {
            record.number(kind.name(), self.sum(answers, "count", kind.name()));
        }
        record
    }

    /// Returns the lines of this device that begin with `keyword`, without the keyword, each with
    /// its process ID.
    fn lines<'a>(&self, answers: &'a [Answer], keyword: &'a str) -> impl Iterator<Item = (u32, &'a str)> {
        let ifindex = self.device.ifindex();
        answers.iter().filter(move |answer| answer.ifindex == ifindex).flat_map(move |answer| {
            let lines = answer.text.lines().filter_map(move |line| line.strip_prefix(keyword)?.strip_prefix(' '));
            lines.map(|line| (answer.pid, line))
        })
    }

    /// Returns the sum, over the processes, of the values in lines `keyword name value`.
    fn sum(&self, answers: &[Answer], keyword: &str, name: &str) -> u64 {
        let pairs = self.lines(answers, keyword).filter_map(|(_, line)| line.split_once(' '));
        pairs.filter(|(key, _)| *key == name).filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
    }

    /// Returns the objects of one kind. `qps` are the answers about queue pairs, needed for SRQs.
    pub(super) fn objects(&self, kind: ObjectKind, answers: &[Answer], qps: &[Answer]) -> Vec<Record> {
        let objects = self.lines(answers, kind.name()).map(|(pid, line)| (pid, KeyValues::parse(line)));
        objects.map(|(pid, values)| self.object(kind, pid, &values, qps)).collect()
    }

    fn object(&self, kind: ObjectKind, pid: u32, values: &KeyValues, qps: &[Answer]) -> Record {
        let has_link = matches!(kind, ObjectKind::Qp | ObjectKind::CmId);
        let mut record = if has_link { self.of_link() } else { self.of_device() };
        match kind {
            ObjectKind::Qp => {
                let service = service(values.text("type"));
                let is_connected = matches!(service, "RC" | "UC");
                record.number("lqpn", values.number("qpn"));
                // The kernel, too, leaves out fields that a service does not have.
                if is_connected {
                    record.number("rqpn", values.number("rqpn"));
                }
                record.word("type", service).word("state", values.text("state"));
                if is_connected {
                    record.number("rq-psn", values.number("rq_psn"));
                }
                record.number("sq-psn", values.number("sq_psn"));
                if is_connected || matches!(service, "XRC_INI" | "XRC_TGT") {
                    record.word("path-mig-state", values.text("migration"));
                }
                record.number("pdn", values.number("pd"));
            }
            ObjectKind::CmId => {
                record.number("cm-idn", values.number("n"));
                if values.has("qpn") {
                    record.number("lqpn", values.number("qpn")).word("qp-type", service(values.text("type")));
                }
                record.word("state", values.text("state")).word("ps", values.text("ps"));
                add_process(pid, &mut record);
                record.word("src-addr", values.text("src")).word("dst-addr", values.text("dst"));
                return record;
            }
            ObjectKind::Pd => {
                record.number("pdn", values.number("n")).hex("local_dma_lkey", 0);
                record.number("users", values.number("users")).number("ctxn", values.number("ctx"));
            }
            ObjectKind::Cq => {
                record.number("cqn", values.number("n")).number("cqe", values.number("cqe"));
                record.number("users", values.number("users"));
                record.shown_as("adaptive-moderation", false, "adaptive-moderation off ");
                record.number("ctxn", values.number("ctx"));
            }
            ObjectKind::Mr => {
                record.number("mrn", values.number("n"));
                record.hex("rkey", values.number("rkey")).hex("lkey", values.number("lkey"));
                record.number("mrlen", values.number("len")).number("pdn", values.number("pd"));
            }
            ObjectKind::Srq => {
                record.number("srqn", values.number("n")).word("type", values.text("type"));
                self.add_qps(pid, values.number("n"), qps, &mut record);
                record.number("pdn", values.number("pd"));
                if values.has("cq") {
                    record.number("cqn", values.number("cq"));
                }
            }
            ObjectKind::Ctx => _ = record.number("ctxn", values.number("n")),
        }
        add_process(pid, &mut record);
        record
    }

    /// Adds the numbers of the queue pairs of process `pid` that are attached to its SRQ `srqn`.
    fn add_qps(&self, pid: u32, srqn: u64, qps: &[Answer], record: &mut Record) {
        let process_qps =
            self.lines(qps, "qp").filter(|(owner, _)| *owner == pid).map(|(_, line)| KeyValues::parse(line));
        let attached = process_qps.filter(|qp| qp.has("srq") && qp.number("srq") == srqn);
        let mut numbers: Vec<u64> = attached.map(|qp| qp.number("qpn")).collect();
        numbers.sort_unstable();
        if !numbers.is_empty() {
            let ranges = ranges(&numbers);
            record.shown_as("lqpn", ranges.clone(), format!("lqpn {} ", ranges.join(",")));
        }
    }

    /// Returns the lines of `rdma statistic qp`: the counters of each queue pair.
    pub(super) fn qp_counters(&self, answers: &[Answer]) -> Vec<Record> {
        let lines = self.lines(answers, "qp").map(|(pid, line)| (pid, KeyValues::parse(line)));
        let record = |(pid, values): (u32, KeyValues)| {
            let (mut record, qpn) = (self.of_link(), values.number("qpn"));
            record.number("cntn", qpn).word("qp-type", service(values.text("type")));
            add_process(pid, &mut record);
            for name in QP_COUNTERS {
                let value = values.number(name);
                record.shown_as(name, value, format!("\n    {name} {value} "));
            }
            record.shown_as("lqpn", vec![qpn], format!("\n    LQPN: <{qpn}>"));
            record
        };
        lines.map(record).collect()
    }

    /// Returns the line of `rdma statistic`: the counters of the port. In a view, the values are
    /// those of the counter files, otherwise the sums over the running processes.
    pub(super) fn counters(&self, answers: &[Answer]) -> Record {
        let mut record = Record::default();
        record.shown_as("ifname", self.name(), format!("link {}/", self.name()));
        record.shown_as("port", PORT, format!("{PORT} "));
        let files = variable("ROXE_COUNTERS").map(|class| Path::new(&class).join(self.name()).join("ports/1"));
        for path in counter_files() {
            let Some(name) = path.strip_prefix("hw_counters/") else { continue };
            let value = files.as_ref().and_then(|files| fs::read_to_string(files.join(path)).ok()?.trim().parse().ok());
            record.number(name, value.unwrap_or_else(|| self.sum(answers, "hw", name)));
        }
        record
    }

    /// Returns the line of `rdma statistic qp mode`.
    pub(super) fn counter_mode(&self) -> Record {
        let mut record = self.of_link();
        record.word("mode", "qp auto off");
        record
    }
}

/// Counters of a queue pair.
const QP_COUNTERS: [&str; 7] = [
    "sent_bytes",
    "rcvd_bytes",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "send_rnr_err",
];

fn add_process(pid: u32, record: &mut Record) {
    record.number("pid", pid.into()).word("comm", &command_of(pid));
}

/// Returns the name that iproute2 gives to a service.
fn service(name: &str) -> &str {
    match name {
        "XRC_SEND" => "XRC_INI",
        "XRC_RECV" => "XRC_TGT",
        other => other,
    }
}

/// Returns sorted numbers as ranges such as `21-36` and single numbers.
fn ranges(numbers: &[u64]) -> Vec<String> {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let text = |run: &[u64]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(u64::to_string).collect(),
    };
    runs.map(text).collect()
}

/// Returns the answers of the processes of this user in this network namespace; reports incomplete
/// ones on standard error.
pub(super) fn answers(query: Query) -> Result<Vec<Answer>> {
    let answers = ask_here(&query, ANSWER_TIMEOUT)?;
    for answer in answers.iter().filter(|answer| !answer.is_whole || answer.text.ends_with(SHORTENED)) {
        eprintln!(
            "rdma: the list of process {} is not complete: it is stopped or busy, or has too many objects",
            answer.pid
        );
    }
    Ok(answers)
}

/// Bits of a port's capabilities that roxe's ports may have (`PortInfo.CapabilityMask`).
const PORT_CAPS: [(u32, &str); 2] = [(16, "CM"), (26, "OTHER_LOCAL_CHANGES")];

/// Bits of `enum ibv_device_cap_flags` and their names in iproute2.
const DEVICE_CAPS: [(u32, &str); 29] = [
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (15, "LOCAL_DMA_LKEY"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (19, "UD_TSO"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (22, "BLOCK_MULTICAST_LOOPBACK"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (27, "CROSS_CHANNEL"),
    (29, "MANAGED_FLOW_STEERING"),
    (31, "ON_DEMAND_PAGING"),
];

/// Adds the names of the bits in `flags`; bits without a name are `UNKNOWN`.
fn add_caps(record: &mut Record, names: &[(u32, &'static str)], flags: u64) {
    let name = |bit: u32| names.iter().find(|(known, _)| *known == bit).map_or("UNKNOWN", |(_, name)| name);
    let set: Vec<&str> = (0..u64::BITS).filter(|bit| flags >> bit & 1 == 1).map(name).collect();
    let text = format!("\n    caps: <{}>", set.join(", "));
    record.shown_as("caps", set.into_iter().map(Value::from).collect::<Value>(), text);
}

fn port_state(state: u32) -> &'static str {
    ["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"].get(state as usize).copied().unwrap_or("UNKNOWN")
}

fn physical_state(state: u8) -> &'static str {
    let names = ["NOP", "SLEEP", "POLLING", "DISABLED", "ARMED", "LINK_UP", "LINK_ERROR_RECOVER", "PHY_TEST"];
    names.get(usize::from(state)).copied().unwrap_or("UNKNOWN")
}
