//! Flow steering (`man ibv_create_flow`): parses rules of C programs. Also sets of counters for
//! flows (`man ibv_create_counters`).
//!
//! A rule is an `ibv_flow_attr` followed by specifications, each with its own length, not aligned.
//! A specification of packet headers contains a filter with values and one with masks; [`FORMATS`]
//! has the offsets of their fields.

use crate::abi::{
    ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow, ibv_flow_attr, ibv_qp,
    ibv_qp_ex,
};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, pointer, required, status};
use crate::object::Object;
use crate::objects::context;
use core::ffi::c_int;
use core::ops::Range;
use roxe_provider::wire::frame::{Contradiction, Field, FrameMatch};
use roxe_provider::{CounterKind, FlowCounters, FlowInit, RuleKind, Service};
use std::sync::Arc;

/// `IBV_FLOW_ATTR_FLAGS_DONT_TRAP` and `IBV_FLOW_ATTR_FLAGS_EGRESS`.
const DONT_TRAP: u32 = 1 << 1;
const EGRESS: u32 = 1 << 2;
/// `IBV_FLOW_SPEC_INNER`: matches headers inside a tunnel.
const INNER: u32 = 0x100;
/// `IBV_FLOW_SPEC_ACTION_TAG`, `_DROP` and `_COUNT`.
const ACTION_TAG: u32 = 0x1000;
const ACTION_DROP: u32 = 0x1001;
const ACTION_COUNT: u32 = 0x1003;
/// `IBV_FLOW_SPEC_ESP`, `_VXLAN_TUNNEL`, `_GRE`, `_MPLS`, `_ACTION_HANDLE`: not supported.
const UNSUPPORTED: [u32; 5] = [0x34, 0x50, 0x51, 0x60, 0x1002];
/// Bytes of the type and the size at the start of every specification.
const SPEC_HEADER_LEN: usize = 6;
/// Bytes of the longest specification, IPv6.
const MAX_SPEC_LEN: usize = 88;

/// A field of a packet header, and its bytes in a filter.
type FieldRange = (Field, Range<usize>);

/// Layout of a specification.
struct Format {
    /// `enum ibv_flow_spec_type`.
    kind: u32,
    /// Bytes of the specification.
    size: usize,
    /// Offset of the value filter; the mask filter follows it.
    filter: usize,
    /// Bytes of each filter.
    filter_len: usize,
    fields: &'static [FieldRange],
    /// Matches that the type of the specification implies.
    implied: &'static [(Field, &'static [u8])],
}

const IPV4: &[FieldRange] = &[(Field::SrcIp, 0..4), (Field::DstIp, 4..8)];
const IPV4_EXT: &[FieldRange] = &[
    (Field::SrcIp, 0..4),
    (Field::DstIp, 4..8),
    (Field::Protocol, 8..9),
    (Field::TrafficClass, 9..10),
    (Field::HopLimit, 10..11),
    (Field::Ipv4Flags, 11..12),
];
const IPV6: &[FieldRange] = &[
    (Field::SrcIp, 0..16),
    (Field::DstIp, 16..32),
    (Field::FlowLabel, 32..36),
    (Field::Protocol, 36..37),
    (Field::TrafficClass, 37..38),
    (Field::HopLimit, 38..39),
];
const ETH: &[FieldRange] =
    &[(Field::DstMac, 0..6), (Field::SrcMac, 6..12), (Field::EtherType, 12..14), (Field::VlanTag, 14..16)];
const PORTS: &[FieldRange] = &[(Field::DstPort, 0..2), (Field::SrcPort, 2..4)];
const IS_IPV4: &[(Field, &[u8])] = &[(Field::EtherType, &[0x08, 0x00]), (Field::IpVersion, &[4])];
const IS_IPV6: &[(Field, &[u8])] = &[(Field::EtherType, &[0x86, 0xdd]), (Field::IpVersion, &[6])];

