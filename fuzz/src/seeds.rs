//! Extracts seeds for the corpora from `tests/captures`: one packet of every recorded kind.

use roxe_wire::capture::{frames, ip_packet};
use roxe_wire::cm::{
    Answered, Apr, AprStatus, CommId, Info, Lap, Mad, Message, Mra, PrivateData, Rej, RejReason, TimeCode,
    TransactionId,
};
use roxe_wire::{Header, NetHeader, Packet, icrc};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Maximum number of payload bytes of a seed: mutations of more payload would find nothing.
const MAX_PAYLOAD: usize = 12;

/// A file of a corpus: target, name, content.
pub type Seed = (&'static str, String, Vec<u8>);

/// Returns the first packet of each opcode in the captures, with a truncated payload, as inputs of
/// the packet targets; and a connection manager message of each type, constructed if no capture has
/// one.
///
/// # Panics
/// If the captures are missing or damaged.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (name, (net, header, payload)) in first_of_each_opcode() {
        let datagram = seal(&net, &header, &payload);
        seeds.push(("ip", name.clone(), ip_of(&net, &datagram)));
        seeds.push(("icrc", name.clone(), icrc_input(&net, &datagram)));
        seeds.push(("hostile", name.clone(), raw_script(&datagram)));
        seeds.push(("packet", name, datagram));
    }
    seeds.extend(first_of_each_message().into_iter().map(|(name, mad)| ("cm_mad", format!("rxe-{name}"), mad)));
    seeds.extend(constructed_messages().map(|mad| ("cm_mad", name_of(&mad), mad.to_bytes().to_vec())));
    seeds
}

type Found = BTreeMap<String, (NetHeader, Header, Vec<u8>)>;

fn first_of_each_opcode() -> Found {
    let mut found = Found::new();
    for file in captures() {
        collect(&file, &mut found);
    }
    found
}

fn first_of_each_message() -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for file in captures() {
        for_each_packet(&file, |_, packet| {
            if let Some(mad) = Mad::of_packet(&packet) {
                let name = name_of(&mad.expect("parse a MAD of another implementation"));
                found.entry(name).or_insert_with(|| packet.payload.to_vec());
            }
        });
    }
    found
}

fn name_of(mad: &Mad) -> String {
    mad.message.name().to_lowercase().replace('_', "-")
}

/// Returns a message of each type that no capture has.
fn constructed_messages() -> impl Iterator<Item = Mad> {
    let (local_comm_id, remote_comm_id) = (CommId(0x1111), CommId(0x2222));
    let answered = Answered::Rep;
    let info = Info::new(&[0xfe; 16]).expect("16 bytes");
    let messages = [
        Message::Mra(Mra {
            local_comm_id,
            remote_comm_id,
            answered,
            service_timeout: TimeCode::new(24),
            private_data: PrivateData::EMPTY,
        }),
        Message::Rej(Rej {
            local_comm_id,
            remote_comm_id,
            answered,
            info,
            reason: RejReason::InvalidGid,
            private_data: PrivateData::EMPTY,
        }),
        Message::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
        Message::Apr(Apr {
            local_comm_id,
            remote_comm_id,
            info,
            status: AprStatus::IsCurrent,
            private_data: PrivateData::EMPTY,
        }),
    ];
    messages.into_iter().map(|message| Mad { tid: TransactionId(0x77), modifier: 0, message })
}

/// Returns the contents of all captures, sorted by file name.
fn captures() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures");
    let entries = fs::read_dir(&folder).expect("open the folder of captures");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("read the folder of captures").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "pcap"));
    files.sort();
    files.iter().map(|path| fs::read(path).expect("read a capture")).collect()
}

fn for_each_packet(file: &[u8], mut take: impl FnMut(NetHeader, Packet<'_>)) {
    for frame in frames(file).expect("parse a capture file").map_while(Result::ok) {
        let Some(ip) = ip_packet(frame.link, frame.data) else { continue };
        let Ok((net, datagram)) = NetHeader::parse_ip(ip) else { continue };
        take(net, Packet::parse(datagram).expect("parse a packet of another implementation"));
    }
}

fn collect(file: &[u8], found: &mut Found) {
    for_each_packet(file, |net, Packet { header, payload }| {
        let opcode = header.opcode();
        let name = format!("rxe-{}-{}", opcode.service().name(), opcode.operation().properties().name);
        let payload = shorten(&header, payload);
        found.entry(name.to_lowercase().replace('_', "-")).or_insert((net, header, payload));
    });
}

/// Returns the first bytes of `payload`; all of them if the opcode does not allow fewer.
fn shorten(header: &Header, payload: &[u8]) -> Vec<u8> {
    let kept = &payload[..payload.len().min(MAX_PAYLOAD)];
    let allowed = header.opcode().properties().payload.allows(kept.len());
    if allowed { kept.to_vec() } else { payload.to_vec() }
}

fn seal(net: &NetHeader, header: &Header, payload: &[u8]) -> Vec<u8> {
    let covered = header.padded_len(payload.len());
    let mut bytes = vec![0; covered + icrc::LEN];
    header.emit(payload.len(), &mut bytes[..covered]).expect("emit into a slot of exact size").copy_from_slice(payload);
    icrc::seal(net, &mut bytes);
    bytes
}

/// Returns the IPv4 packet around a datagram.
fn ip_of(net: &NetHeader, datagram: &[u8]) -> Vec<u8> {
    let mut ip = net.to_grh(datagram.len())[20..].to_vec();
    for word in [net.src_port, roxe_wire::ROCE_PORT, (8 + datagram.len()) as u16, 0] {
        ip.extend_from_slice(&word.to_be_bytes());
    }
    ip.extend_from_slice(datagram);
    ip
}

/// Returns the input of [`crate::icrc()`] with these network header fields and this packet.
fn icrc_input(net: &NetHeader, datagram: &[u8]) -> Vec<u8> {
    let mut input = vec![0, net.traffic_class, net.hop_limit];
    input.extend_from_slice(&net.src_port.to_be_bytes());
    input.extend_from_slice(&net.ident.to_be_bytes());
    input.extend_from_slice(&[0; 3]);
    for gid in [net.src, net.dst] {
        input.extend_from_slice(&gid.0[12..]);
        input.extend_from_slice(&[0; 12]);
    }
    input.resize(48, 0);
    input.extend_from_slice(&datagram[..datagram.len() - icrc::LEN]);
    input
}

/// Returns the input of [`crate::hostile()`] for which a connected queue pair receives this packet,
/// with matching QPN and PSN.
fn raw_script(datagram: &[u8]) -> Vec<u8> {
    let service = match datagram[0] >> 5 {
        0 => 0,
        1 => 1,
        _ => 2,
    };
    let len = datagram.len().min(96);
    // Service, no SRQ, RTS; raw bytes, their length; the bytes; replace QPN and PSN, by the
    // expected PSN; room for sent packets.
    let mut script = vec![service, 0, 0, 0, 6, len as u8];
    script.extend_from_slice(&datagram[..len]);
    script.extend_from_slice(&[0xff, 0xff, 7, 7]);
    script
}
