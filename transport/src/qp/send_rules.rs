//! Which send work requests a queue pair takes at all. Touches [`Shared`] only.

use crate::qp::error::PostError;
use crate::qp::shared::{Service, Shared};
use crate::wr::{Access, SendData, SendOp, SendRequest};

/// What this QP may never do, found at post time.
pub(super) fn check_op(sh: &Shared, req: &SendRequest<'_>) -> Result<(), PostError> {
    use SendOp::{
        AtomicWrite, BindWindow, CompareSwap, FetchAdd, Flush, LocalInvalidate, Read, Send, SendImm, SendInvalidate,
        Write, WriteImm,
    };
    let is_inline = matches!(req.data, SendData::Inline(_));
    // clause: SEND-OPERATIONS
    let possible = match (req.op, sh.config.service) {
        (_, Service::XrcTgt) => false,
        // clause: RAW-FRAME
        (op, Service::Raw) => matches!(op, Send),
        (Send | SendImm(_), _) => true,
        (Write { .. } | WriteImm { .. }, Service::Rc | Service::Uc | Service::XrcIni)
        | (SendInvalidate(_), Service::Rc | Service::XrcIni) => true,
        (LocalInvalidate(_) | BindWindow { .. }, Service::Rc | Service::Uc | Service::XrcIni) => true,
        (Read { .. } | CompareSwap { .. } | FetchAdd { .. }, Service::Rc | Service::XrcIni) => {
            !is_inline && sh.attr.max_rd_atomic > 0
        }
        // clause: NONPOSTED-PLACE
        (AtomicWrite { .. }, Service::Rc | Service::XrcIni) => sh.attr.max_rd_atomic > 0,
        (Flush { feth, .. }, Service::Rc | Service::XrcIni) => {
            !is_inline && sh.attr.max_rd_atomic > 0 && Access::of_flush(&feth).is_some()
        }
        (_, Service::Uc | Service::Ud) => false,
    };
    if !possible {
        return Err(PostError::BadOpcode);
    }
    if sh.config.service == Service::Ud && req.ud.is_none() {
        return Err(PostError::MissingDestination);
    }
    Ok(())
}
