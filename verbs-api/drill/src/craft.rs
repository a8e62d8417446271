//! Builds packets from the specification in a script, and compares received packets with it.

use crate::layout::{self, Field};
use crate::mad;
use crate::number::Names;
use crate::script::steps::{Skips, Spec};
use roxe_peer::protocol::to_hex;
use roxe_wire::{NetHeader, Packet, Psn};

pub(crate) type Values = Vec<(&'static str, u64)>;

/// Returns the bytes of a packet with ICRC. Fields that the script does not set have the values in
/// `default`. Fails if the script has an unknown field or name.
pub(crate) fn build(spec: &Spec, default: &Values, net: &NetHeader, names: &Names) -> Result<Vec<u8>, String> {
    let payload = spec.payload.as_ref().map_or(Ok(Vec::new()), |data| data.bytes(names))?;
    let (fields, len) = spec.layout();
    let mut packet = vec![0; len];
    packet.extend(&payload);
    if spec.message.is_some() && packet.len() > mad::END {
        return Err(format!("{} has room for {} bytes of private data", spec.name, mad::END - len));
    }
    let end = if spec.message.is_some() { mad::END } else { packet.len().next_multiple_of(4) };
    packet.resize(end, 0);
    let pad = if spec.message.is_some() { 0 } else { packet.len() - len - payload.len() };
    let packets = [
        ("opcode", u64::from(spec.opcode)),
        ("migreq", 1),
        ("pad", pad as u64),
        ("pkey", 0xffff),
        ("syndrome", 0x1f),
        ("dmalen", payload.len() as u64),
        ("becn", u64::from(spec.opcode == 0x81)),
    ];
    for (name, value) in packets.iter().chain(default) {
        if let Ok(field) = find(fields, spec, name) {
            field.set(&mut packet, *value);
        }
    }
    for (name, number) in &spec.fields {
        find(fields, spec, name)?.set(&mut packet, number.value(names)?);
    }
    damage(spec, packet, net, names)
}

/// Adds the ICRC, and damages the packet as the script demands.
fn damage(spec: &Spec, mut packet: Vec<u8>, net: &NetHeader, names: &Names) -> Result<Vec<u8>, String> {
    if let Some(extra) = &spec.overrides.extra {
        let extra = extra.value(names)?.min(4096) as usize;
        packet.resize(packet.len() + extra, 0);
    }
    let cut = spec.overrides.cut.as_ref().map(|cut| cut.value(names)).transpose()?;
    if let Some(cut) = cut {
        packet.truncate((cut as usize).saturating_sub(layout::ICRC_LEN));
    }
    let mut icrc = layout::icrc(net, &packet);
    if let Some(number) = &spec.overrides.icrc {
        icrc = u32::from_le_bytes(icrc).wrapping_add(number.value(names)? as u32).to_le_bytes();
    }
    packet.extend(icrc);
    packet.truncate(cut.map_or(packet.len(), |cut| cut as usize));
    Ok(packet)
}

fn find<'f>(fields: &'f [Field], spec: &Spec, name: &str) -> Result<&'f Field, String> {
    fields.iter().find(|field| field.name == name).ok_or_else(|| format!("{} has no field `{name}`", spec.name))
}

/// Returns the differences between a packet of the card and the specification. Fails if the script
/// has an unknown field or name.
pub(crate) fn differences(spec: &Spec, packet: &[u8], names: &Names) -> Result<Vec<String>, String> {
    let (fields, len) = spec.layout();
    if packet.first() != Some(&spec.opcode) {
        return Ok(vec!["another opcode".into()]);
    }
    let attribute = |message: Option<&mad::Message>| message.map(|message| message.attribute);
    if attribute(spec.message) != attribute(mad::message_in(packet)) {
        return Ok(vec!["another message".into()]);
    }
    let mut found = Vec::new();
    for (name, number) in &spec.fields {
        let field = find(fields, spec, name)?;
        let (wanted, is) = (field.fit(number.value(names)?), field.get(packet).unwrap_or_default());
        if wanted != is {
            found.push(format!("{name} is {}, not {}", format_value(name, is), format_value(name, wanted)));
        }
    }
    let syndrome = find(fields, spec, "syndrome").ok().and_then(|field| field.get(packet));
    let is_named = spec.fields.iter().any(|(name, _)| name == "syndrome");
    if let Some(syndrome) = syndrome.filter(|syndrome| !is_named && *syndrome >= 0x20) {
        found.push(format!("syndrome is {syndrome:#04x}, not an acknowledgement"));
    }
    if let Some(data) = &spec.payload {
        let (mut wanted, is) = (data.bytes(names)?, layout::payload(packet, len).unwrap_or_default());
        if spec.message.is_some() {
            // Private data has a fixed length and is padded with zeros.
            wanted.resize(wanted.len().max(is.len()), 0);
        }
        found.extend(bytes_differ("payload", &wanted, is));
    }
    Ok(found)
}