/// Ethernet, IPv4, IPv4_EXT, IPv6, TCP, UDP, with the offsets of `infiniband/verbs.h`.
const FORMATS: [Format; 6] = [
    Format { kind: 0x20, size: 40, filter: 6, filter_len: 16, fields: ETH, implied: &[] },
    Format { kind: 0x30, size: 24, filter: 8, filter_len: 8, fields: IPV4, implied: IS_IPV4 },
    Format { kind: 0x32, size: 32, filter: 8, filter_len: 12, fields: IPV4_EXT, implied: IS_IPV4 },
    Format { kind: 0x31, size: 88, filter: 8, filter_len: 40, fields: IPV6, implied: IS_IPV6 },
    Format { kind: 0x40, size: 16, filter: 6, filter_len: 4, fields: PORTS, implied: &[(Field::L4, &[6])] },
    Format { kind: 0x41, size: 16, filter: 6, filter_len: 4, fields: PORTS, implied: &[(Field::L4, &[17])] },
];

/// All specifications of a rule together.
#[derive(Default)]
struct Specs {
    filter: FrameMatch,
    /// True if a specification matches header fields.
    has_headers: bool,
    /// True if the rule drops the frames that it matches.
    drops: bool,
    tag: Option<u32>,
    counters: Vec<Arc<FlowCounters>>,
}

impl Specs {
    /// Adds a specification. Fails with EINVAL if it is too short, unknown or contradicts another;
    /// EOPNOTSUPP for a header or an action that is not supported.
    fn add(&mut self, kind: u32, bytes: &[u8]) -> Result<()> {
        match kind {
            ACTION_TAG => {
                let tag = u32::from_ne_bytes(*field_bytes(bytes, 8)?);
                if self.tag.replace(tag).is_some() { Err(EINVAL) } else { Ok(()) }
            }
            ACTION_DROP => {
                self.drops = true;
                Ok(())
            }
            ACTION_COUNT => {
                let address = usize::from_ne_bytes(*field_bytes(bytes, 8)?);
                let handle = core::ptr::with_exposed_provenance_mut::<ibv_counters>(address);
                self.counters.push(Arc::clone(&Object::<ibv_counters>::live(handle)?.inner));
                Ok(())
            }
            _ if kind & INNER != 0 || UNSUPPORTED.contains(&kind) => Err(EOPNOTSUPP),
            _ => {
                let format = FORMATS.iter().find(|format| format.kind == kind).ok_or(EINVAL)?;
                let spec = bytes.get(..format.size).ok_or(EINVAL)?;
                self.has_headers = true;
                self.require(format, spec).map_err(|Contradiction| EINVAL)
            }
        }
    }

    fn require(&mut self, format: &Format, spec: &[u8]) -> core::result::Result<(), Contradiction> {
        let (value, mask) = spec.get(format.filter..).unwrap_or_default().split_at(format.filter_len);
        for (field, range) in format.fields {
            let (value, mask) = (&value[range.clone()], &mask[range.clone()]);
            self.filter.require(*field, value, mask)?;
            // A frame with tag 0 differs from a frame without a tag.
            if *field == Field::VlanTag && mask != [0, 0] {
                self.filter.require_exactly(Field::IsTagged, &[1])?;
            }
        }
        format.implied.iter().try_for_each(|(field, value)| self.filter.require_exactly(*field, value))
    }
}

/// Returns the bytes at `offset` of a specification. Fails with EINVAL if it is too short.
fn field_bytes<const N: usize>(bytes: &[u8], offset: usize) -> Result<&[u8; N]> {
    bytes.get(offset..).and_then(<[u8]>::first_chunk).ok_or(EINVAL)
}

