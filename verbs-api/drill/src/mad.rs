//! Messages of the connection manager (IBA chapter 12): places of their fields, and checks that
//! every message must pass. A MAD has 256 bytes, in a UD SEND ONLY between queue pairs 1.

use crate::layout::{self, Field};
use std::fmt::Write;
use std::sync::LazyLock;

/// Opcode of a packet with a MAD: UD SEND ONLY.
pub(crate) const OPCODE: u8 = 0x64;
/// Bytes of the packet's headers before the MAD.
const HEADERS_LEN: usize = 20;
/// Bytes of a MAD.
const MAD_LEN: usize = 256;
/// Queue pair number of the GSI.
pub(crate) const GSI: u32 = 1;
/// Q_Key of all packets to the GSI.
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;
/// Attribute of the MRA, a message that only extends a timeout.
const MRA: u16 = 0x11;

/// Names and bits of fields; a field `_` is reserved.
type Table = &'static [(&'static str, usize)];

const HEADER: Table = &[
    ("base_version", 8),
    ("class", 8),
    ("class_version", 8),
    ("method", 8),
    ("status", 16),
    ("class_specific", 16),
    ("tid", 64),
    ("attribute", 16),
    ("_", 16),
    ("modifier", 32),
];
const IDS: Table = &[("local_id", 32), ("remote_id", 32)];
const REQ: Table = &[
    ("local_id", 32),
    ("_", 8),
    ("vendor", 24),
    ("service", 64),
    ("guid", 64),
    ("_", 32),
    ("local_qkey", 32),
    ("qpn", 24),
    ("responder_resources", 8),
    ("local_eecn", 24),
    ("initiator_depth", 8),
    ("remote_eecn", 24),
    ("remote_timeout", 5),
    ("transport", 2),
    ("flow_control", 1),
    ("start_psn", 24),
    ("local_timeout", 5),
    ("retries", 3),
    ("partition", 16),
    ("mtu", 4),
    ("rdc", 1),
    ("rnr_retries", 3),
    ("cm_retries", 4),
    ("has_srq", 1),
    ("extended", 3),
];
/// The primary path of a REQ.
const PRIMARY: Table = &[
    ("local_lid", 16),
    ("remote_lid", 16),
    ("local_gid_high", 64),
    ("local_gid_low", 64),
    ("remote_gid_high", 64),
    ("remote_gid_low", 64),
    ("flow_label", 20),
    ("_", 6),
    ("rate", 6),
    ("traffic_class", 8),
    ("hop_limit", 8),
    ("sl", 4),
    ("subnet_local", 1),
    ("_", 3),
    ("ack_timeout", 5),
    ("_", 3),
];
/// Fields of a REQ's alternate path.
const ALTERNATE: Table = &[
    ("alt_local_lid", 16),
    ("alt_remote_lid", 16),
    ("alt_local_gid_high", 64),
    ("alt_local_gid_low", 64),
    ("alt_remote_gid_high", 64),
    ("alt_remote_gid_low", 64),
    ("alt_flow_label", 20),
    ("_", 6),
    ("alt_rate", 6),
    ("alt_traffic_class", 8),
    ("alt_hop_limit", 8),
    ("alt_sl", 4),
    ("alt_subnet_local", 1),
    ("_", 3),
    ("alt_ack_timeout", 5),
    ("sap", 1),
    ("_", 2),
];
/// RDMA CM's header in the private data of requests (annex A11).
const RDMA_CM: Table = &[
    ("ip_cm_version", 8),
    ("ip_version", 4),
    ("_", 4),
    ("ip_port", 16),
    ("ip_src_high", 64),
    ("ip_src_low", 64),
    ("ip_dst_high", 64),
    ("ip_dst_low", 64),
];
const MRA_FIELDS: Table = &[("answers", 2), ("_", 6), ("service_timeout", 5), ("_", 3)];
const REJ: Table =
    &[("answers", 2), ("_", 6), ("info_len", 7), ("_", 1), ("reason", 16), ("info_high", 64), ("info_low", 64)];
