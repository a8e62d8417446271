//! What the program set on its queue pairs, and where.
//!
//! Kept up to date from the events; rules read it by way of the world. Touches nothing.

use crate::stack::Stack;
use roxe_transport::qp::{AttrMask, QpAttr, QpState};

/// The attributes of one queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    /// Those that are not in `set` have no meaning.
    pub(crate) values: QpAttr,
    pub(crate) set: AttrMask,
    /// The state that the program moved it to; a failure of the card does not show here.
    pub(crate) state: QpState,
    /// The calls that set what there is, oldest first.
    calls: Vec<(AttrMask, Stack)>,
}

impl Attributes {
    /// Whether all of these are set.
    pub(crate) fn has(&self, mask: AttrMask) -> bool {
        self.set.contains(mask)
    }

    /// The call that set `attribute`.
    pub(crate) fn call(&self, attribute: AttrMask) -> Stack {
        let call = self.calls.iter().find(|(mask, _)| mask.contains(attribute));
        call.map_or_else(Stack::unknown, |(_, stack)| stack.clone())
    }

    /// The program set these; back in RESET it begins anew.
    pub(crate) fn modify(&mut self, attr: &QpAttr, mask: AttrMask, stack: &Stack) {
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            *self = Self::default();
        }
        let values = &mut self.values;
        macro_rules! copy {
            ($($bit:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$bit) { values.$field = attr.$field; })*
            };
        }
        copy! {
            ACCESS_FLAGS => access,
            QKEY => qkey,
            AV => av,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RQ_PSN => rq_psn,
            SQ_PSN => sq_psn,
            MAX_QP_RD_ATOMIC => max_rd_atomic,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            DEST_QPN => dest_qpn,
        }
        if mask.contains(AttrMask::STATE) {
            self.state = attr.state;
        }
        self.set |= mask;
        for (earlier, _) in &mut self.calls {
            earlier.remove(mask);
        }
        self.calls.retain(|(earlier, _)| !earlier.is_empty());
        self.calls.push((mask, stack.clone()));
    }
}