/// Parses the specifications of a rule.
///
/// # Safety
/// `attr` points to a whole rule: the structure and its specifications, each with the length in its
/// `size` field.
unsafe fn parse_specs(attr: *const ibv_flow_attr) -> Result<Specs> {
    let mut specs = Specs::default();
    let mut at = attr.wrapping_add(1).cast::<u8>();
    // SAFETY: the caller guarantees a whole structure; it need not be aligned.
    let count = unsafe { (&raw const (*attr).num_of_specs).read_unaligned() };
    for _ in 0..count {
        // SAFETY: the caller guarantees `count` specifications, which start with these bytes.
        let header = unsafe { at.cast::<[u8; SPEC_HEADER_LEN]>().read_unaligned() };
        let [a, b, c, d, e, f] = header;
        let (kind, size) = (u32::from_ne_bytes([a, b, c, d]), usize::from(u16::from_ne_bytes([e, f])));
        if size < SPEC_HEADER_LEN {
            return Err(EINVAL);
        }
        let mut bytes = [0; MAX_SPEC_LEN];
        let read = size.min(MAX_SPEC_LEN);
        // SAFETY: the caller guarantees `size` bytes; `read` exceeds neither these nor `bytes`.
        unsafe { at.copy_to_nonoverlapping(bytes.as_mut_ptr(), read) };
        specs.add(kind, &bytes[..read])?;
        at = at.wrapping_add(size);
    }
    Ok(specs)
}

/// Returns the kind of a rule, and true if frames that match it pass on to other rules. Fails with
/// EINVAL for undefined values, EOPNOTSUPP for egress rules.
fn rule_kind(attr: &ibv_flow_attr) -> Result<(RuleKind, bool)> {
    if attr.comp_mask != 0 || attr.port != 1 || attr.flags & !(DONT_TRAP | EGRESS) != 0 {
        return Err(EINVAL);
    }
    if attr.flags & EGRESS != 0 {
        return Err(EOPNOTSUPP);
    }
    let kind = match attr.flow_type {
        0 => RuleKind::Normal(attr.priority),
        1 => RuleKind::AllDefault,
        2 => RuleKind::MulticastDefault,
        3 => RuleKind::Sniffer,
        _ => return Err(EINVAL),
    };
    Ok((kind, attr.flags & DONT_TRAP != 0))
}

/// Parses a rule.
///
/// # Safety
/// The contract of [`parse_specs`].
unsafe fn parse_rule(attr: *const ibv_flow_attr) -> Result<FlowInit> {
    // SAFETY: the caller guarantees a whole structure; it need not be aligned.
    let (kind, continues) = rule_kind(&unsafe { attr.read_unaligned() })?;
    // SAFETY: the caller guarantees a whole rule.
    let Specs { filter, has_headers, drops, tag, counters } = unsafe { parse_specs(attr) }?;
    if has_headers && !matches!(kind, RuleKind::Normal(_)) {
        return Err(EINVAL);
    }
    Ok(FlowInit { kind, filter, continues, drops, tag: tag.unwrap_or_default(), counters })
}