const REP: Table = &[
    ("local_qkey", 32),
    ("qpn", 24),
    ("vendor_high", 8),
    ("local_eecn", 24),
    ("vendor_middle", 8),
    ("start_psn", 24),
    ("vendor_low", 8),
    ("responder_resources", 8),
    ("initiator_depth", 8),
    ("ack_delay", 5),
    ("failover", 2),
    ("flow_control", 1),
    ("rnr_retries", 3),
    ("has_srq", 1),
    ("_", 4),
    ("guid", 64),
];
const DREQ: Table = &[("remote_qpn", 24), ("_", 8)];
const SIDR_REQ: Table = &[("request_id", 32), ("partition", 16), ("_", 16), ("service", 64)];
const SIDR_REP: Table = &[
    ("request_id", 32),
    ("sidr_status", 8),
    ("info_len", 8),
    ("vendor_high", 16),
    ("qpn", 24),
    ("vendor_low", 8),
    ("service", 64),
    ("service_qkey", 32),
];
const LAP: Table = &[
    ("_", 32),
    ("remote_qpn", 24),
    ("remote_timeout", 5),
    ("_", 3),
    ("_", 32),
    ("alt_local_lid", 16),
    ("alt_remote_lid", 16),
    ("alt_local_gid_high", 64),
    ("alt_local_gid_low", 64),
    ("alt_remote_gid_high", 64),
    ("alt_remote_gid_low", 64),
    ("alt_flow_label", 20),
    ("_", 4),
    ("alt_traffic_class", 8),
    ("alt_hop_limit", 8),
    ("_", 2),
    ("alt_rate", 6),
    ("alt_sl", 4),
    ("alt_subnet_local", 1),
    ("_", 3),
    ("alt_ack_timeout", 5),
    ("_", 3),
];
const APR: Table = &[("info_len", 8), ("ap_status", 8), ("_", 16)];
/// The end of the additional information of a REJ, whose first 16 bytes have names. Scripts cannot
/// use fields that begin with `_`.
const REST_OF_INFO: Table = &[("_info", 56 * 8)];
/// Additional information of 72 bytes.
const INFO: Table = &[("_info", 72 * 8)];

/// Name, attribute and fields of all messages.
const MESSAGES: &[(&str, u16, &[Table])] = &[
    ("REQ", 0x10, &[REQ, PRIMARY, ALTERNATE, RDMA_CM]),
    ("MRA", MRA, &[IDS, MRA_FIELDS]),
    ("REJ", 0x12, &[IDS, REJ, REST_OF_INFO]),
    ("REP", 0x13, &[IDS, REP]),
    ("RTU", 0x14, &[IDS]),
    ("DREQ", 0x15, &[IDS, DREQ]),
    ("DREP", 0x16, &[IDS]),
    ("SIDR_REQ", 0x17, &[SIDR_REQ, RDMA_CM]),
    ("SIDR_REP", 0x18, &[SIDR_REP, INFO]),
    ("LAP", 0x19, &[IDS, LAP]),
    ("APR", 0x1a, &[IDS, APR, INFO]),
];

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) name: &'static str,
    pub(crate) attribute: u16,
    /// Fields of the packet and of the MAD.
    pub(crate) fields: Vec<Field>,
    /// Offset of the private data in the packet.
    pub(crate) len: usize,
}

/// End of the private data of every message, as an offset in the packet.
pub(crate) const END: usize = HEADERS_LEN + MAD_LEN;

static ALL: LazyLock<Vec<Message>> = LazyLock::new(|| {
    let packet = layout::fields(OPCODE).0;
    let message = |(name, attribute, tables): &(&'static str, u16, &[Table])| {
        let mut fields = packet.to_vec();
        let tables = std::iter::once(HEADER).chain(tables.iter().copied());
        let len = layout::place(tables.flatten().copied(), HEADERS_LEN * 8, &mut fields);
        Message { name, attribute: *attribute, fields, len: len / 8 }
    };
    MESSAGES.iter().map(message).collect()
});

pub(crate) fn message_named(name: &str) -> Option<&'static Message> {
    ALL.iter().find(|message| message.name == name)
}

/// Returns true for a packet to the GSI.
pub(crate) fn is_mad(packet: &[u8]) -> bool {
    packet.first() == Some(&OPCODE) && packet.get(5..8) == Some(&[0, 0, 1])
}

/// Returns the message in a packet.
pub(crate) fn message_in(packet: &[u8]) -> Option<&'static Message> {
    let attribute = packet.get(HEADERS_LEN + 16..HEADERS_LEN + 18).filter(|_| is_mad(packet))?;
    ALL.iter().find(|message| message.attribute.to_be_bytes() == attribute)
}

pub(crate) fn is_mra(packet: &[u8]) -> bool {
    message_in(packet).is_some_and(|message| message.attribute == MRA)
}

/// Returns true for a DREP without a connection, with which roxe probes the reachability of a host.
pub(crate) fn is_probe(packet: &[u8]) -> bool {
    message_in(packet).is_some_and(|message| message.name == "DREP") && get(packet, "remote_id") == Some(0)
}

/// Returns the value of a field of a message.
pub(crate) fn get(packet: &[u8], name: &str) -> Option<u64> {
    message_in(packet)?.fields.iter().find(|field| field.name == name)?.get(packet)
}

/// Returns why a packet to the GSI is malformed.
pub(crate) fn flaw(packet: &[u8]) -> Option<String> {
    let len = packet.len().saturating_sub(HEADERS_LEN + layout::ICRC_LEN);
    if len != MAD_LEN {
        return Some(format!("a MAD has {MAD_LEN} bytes, not {len}"));
    }
    let Some(message) = message_in(packet) else { return Some("it is not a message of the connection manager".into()) };
    let always = [
        ("base_version", 1),
        ("class", 7),
        ("class_version", 2),
        ("method", 3),
        ("status", 0),
        ("_", 0),
        ("qkey", GSI_QKEY.into()),
        ("sqpn", GSI.into()),
    ];
    message.fields.iter().find_map(|field| {
        let (_, wanted) = always.iter().find(|(name, _)| *name == field.name)?;
        let is = field.get(packet).unwrap_or_default();
        let name = if field.name == "_" { "a reserved field" } else { field.name };
        (is != *wanted).then(|| format!("{name} of {} is {is:#x}, not {wanted:#x}", message.name))
    })
}

