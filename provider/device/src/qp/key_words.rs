//! Why a list or a remote key could not be used, in words: what was asked for, and what the key
//! stands for. Runs only when something failed. Reads the table of keys and `/proc/self/maps`.

use roxe_check::explain::Cause;
use roxe_memory::mapped::why_unusable;
use roxe_memory::region::KeyFacts;
use roxe_transport::cx::MemError;
use roxe_transport::wr::{Access, Bind};
use roxe_wire::RKey;

/// A range that was asked for under a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// `lkey` or `rkey`.
    pub(super) kind: &'static str,
    pub(super) key: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: Access,
}

impl Asked {
    /// What was met, and what to do about it.
    pub(super) fn refused(&self, error: MemError, facts: KeyFacts) -> Cause {
        let Self { kind, key, addr, len, access } = *self;
        let (cause, advice) = match (error, facts) {
            (MemError::BadKey, KeyFacts::Dead) => (
                "the region or window that had this key is gone: it was deregistered or deallocated".to_owned(),
                "keep the region registered until the last request that names it is complete",
            ),
            (MemError::BadKey, KeyFacts::Rebound(now)) => (
                format!("the memory window was bound again, under the key {now:#x}"),
                "send the peer the rkey of the newest bind",
            ),
            (MemError::BadKey, _) => (
                "there is no region or window with this key".to_owned(),
                "exchange the keys after the regions are registered, all 32 bits, in one byte order",
            ),
            (MemError::WrongDomain, KeyFacts::Unbound) => (
                "the memory window with this key is not bound: it was invalidated, or has never been bound".to_owned(),
                "bind the window before its rkey is used, and use no rkey after its invalidation",
            ),
            (MemError::WrongDomain, KeyFacts::Null) => {
                ("the key is that of a null region, which only lists can use".to_owned(), "use the rkey of a region")
            }
            (MemError::WrongDomain, KeyFacts::Open { of_qp: true, .. }) => (
                "the memory window of type 2 with this key is bound to another queue pair".to_owned(),
                "bind the window by the queue pair whose peer uses it",
            ),
            (MemError::WrongDomain, KeyFacts::Open { is_window: true, .. }) if kind == "lkey" => {
                ("the key is that of a memory window, which lists cannot use".to_owned(), "use the lkey of the region")
            }
            (MemError::WrongDomain, _) => (
                "the key belongs to another protection domain than the queue pair".to_owned(),
                "register the memory in the protection domain that the queue pair was created in",
            ),
            (MemError::Access, facts) => {
                let granted = match facts {
                    KeyFacts::Open { access, .. } => format!("; it grants {}", names(access)),
                    _ => String::new(),
                };
                (
                    format!("the region does not grant {}{granted}", names(access)),
                    "add the access flag where the region is registered (ibv_reg_mr) or the window is bound",
                )
            }
            (MemError::Range, KeyFacts::Open { base, length, .. }) => (
                format!("not all of it is inside the region, which has {length} bytes from {base:#x} on"),
                "compare the address and the length with what was registered; the address is the virtual one, or \
                 counts from 0 with ZERO_BASED",
            ),
            (MemError::Range, _) => ("not all of it is inside the region".to_owned(), "compare address and length"),
            (MemError::Fault, KeyFacts::Open { addr: memory, base, .. }) => (
                why_unusable(memory.wrapping_add(addr.wrapping_sub(base)), len, is_written(access)),
                "keep the memory mapped, with its rights, until it is deregistered",
            ),
            (MemError::Fault, _) => {
                ("the memory cannot be used any more".to_owned(), "keep the memory mapped until it is deregistered")
            }
        };
        Cause { text: format!("{len} bytes at {addr:#x} under {kind} {key:#x}: {cause}"), advice: advice.to_owned() }
    }
}