/// `man ibv_create_flow`: fails with EOPNOTSUPP for UD and for matches that are not supported.
pub(crate) unsafe extern "C" fn create_flow(handle: *mut ibv_qp, attr: *mut ibv_flow_attr) -> *mut ibv_flow {
    pointer(|| {
        let qp = Object::<ibv_qp_ex>::live(handle)?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        if qp.inner.service == Service::Ud {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: not NULL; the program passes a whole rule that is valid during the call.
        let flow = qp.inner.qp.create_flow(unsafe { parse_rule(attr) }?)?;
        // SAFETY: `live` found the object, so its structure is alive; nothing writes the field
        // after creation.
        let context = unsafe { (&raw const (*handle).context).read() };
        Ok(Object::publish_numbered(flow, |number| ibv_flow { comp_mask: 0, context, handle: number }))
    })
}

/// `man ibv_create_flow`.
pub(crate) unsafe extern "C" fn destroy_flow(handle: *mut ibv_flow) -> c_int {
    status(|| Object::<ibv_flow>::destroy(handle, |_| Ok(())))
}

/// `IBV_READ_COUNTERS_ATTR_PREFER_CACHED`; ignored, because there is no slower copy.
const PREFER_CACHED: u32 = 1;
/// Largest number of values; limits the memory that a call with a wrong count overwrites.
const MAX_VALUES: usize = 1 << 20;

fn counters<'a>(handle: *mut ibv_counters) -> Result<&'a Arc<FlowCounters>> {
    Object::<ibv_counters>::live(handle).map(|object| &object.inner)
}

pub(crate) unsafe extern "C" fn create_counters(
    handle: *mut ibv_context,
    init: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    pointer(|| {
        context(handle)?;
        match required!(init).comp_mask {
            0 => Ok(Object::publish_numbered(Arc::default(), |_| ibv_counters { context: handle })),
            _ => Err(EOPNOTSUPP),
        }
    })
}

/// `man ibv_create_counters`: fails with EBUSY while flows use them.
pub(crate) unsafe extern "C" fn destroy_counters(handle: *mut ibv_counters) -> c_int {
    status(|| Object::<ibv_counters>::destroy(handle, |counters| counters.destroy()))
}

/// `man ibv_attach_counters_point_flow`: fails with EOPNOTSUPP for a flow that exists already.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    handle: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    status(|| {
        let counters = counters(handle)?;
        let attr = required!(attr);
        if !flow.is_null() {
            return Err(EOPNOTSUPP);
        }
        let kind = match (attr.counter_desc, attr.comp_mask) {
            (0, 0) => CounterKind::Packets,
            (1, 0) => CounterKind::Bytes,
            (_, 0) => return Err(EOPNOTSUPP),
            _ => return Err(EINVAL),
        };
        Ok(counters.attach(kind, attr.index)?)
    })
}

