//! Errors for arguments with undefined values, which no card accepts. The checker reports them, in
//! addition to the errno. Values that another card may accept are refused without a report.

use crate::errno::{Errno, invalid};
use crate::wr_batch;
use roxe_check::{Event, emit, explain};
use roxe_provider::{Access, Service};

/// Defined bits of `IBV_ACCESS_*`, and the bits of hints that a device may ignore.
const DEFINED_ACCESS: u32 = 0x3ff | 0x3ff0_0000;
/// Defined bits of `IBV_QP_INIT_ATTR_*` and `IBV_SRQ_INIT_ATTR_*`.
const DEFINED_QP_INIT: u32 = 0x7f;
const DEFINED_SRQ_INIT: u32 = 0x1f;
/// Defined bits of `IBV_CQ_INIT_ATTR_MASK_*` and `IBV_CREATE_CQ_ATTR_*`.
const DEFINED_CQ_INIT: u32 = 0x3;
const DEFINED_CQ_FLAGS: u32 = 0x3;
const DEFINED_SEND_OPS: u32 = 0x1fff;
const DEFINED_QP_FLAGS: u32 = 1 << 1 | 0b1111 << 8;

type Field = (&'static str, u32);

/// Reports to the checker an undefined value that the program passed to `call`; returns `errno`.
#[cold]
pub(crate) fn refuse(errno: Errno, call: &'static str, (argument, value): Field, accepted: &'static str) -> Errno {
    emit(|| Event::UndefinedValue { call, argument, value: value.into(), accepted });
    explain::because(|| format!("{argument} is {value:#x}; accepted are {accepted}"));
    errno
}

/// Returns `errno`. Reports the value like [`refuse`] if it has undefined bits; otherwise it has
/// defined bits that this device lacks.
#[cold]
pub(crate) fn refuse_unknown(
    errno: Errno,
    call: &'static str,
    field: Field,
    (known, supported): (u32, u32),
    accepted: &'static str,
) -> Errno {
    let (argument, value) = field;
    if value & !known != 0 {
        return refuse(errno, call, field, accepted);
    }
    explain::because(|| format!("{argument} is {value:#x}; of {accepted}, the device supports {supported:#x}"));
    errno
}

#[cold]
pub(crate) fn access(errno: Errno, call: &'static str, field: Field) -> Errno {
    refuse_unknown(errno, call, field, (DEFINED_ACCESS, Access::all().bits()), "the bits of enum ibv_access_flags")
}

#[cold]
pub(crate) fn qp_init(
    errno: Errno,
    (comp_mask, supported): (u32, u32),
    create_flags: u32,
    ops: (u64, Service),
) -> Errno {
    let call = "ibv_create_qp_ex";
    if comp_mask & !supported != 0 {
        let accepted = "the bits of enum ibv_qp_init_attr_mask";
        return refuse_unknown(errno, call, ("comp_mask", comp_mask), (DEFINED_QP_INIT, supported), accepted);
    }
    let (ops, service) = ops;
    let known = wr_batch::operations_of(service);
    // The conversions lose nothing, because there are fewer than 32 operations.
    if create_flags == 0 && ops & !known != 0 {
        let field = ("send_ops_flags", u32::try_from(ops).unwrap_or(u32::MAX));
        let accepted = "the bits of enum ibv_qp_create_send_ops_flags";
        return refuse_unknown(errno, call, field, (DEFINED_SEND_OPS, (known & u64::from(u32::MAX)) as u32), accepted);
    }
    let accepted = "the bits of enum ibv_qp_create_flags";
    refuse_unknown(errno, call, ("create_flags", create_flags), (DEFINED_QP_FLAGS, 0), accepted)
}

#[cold]
pub(crate) fn cq_init(errno: Errno, comp_mask: u32, flags: u32) -> Errno {
    let call = "ibv_create_cq_ex";
    if comp_mask & !DEFINED_CQ_INIT != 0 {
        return refuse(errno, call, ("comp_mask", comp_mask), "the bits of enum ibv_cq_init_attr_mask");
    }
    let accepted = "the bits of enum ibv_create_cq_attr_flags";
    refuse_unknown(errno, call, ("flags", flags), (DEFINED_CQ_FLAGS, DEFINED_CQ_FLAGS), accepted)
}

#[cold]
pub(crate) fn srq_init(errno: Errno, comp_mask: u32) -> Errno {
    let accepted = "the bits of enum ibv_srq_init_attr_mask";
    refuse_unknown(errno, "ibv_create_srq_ex", ("comp_mask", comp_mask), (DEFINED_SRQ_INIT, DEFINED_SRQ_INIT), accepted)
}

/// Returns EINVAL for attributes without the bit of the protection domain.
pub(crate) fn lacks_pd(comp_mask: u32) -> Errno {
    invalid(|| {
        format!("comp_mask is {comp_mask:#x}, without the bit for pd (IBV_QP_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD)")
    })
}
