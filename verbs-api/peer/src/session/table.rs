//! The objects of a session by their handles. A handle is never given out twice.

use crate::protocol::{Refusal, Result, limits};
use crate::verbs::{Ah, CmId, Cq, Mr, Mw, Pd, Qp, Srq, Xrcd};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The kinds of objects: how each is called, and the method that finds one.
macro_rules! kinds {
    ($($variant:ident($type:ident) $name:literal $method:ident;)+) => {
        pub(super) enum Object {
            $($variant(Rc<$type>),)+
        }

        impl Object {
            const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Where the library has it, to be compared with what an event is about.
            fn address(&self) -> usize {
                match self {
                    $(Self::$variant(object) => object.raw.addr(),)+
                }
            }

            fn is_shared(&self) -> bool {
                match self {
                    $(Self::$variant(object) => Rc::strong_count(object) > 1,)+
                }
            }

            /// Destroys it; nobody else has it.
            fn destroy(self) -> Result<()> {
                match self {
                    $(Self::$variant(object) => Rc::into_inner(object).map_or(Ok(()), |mut object| object.end()),)+
                }
            }
        }

        impl Table {
            $(pub(super) fn $method(&self, handle: u64) -> Result<Rc<$type>> {
                match self.objects.get(&handle) {
                    Some(Object::$variant(object)) => Ok(Rc::clone(object)),
                    other => Err(not_there($name, handle, other)),
                }
            })+
        }
    };
}

kinds! {
    Pd(Pd) "pd" pd;
    Cq(Cq) "cq" cq;
    Srq(Srq) "srq" srq;
    Qp(Qp) "qp" qp;
    Mr(Mr) "mr" mr;
    Mw(Mw) "mw" mw;
    Ah(Ah) "ah" ah;
    Xrcd(Xrcd) "xrcd" xrcd;
    Cm(CmId) "cm" cm;
}

fn not_there(kind: &str, handle: u64, found: Option<&Object>) -> Refusal {
    let text = found.map_or_else(
        || format!("there is no {kind} {handle}"),
        |object| format!("{handle} is of kind {}, not {kind}", object.kind()),
    );
    Refusal::invalid(text)
}

/// Objects by handle, and the bytes of memory that they have.
#[derive(Default)]
pub(super) struct Table {
    objects: BTreeMap<u64, Object>,
    last: u64,
    memory: usize,
}

impl Table {
    /// Whether one more object may be made, which needs this much memory.
    pub(super) fn has_room(&self, memory: usize) -> Result<()> {
        let refuse = |text: String| Err(Refusal { text, errno: libc::ENOMEM });
        if self.objects.len() >= limits::OBJECTS {
            return refuse(format!("a session has at most {} objects", limits::OBJECTS));
        }
        if memory > limits::MEMORY - self.memory {
            return refuse(format!("a session registers at most {} bytes", limits::MEMORY));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, object: Object) -> u64 {
        if let Object::Mr(mr) = &object {
            self.memory += mr.len();
        }
        self.last += 1;
        self.objects.insert(self.last, object);
        self.last
    }

    /// Destroys an object. One that others still use stays.
    pub(super) fn destroy(&mut self, kind: &str, handle: u64) -> Result<()> {
        let object = self.objects.get(&handle).filter(|object| object.kind() == kind);
        let object = object.ok_or_else(|| not_there(kind, handle, self.objects.get(&handle)))?;
        if object.is_shared() {
            return Err(Refusal { text: format!("{kind} {handle} is still used"), errno: libc::EBUSY });
        }
        let Some(object) = self.objects.remove(&handle) else { return Ok(()) };
        if let Object::Mr(mr) = &object {
            self.memory -= mr.len();
        }
        object.destroy()
    }

    /// Destroys all, those first that use others. A window is bound to a queue pair: rxe would wait
    /// 50 seconds for it if that were destroyed first.
    pub(super) fn clear(&mut self) {
        for kind in ["cm", "mw", "qp", "ah", "mr", "srq", "cq", "xrcd", "pd"] {
            self.objects.retain(|_, object| object.kind() != kind);
        }
        self.memory = 0;
    }

    /// The handle of the object of this kind at this address, if it is still there.
    pub(super) fn at(&self, kind: &str, address: usize) -> Option<u64> {
        let is_it = |object: &Object| object.kind() == kind && object.address() == address;
        self.objects.iter().find(|(_, object)| is_it(object)).map(|(handle, _)| *handle)
    }
}