pub(crate) unsafe extern "C" fn read_counters(
    handle: *mut ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    status(|| {
        let counters = counters(handle)?;
        let count = usize::try_from(count).map_err(|_| EINVAL)?;
        if values.is_null() || flags & !PREFER_CACHED != 0 || count > MAX_VALUES {
            return Err(EINVAL);
        }
        // SAFETY: not NULL; the program passes an array of `count` values, valid during the call.
        Ok(counters.read(unsafe { core::slice::from_raw_parts_mut(values, count) })?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a specification: type, size, then `filters`.
    fn spec(kind: u32, size: usize, filter: usize, filters: &[u8]) -> Vec<u8> {
        let mut bytes = [&kind.to_ne_bytes()[..], &(size as u16).to_ne_bytes()].concat();
        bytes.resize(filter, 0);
        bytes.extend_from_slice(filters);
        bytes.resize(size, 0);
        bytes
    }

    /// Parses a rule followed by `specs`, at an unaligned address.
    fn parse(attr: ibv_flow_attr, specs: &[Vec<u8>]) -> Result<FlowInit> {
        let attr = ibv_flow_attr { num_of_specs: specs.len() as u8, ..attr };
        let mut bytes = vec![0; 1 + size_of::<ibv_flow_attr>()];
        // SAFETY: `bytes` has space for the structure after its first byte.
        unsafe { bytes.as_mut_ptr().add(1).cast::<ibv_flow_attr>().write_unaligned(attr) };
        bytes.extend(specs.concat());
        // SAFETY: `bytes` holds the structure and `num_of_specs` specifications after its first
        // byte.
        unsafe { parse_rule(bytes.as_ptr().add(1).cast()) }
    }

    fn normal() -> ibv_flow_attr {
        ibv_flow_attr { comp_mask: 0, flow_type: 0, size: 0, priority: 7, num_of_specs: 0, port: 1, flags: 0 }
    }

    #[test]
    fn specifications_are_combined_into_one_match() {
        let mac = [&[1, 2, 3, 4, 5, 6][..], &[0; 10], &[0xff; 6], &[0; 10]].concat();
        let ports = [&5678u16.to_be_bytes()[..], &[0, 0], &[0xff, 0xff], &[0, 0]].concat();
        let rule = parse(normal(), &[spec(0x20, 40, 6, &mac), spec(0x41, 16, 6, &ports)]).unwrap();
        let mut filter = FrameMatch::default();
        filter.require_exactly(Field::DstMac, &[1, 2, 3, 4, 5, 6]).unwrap();
        filter.require_exactly(Field::L4, &[17]).unwrap();
        filter.require_exactly(Field::DstPort, &5678u16.to_be_bytes()).unwrap();
        assert_eq!((rule.filter, rule.kind), (filter, RuleKind::Normal(7)));
        assert!(!rule.continues && !rule.drops && rule.tag == 0);
    }

    #[test]
    fn vlan_tag_zero_matches_tagged_frames_only() {
        let tag = [&[0; 16][..], &[0; 14], &[0x0f, 0xff]].concat();
        let rule = parse(normal(), &[spec(0x20, 40, 6, &tag)]).unwrap();
        let mut filter = FrameMatch::default();
        filter.require(Field::VlanTag, &[0, 0], &[0x0f, 0xff]).unwrap();
        filter.require_exactly(Field::IsTagged, &[1]).unwrap();
        assert_eq!(rule.filter, filter);
    }

    #[test]
    fn actions_set_flags_tag_and_counters() {
        let tag = spec(ACTION_TAG, 12, 8, &0x1234u32.to_ne_bytes());
        let rule = parse(ibv_flow_attr { flags: DONT_TRAP, ..normal() }, &[tag.clone(), spec(ACTION_DROP, 8, 8, &[])]);
        let rule = rule.unwrap();
        assert!(rule.continues && rule.drops && rule.tag == 0x1234);
        assert_eq!(parse(normal(), &[tag.clone(), tag]).unwrap_err(), EINVAL);
        let foreign = spec(ACTION_COUNT, 16, 8, &8usize.to_ne_bytes());
        assert_eq!(parse(normal(), &[foreign]).unwrap_err(), EINVAL);
    }

    #[test]
    fn invalid_rules_are_refused() {
        let kind_with = |change: fn(&mut ibv_flow_attr)| {
            let mut attr = normal();
            change(&mut attr);
            parse(attr, &[]).map(|rule| rule.kind)
        };
        assert_eq!(kind_with(|attr| attr.flow_type = 3), Ok(RuleKind::Sniffer));
        assert_eq!(kind_with(|attr| attr.flow_type = 4), Err(EINVAL));
        assert_eq!(kind_with(|attr| attr.port = 2), Err(EINVAL));
        assert_eq!(kind_with(|attr| attr.comp_mask = 1), Err(EINVAL));
        assert_eq!(kind_with(|attr| attr.flags = 1), Err(EINVAL));
        assert_eq!(kind_with(|attr| attr.flags = EGRESS), Err(EOPNOTSUPP));
        let one = |kind, size| parse(normal(), &[spec(kind, size, 6, &[])]).map(|rule| rule.drops);
        assert_eq!((one(0x21, 40), one(0x20, 39)), (Err(EINVAL), Err(EINVAL)));
        let shorter_than_its_header = vec![0x20, 0, 0, 0, 5, 0];
        assert_eq!(parse(normal(), &[shorter_than_its_header]).unwrap_err(), EINVAL);
        assert_eq!(
            (one(0x50, 16), one(0x120, 40), one(0x1002, 16)),
            (Err(EOPNOTSUPP), Err(EOPNOTSUPP), Err(EOPNOTSUPP))
        );
        let both = [spec(0x30, 24, 8, &[]), spec(0x31, 88, 8, &[])];
        assert_eq!(parse(normal(), &both).unwrap_err(), EINVAL, "no frame is both IPv4 and IPv6");
        let sniffer = ibv_flow_attr { flow_type: 3, ..normal() };
        assert_eq!(parse(sniffer, &both[..1]).unwrap_err(), EINVAL);
    }
}