/// Why a key could not be invalidated.
pub(super) fn uninvalidated(rkey: RKey, error: MemError, facts: KeyFacts) -> Cause {
    let rkey = rkey.0;
    let cause = match (error, facts) {
        (MemError::BadKey, KeyFacts::Rebound(now)) => {
            format!("rkey {rkey:#x} is a former key of a memory window, which has {now:#x} since it was bound again")
        }
        (MemError::BadKey, KeyFacts::Dead) => format!("the region or window that had rkey {rkey:#x} is gone"),
        (MemError::BadKey, _) => format!("there is no region or window with rkey {rkey:#x}"),
        (MemError::WrongDomain, KeyFacts::Open { of_qp: true, .. }) => {
            format!("the memory window with rkey {rkey:#x} is bound to another queue pair")
        }
        (MemError::WrongDomain, _) => format!("rkey {rkey:#x} belongs to another protection domain"),
        (_, KeyFacts::Unbound) => format!("the memory window with rkey {rkey:#x} is not bound"),
        (_, KeyFacts::Open { is_window: true, .. }) => {
            format!("rkey {rkey:#x} is that of a memory window of type 1, which is bound anew instead")
        }
        _ => format!("rkey {rkey:#x} is that of a region, and only memory windows of type 2 can be invalidated"),
    };
    let advice = "invalidate the newest rkey of a bound window of type 2, once, on the queue pair that bound it";
    Cause { text: cause, advice: advice.to_owned() }
}

/// Why a window could not be bound: `facts` of the window and of the region.
pub(super) fn unbound(bind: &Bind, error: MemError, (window, region): (KeyFacts, KeyFacts)) -> Cause {
    let (rkey, lkey, length) = (bind.rkey.0, bind.lkey.0, bind.length);
    let range = Asked { kind: "lkey", key: lkey, addr: bind.addr, len: length, access: bind.access };
    if matches!(window, KeyFacts::Unknown | KeyFacts::Dead) {
        return Cause {
            text: format!("there is no memory window whose rkey has the index of {rkey:#x}"),
            advice: "take the key from ibv_mw.rkey, and change its low 8 bits only (ibv_inc_rkey)".to_owned(),
        };
    }
    let (text, advice) = match (error, region) {
        (MemError::Access, _) if matches!(window, KeyFacts::Open { of_qp: true, .. }) => (
            format!("the memory window {rkey:#x} of type 2 is bound already"),
            "invalidate the window before it is bound again",
        ),
        (MemError::Access, _) if length == 0 => (
            format!("a memory window of type 2 cannot be bound to {length} bytes"),
            "bind 1 byte or more; an invalidation closes the window",
        ),
        (MemError::Access, KeyFacts::Open { access, .. }) => {
            let mut needed = Access::MW_BIND;
            if is_written(bind.access) {
                needed |= Access::LOCAL_WRITE;
            }
            let (lacks, granted) = (names(needed.difference(access)), names(access));
            match needed.difference(access).is_empty() {
                true => (
                    format!(
                        "the region {lkey:#x} or the window does not take these rights: the region grants {granted}, the \
                         window asks for {}",
                        names(bind.access)
                    ),
                    "a ZERO_BASED region takes no windows, and a ZERO_BASED window has to be of type 2",
                ),
                false => (
                    format!("the region with lkey {lkey:#x} does not grant {lacks}; it grants {granted}"),
                    "add the access flags where the region is registered",
                ),
            }
        }
        _ => return range.refused(error, region),
    };
    Cause { text, advice: advice.to_owned() }
}

/// Returns true if the card writes to memory with these rights.
fn is_written(access: Access) -> bool {
    access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// The flags as in C, or `none`.
fn names(access: Access) -> String {
    if access.is_empty() { "none".to_owned() } else { access.names(" and ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_right_is_named_as_the_flag_to_add() {
        let asked = Asked { kind: "rkey", key: 5, addr: 0x1000, len: 8, access: Access::REMOTE_WRITE };
        let facts = |access| KeyFacts::Open { is_window: false, of_qp: false, addr: 0, base: 0, length: 8, access };
        let Cause { text, .. } = asked.refused(MemError::Access, facts(Access::REMOTE_READ));
        let expected = "8 bytes at 0x1000 under rkey 0x5: the region does not grant IBV_ACCESS_REMOTE_WRITE; it \
                        grants IBV_ACCESS_REMOTE_READ";
        assert_eq!(text, expected);
        let Cause { text, .. } = asked.refused(MemError::Range, facts(Access::REMOTE_WRITE));
        assert!(text.ends_with("inside the region, which has 8 bytes from 0x0 on"), "{text}");
    }
}