/// Describes a message by its main fields.
pub(crate) fn describe(packet: &[u8]) -> Option<String> {
    const MAIN_FIELDS: [&str; 12] = [
        "local_id",
        "remote_id",
        "request_id",
        "service",
        "qpn",
        "remote_qpn",
        "start_psn",
        "answers",
        "reason",
        "sidr_status",
        "ap_status",
        "service_timeout",
    ];
    let message = message_in(packet)?;
    let mut text = format!("MAD {}", message.name);
    for field in message.fields.iter().filter(|field| MAIN_FIELDS.contains(&field.name)) {
        _ = write!(text, " {}={:#x}", field.name, field.get(packet)?);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxe_wire::cm::{Mad, Message as Wire};

    /// A REQ of rdma_cm, computed by hand from the tables of the specification.
    const EXAMPLE: &str = "010702030000000000000007123456780010000000000000123456780000000000000000\
        01061d2f505400fffe00112200000000000000000000110100000001000000a0abcdefa7ffff37f0ffffffff0000\
        00000000 00000000ffff0a00000100000000000000000000ffff0a0000027c3df00000400088";

    fn example() -> Vec<u8> {
        let hex: String = EXAMPLE.split_whitespace().collect();
        let mut packet = vec![0; HEADERS_LEN];
        (packet[0], packet[7]) = (OPCODE, 1);
        packet.extend(roxe_peer::protocol::from_hex(&hex).expect("parse the digits"));
        packet.resize(END + layout::ICRC_LEN, 0);
        packet
    }

    #[test]
    fn req_fields_have_the_places_of_the_specification() {
        let packet = example();
        for (name, value) in [
            ("local_id", 0x1234_5678),
            ("service", 0x0106_1d2f),
            ("guid", 0x5054_00ff_fe00_1122),
            ("qpn", 0x11),
            ("responder_resources", 1),
            ("initiator_depth", 1),
            ("remote_timeout", 20),
            ("transport", 0),
            ("start_psn", 0xab_cdef),
            ("local_timeout", 20),
            ("retries", 7),
            ("partition", 0xffff),
            ("mtu", 3),
            ("rnr_retries", 7),
            ("cm_retries", 15),
            ("local_lid", 0xffff),
            ("local_gid_low", 0xffff_0a00_0001),
            ("remote_gid_low", 0xffff_0a00_0002),
            ("flow_label", 0x7_c3df),
            ("hop_limit", 64),
            ("ack_timeout", 17),
        ] {
            assert_eq!(get(&packet, name), Some(value), "{name}");
        }
    }

    #[test]
    fn private_data_lengths_follow_the_specification() {
        let rest: Vec<_> = ALL.iter().map(|message| END - message.len).collect();
        assert_eq!(rest, [92 - 36, 222, 148, 196, 224, 220, 224, 216 - 36, 136, 168, 148]);
    }

    #[test]
    fn messages_are_parsed_by_roxe_wire() {
        for message in ALL.iter() {
            let mut packet = vec![0; END];
            for field in message.fields.iter().filter(|field| !field.name.starts_with('_')) {
                let default = match field.name {
                    "base_version" => 1,
                    "class" => 7,
                    "class_version" => 2,
                    "method" => 3,
                    "attribute" => message.attribute.into(),
                    "local_id" | "request_id" => 0x77,
                    "reason" => 8,
                    _ => 0,
                };
                field.set(&mut packet, default);
            }
            let mad = Mad::parse(&packet[HEADERS_LEN..]).expect("parse the message");
            assert_eq!(mad.message.name(), message.name);
            if let Wire::Rej(rej) = mad.message {
                assert_eq!(rej.local_comm_id.0, 0x77);
            }
        }
    }

    #[test]
    fn message_of_wrong_length_or_field_is_flawed() {
        let packet = example();
        for len in 0..packet.len() {
            let (short, _) = packet.split_at(len);
            let _ = (describe(short), is_mra(short), is_probe(short), get(short, "service"));
            assert!(flaw(short).is_some(), "{len} bytes are too few");
        }
        let mut sound = packet;
        for field in ["qkey", "sqpn"] {
            let field = message_in(&sound).unwrap().fields.iter().find(|found| found.name == field).unwrap();
            field.set(&mut sound, if field.name == "qkey" { GSI_QKEY.into() } else { GSI.into() });
        }
        assert_eq!(flaw(&sound), None);
        // A reserved byte of the REQ, the class version, and the Q_Key.
        for (at, what) in
            [(HEADERS_LEN + 28, "a reserved field of REQ"), (HEADERS_LEN + 2, "class_version"), (12, "qkey")]
        {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x40;
            assert!(flaw(&damaged).is_some_and(|flaw| flaw.starts_with(what)), "{what}");
        }
    }
}
