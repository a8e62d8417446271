//! Headers that the fuzz input chooses, with field values near the valid ones.

use roxe_sim::host::Mr;
use roxe_sim::{Choices, Script};
use roxe_wire::{
    Aeth, AtomicAckEth, AtomicEth, Feth, Ieth, ImmDt, Msn, NakCode, Placement, RKey, Request, Response, Reth,
    Selectivity, SendTail, Syndrome,
};

/// FLUSH of a whole region to global visibility.
pub(super) const FLUSH_REGION: Feth =
    Feth { selectivity: Selectivity::Region, placement: Placement::GLOBAL_VISIBILITY };

/// Returns a payload length in bytes, often at the limits of a path MTU of 256 bytes.
pub(super) fn payload_len(choices: &mut Script<'_>) -> usize {
    choices.pick(&[256, 0, 1, 4, 8, 100, 252, 255, 300])
}

/// Returns a request of any kind. Its RETH, if it has one, mostly names one of `mrs`.
pub(super) fn request(choices: &mut Script<'_>, mrs: &[Mr]) -> Request {
    let reth = reth(choices, mrs);
    let imm = ImmDt([9, 8, 7, 6]);
    match choices.below(16) {
        0 => Request::SendOnly(SendTail::Plain),
        1 => Request::SendFirst,
        2 => Request::SendMiddle,
        3 => Request::SendLast(SendTail::Imm(imm)),
        4 => Request::SendLast(SendTail::Plain),
        5 => Request::WriteOnly(reth, None),
        6 => Request::WriteFirst(reth),
        7 => Request::WriteMiddle,
        8 => Request::WriteLast(None),
        9 => Request::WriteLast(Some(imm)),
        10 => Request::WriteOnly(reth, Some(imm)),
        11 => Request::Read(reth),
        12 => Request::FetchAdd(atomic(choices, &reth)),
        13 => Request::CompareSwap(atomic(choices, &reth)),
        14 => Request::SendOnly(SendTail::Invalidate(Ieth(reth.rkey))),
        _ => atomic_write_or_flush(choices, reth),
    }
}

/// Returns a mostly valid request.
fn atomic_write_or_flush(choices: &mut Script<'_>, reth: Reth) -> Request {
    if choices.chance_per_mille(500) {
        let dma_len = if choices.chance_per_mille(800) { 8 } else { reth.dma_len };
        return Request::AtomicWrite(Reth { dma_len, ..reth });
    }
    let selectivity = choices.pick(&[Selectivity::Range, Selectivity::Region, Selectivity::Reserved(2)]);
    let has_random_placement = choices.chance_per_mille(300);
    let placement =
        if has_random_placement { Placement(choices.below(16) as u8) } else { Placement::GLOBAL_VISIBILITY };
    Request::Flush(Feth { selectivity, placement }, reth)
}

/// Returns a RETH that mostly starts inside a region. It may also start just before the region, end
/// at or just past the region's end, or start 8 bytes below the end of the address space. One rkey
/// in ten is random.
fn reth(choices: &mut Script<'_>, mrs: &[Mr]) -> Reth {
    let mr = choices.pick(mrs);
    let dma_len = choices.pick(&[256, 0, 1, 4, 8, 300, 512, 600, 1 << 16, 1 << 31, u32::MAX]);
    let end = mr.addr + u64::from(mr.len);
    let va = match choices.below(8) {
        0 => u64::MAX - 7,
        1 => mr.addr.wrapping_sub(1),
        2 | 3 => end.wrapping_sub(u64::from(dma_len)).wrapping_add(u64::from(choices.below(2))),
        4 => mr.addr + u64::from(choices.below(mr.len)),
        _ => mr.addr + u64::from(choices.below(mr.len / 8)) * 8,
    };
    let rkey = if choices.chance_per_mille(100) { RKey(choices.below(1 << 16)) } else { mr.rkey() };
    Reth { va, rkey, dma_len }
}

fn atomic(choices: &mut Script<'_>, reth: &Reth) -> AtomicEth {
    let swap_or_add = u64::from(choices.below(256)) << 20;
    // The memory is zero at first, so a compare value of 0 mostly matches, and 1 does not.
    AtomicEth { va: reth.va, rkey: reth.rkey, swap_or_add, compare: u64::from(choices.below(2)) }
}

/// Returns a response of any kind. `atomic_result` is the value in an ATOMIC Acknowledge.
pub(super) fn response(choices: &mut Script<'_>, atomic_result: u64) -> Response {
    let aeth = Aeth { syndrome: syndrome(choices), msn: Msn::new(choices.below(8)) };
    match choices.below(8) {
        0..=2 => Response::Ack(aeth),
        3 => Response::ReadFirst(aeth),
        4 => Response::ReadMiddle,
        5 => Response::ReadLast(aeth),
        6 => Response::ReadOnly(aeth),
        _ => Response::AtomicAck(aeth, AtomicAckEth(atomic_result)),
    }
}

fn syndrome(choices: &mut Script<'_>) -> Syndrome {
    match choices.below(10) {
        0..=4 => Syndrome::ACK_UNLIMITED,
        5 => Syndrome::RnrNak { timer: choices.below(32) as u8 },
        6 | 7 => Syndrome::Nak(NakCode::PsnSequence),
        8 => Syndrome::Nak(choices.pick(&[
            NakCode::InvalidRequest,
            NakCode::RemoteAccess,
            NakCode::RemoteOperation,
            NakCode::InvalidRd,
        ])),
        _ => Syndrome::Reserved(0x5f),
    }
}