/// Describes the first difference of two byte strings; `what` names them.
pub(crate) fn bytes_differ(what: &str, wanted: &[u8], is: &[u8]) -> Option<String> {
    if wanted.len() != is.len() {
        return Some(format!("{what} has {} bytes, not {}", is.len(), wanted.len()));
    }
    let at = wanted.iter().zip(is).position(|(wanted, is)| wanted != is)?;
    let show = |bytes: &[u8]| to_hex(&bytes[at..bytes.len().min(at + 8)]);
    Some(format!("{what} differs from byte {at}: {}, not {}", show(is), show(wanted)))
}

fn format_value(name: &str, value: u64) -> String {
    match name {
        "psn" | "msn" | "dmalen" | "pad" => value.to_string(),
        _ => format!("{value:#x}"),
    }
}

/// Returns true if the step ignores this packet, which is not the expected one. `is_same_qp` is
/// true if the packet goes to the queue pair of the expected one.
pub(crate) fn is_skipped(
    spec: &Spec,
    skips: Skips,
    is_same_qp: bool,
    packet: &[u8],
    names: &Names,
) -> Result<bool, String> {
    // A CNP answers no request, so it may arrive at any time.
    if packet.first() == Some(&0x81) && spec.opcode != 0x81 {
        return Ok(true);
    }
    match skips {
        Skips::Nothing => Ok(false),
        Skips::Everything => Ok(true),
        Skips::Mra => Ok(mad::is_mra(packet)),
        Skips::EarlierAcks => {
            let wanted = spec.fields.iter().find(|(name, _)| name == "psn");
            let wanted = wanted.map(|(_, number)| number.value(names)).transpose()?;
            let (fields, _) = spec.layout();
            let get = |name| find(fields, spec, name).ok().and_then(|field| field.get(packet));
            let is_ack = packet.first() == Some(&spec.opcode) && get("syndrome").is_some_and(|byte| byte < 0x20);
            let psn = get("psn").map(|psn| Psn::new(psn as u32));
            let is_earlier = |(wanted, psn): (u64, Psn)| psn.is_before(Psn::new(wanted as u32));
            Ok(is_same_qp && is_ack && wanted.zip(psn).is_some_and(is_earlier))
        }
    }
}

/// Returns why a packet of the card is malformed; `near_qpns` are the queue pairs of the near side.
pub(crate) fn flaw(net: &NetHeader, packet: &[u8], near_qpns: &[u32]) -> Option<String> {
    let (_, len) = layout::fields(*packet.first()?);
    let get = |name| layout::get(packet, name);
    let Some(body) = packet.len().checked_sub(len + layout::ICRC_LEN) else {
        return Some("it is shorter than its headers".into());
    };
    let (covered, icrc) = packet.split_at(packet.len() - layout::ICRC_LEN);
    if layout::icrc(net, covered) != icrc {
        return Some("its ICRC is wrong".into());
    }
    let pad = get("pad").unwrap_or_default() as usize;
    if body % 4 != 0 || pad > body {
        return Some(format!("{body} bytes follow the headers, {pad} of them padding"));
    }
    if covered.iter().rev().take(pad).any(|byte| *byte != 0) {
        return Some("its padding is not zero".into());
    }
    for field in ["tver", "resv6", "resv7", "resv8", "resv26", "reserved", "reserved2"] {
        if get(field).is_some_and(|value| value != 0) {
            return Some(format!("{field} is not 0"));
        }
    }
    if get("pkey") != Some(0xffff) {
        return Some("its P_Key is not the default one".into());
    }
    if let Some(flaw) = mad::is_mad(packet).then(|| mad::flaw(packet)).flatten() {
        return Some(flaw);
    }
    let dqpn = get("dqpn").unwrap_or_default();
    let is_known = near_qpns.iter().any(|qpn| u64::from(*qpn) == dqpn);
    (!is_known).then(|| format!("its destination is queue pair {dqpn:#x}, which the near side does not have"))
}

pub(crate) fn describe(packet: &[u8]) -> String {
    if let Some(text) = mad::describe(packet) {
        return text;
    }
    match Packet::parse(packet) {
        Ok(packet) => packet.to_string(),
        Err(error) => {
            let hex = to_hex(&packet[..packet.len().min(32)]);
            format!(
                "{} bytes, not a valid packet ({error}): {hex}{}",
                packet.len(),
                if packet.len() > 32 { ".." } else { "" }
            )
        }
    }
}
