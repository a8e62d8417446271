//! Arguments with values that no card accepts: the checker hears of them before the program gets
//! its error. Values that another card may take are no garbage, and are not told here.

use crate::errno::Errno;
use roxe_check::{Event, tell};

/// `IBV_ACCESS_*`: the bits with a meaning, and those for hints that a device may not know.
const ACCESS: u32 = 0x3ff | 0x3ff0_0000;
/// `IBV_QP_INIT_ATTR_*`, `IBV_SRQ_INIT_ATTR_*`: the bits with a meaning.
const QP_INIT: u32 = 0x7f;
const SRQ_INIT: u32 = 0x1f;
/// `IBV_QP_CREATE_*`: the bits with a meaning.
const CREATE_FLAGS: u32 = 1 << 1 | 0b1111 << 8;

/// A field of a structure and its value.
type Field = (&'static str, u32);

/// Tells that `call` got a value for an argument that can never be right, and gives back `errno`.
#[cold]
pub(crate) fn refuse(errno: Errno, call: &'static str, (argument, value): Field, accepted: &'static str) -> Errno {
    tell(|| Event::Garbage { call, argument, value: value.into(), accepted });
    errno
}

/// The same, if `value` has bits without a meaning.
fn refuse_unknown(errno: Errno, call: &'static str, field: Field, known: u32, accepted: &'static str) -> Errno {
    if field.1 & !known != 0 { refuse(errno, call, field, accepted) } else { errno }
}

/// Access rights that are refused.
#[cold]
pub(crate) fn access(errno: Errno, call: &'static str, field: Field) -> Errno {
    refuse_unknown(errno, call, field, ACCESS, "the bits of enum ibv_access_flags")
}

/// Attributes of a new queue pair that are refused.
#[cold]
pub(crate) fn qp_init(errno: Errno, comp_mask: u32, create_flags: u32) -> Errno {
    let call = "ibv_create_qp_ex";
    if comp_mask & !QP_INIT != 0 {
        return refuse(errno, call, ("comp_mask", comp_mask), "the bits of enum ibv_qp_init_attr_mask");
    }
    let accepted = "the bits of enum ibv_qp_create_flags";
    refuse_unknown(errno, call, ("create_flags", create_flags), CREATE_FLAGS, accepted)
}

/// Attributes of a new shared receive queue that are refused.
#[cold]
pub(crate) fn srq_init(errno: Errno, comp_mask: u32) -> Errno {
    let accepted = "the bits of enum ibv_srq_init_attr_mask";
    refuse_unknown(errno, "ibv_create_srq_ex", ("comp_mask", comp_mask), SRQ_INIT, accepted)
}
