//! Objects that C programs hold pointers to, and the registry of those that are alive.
//!
//! An object is one heap block: first the C structure that the program sees and may write to, then
//! the Rust part. In control calls the registry turns NULL, foreign and stale handles into EINVAL.
//! A call also fails while the program has overwritten the `context` or `handle` field of the
//! structure. Late events of a destroyed object are dropped. The data path skips the registry and
//! only compares handles with NULL, as every verbs library does.

use crate::abi::ibv_pd;
use crate::errno::{EINVAL, ENOENT, Errno, Result, invalid};
use crate::lock::Registry as RegistryRank;
use core::alloc::Layout;
use core::any::TypeId;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Deref;
use core::ptr::NonNull;
use parking_lot::Condvar;
use roxe_check::{Event, explain};
use roxe_provider::ObjectId;
use roxe_provider::lock::Mutex;
use std::alloc::dealloc;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A C structure that starts an object, and the handle that programs hold.
///
/// # Safety
/// `HANDLE_OFFSET` is the offset of a `Handle` inside `Self`, `CONTEXT_FIELD` that of a pointer and
/// `HANDLE_FIELD` that of a 32-bit number.
pub(crate) unsafe trait Exposed: 'static {
    /// The type that the program's pointer points to.
    type Handle;
    type Inner: Send + Sync;
    const HANDLE_OFFSET: usize = 0;
    /// Offset of the pointer to the object's context, if the structure has one.
    const CONTEXT_FIELD: Option<usize> = None;
    /// Offset of the object's number, if the structure has one.
    const HANDLE_FIELD: Option<usize> = None;
}

/// With the checker on, a destroy waits this long for acknowledgements before it is reported.
const ACK_GRACE: Duration = Duration::from_secs(2);

/// Declares C structures that start objects: `structure => handle [at field]: Rust part, context =
/// field, number = field`.
macro_rules! exposed {
    ($($structure:ident => $handle:ident $(at $at:ident)?: $inner:ty
        $(, context = $($context:ident).+)? $(, number = $($number:ident).+)?;)+) => {
        $(
            // SAFETY: the handle is the field of that name, or what the structure starts with; the
            // offsets are those of fields of these types.
            unsafe impl crate::object::Exposed for $structure {
                type Handle = $handle;
                type Inner = $inner;
                $(const HANDLE_OFFSET: usize = core::mem::offset_of!(Self, $at);)?
                $(const CONTEXT_FIELD: Option<usize> = Some(core::mem::offset_of!(Self, $($context).+));)?
                $(const HANDLE_FIELD: Option<usize> = Some(core::mem::offset_of!(Self, $($number).+));)?
            }
        )+
    };
}

pub(crate) use exposed;

/// Fields of a structure that are written at creation and never again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// Address of the context; 0 if the structure has none.
    context: usize,
    /// Number of the object; 0 if the structure has none.
    handle: u32,
}

impl Identity {
    /// # Safety
    /// `exposed` points to a valid structure.
    unsafe fn read<E: Exposed>(exposed: *const E) -> Self {
        let field = |at| exposed.cast::<u8>().wrapping_add(at);
        // SAFETY: this function's contract and that of the trait: the fields lie in the structure.
        let context =
            E::CONTEXT_FIELD.map_or(0, |at| unsafe { field(at).cast::<*const c_void>().read_unaligned() }.addr());
        // SAFETY: this function's contract and that of the trait: the fields lie in the structure.
        let handle = E::HANDLE_FIELD.map_or(0, |at| unsafe { field(at).cast::<u32>().read_unaligned() });
        Self { context, handle }
    }
}

/// One object. `repr(C)` because the block is found again from the handle by its offset.
#[repr(C)]
pub(crate) struct Object<E: Exposed> {
    exposed: UnsafeCell<E>,
    /// The program's allocator that the block came from; `None` for the global allocator.
    allocator: Option<ObjectAllocator>,
    token: Token,
    identity: Identity,
    pub(crate) inner: E::Inner,
}

// SAFETY: the Rust part is Send and Sync; the exposed part is reached through raw pointers only, by
// the program and by us, under the rules of the verbs interface (the call in progress owns the
// fields that it writes).
unsafe impl<E: Exposed> Sync for Object<E> {}

/// Names an object in events. Tokens are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(pub(crate) u64);

impl Token {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn short(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }
}

#[derive(Default)]
struct Registry {
    by_address: HashMap<usize, TypeId>,
    by_token: HashMap<Token, (usize, TypeId)>,
}

static REGISTRY: LazyLock<Mutex<RegistryRank, Registry>> = LazyLock::new(Mutex::default);

impl<E: Exposed> Object<E> {
    pub(crate) fn publish(token: Token, exposed: E, inner: E::Inner) -> *mut E::Handle {
        Self::enter(token, Box::into_raw(Box::new(Self::new(None, token, exposed, inner))))
    }

    /// Publishes an object without events; `expose` makes its structure from its number.
    pub(crate) fn publish_numbered(inner: E::Inner, expose: impl FnOnce(u32) -> E) -> *mut E::Handle {
        let token = Token::new();
        Self::publish(token, expose(token.short()), inner)
    }

    /// Publishes an object in a block of the program's allocator if there is one, unless that
    /// leaves the choice to us. Returns ENOMEM if the allocator returns no memory.
    pub(crate) fn publish_in(
        allocator: Option<ObjectAllocator>,
        token: Token,
        exposed: E,
        inner: E::Inner,
    ) -> Result<*mut E::Handle> {
        let block = allocator.map_or(Ok(None), |allocator| allocator.alloc(Layout::new::<Self>()))?;
        let Some(block) = block else { return Ok(Self::publish(token, exposed, inner)) };
        let block = block.cast::<Self>().as_ptr();
        // SAFETY: the allocator promises a fresh block of this size and alignment.
        unsafe { block.write(Self::new(allocator, token, exposed, inner)) };
        Ok(Self::enter(token, block))
    }

    fn new(allocator: Option<ObjectAllocator>, token: Token, exposed: E, inner: E::Inner) -> Self {
        // SAFETY: a valid structure.
        let identity = unsafe { Identity::read(&raw const exposed) };
        Self { exposed: UnsafeCell::new(exposed), allocator, token, identity, inner }
    }

    fn enter(token: Token, block: *mut Self) -> *mut E::Handle {
        let handle = block.cast::<u8>().wrapping_add(E::HANDLE_OFFSET).cast::<E::Handle>();
        let mut registry = REGISTRY.lock();
        let address = handle.expose_provenance();
        registry.by_address.insert(address, TypeId::of::<E>());
        registry.by_token.insert(token, (address, TypeId::of::<E>()));
        handle
    }

    /// Returns the object of the handle of a control call; EINVAL if there is none of this
    /// kind or its identity fields were overwritten.
    ///
    /// The program promises not to destroy an object while another call uses it.
    pub(crate) fn live<'a>(handle: *mut E::Handle) -> Result<&'a Self> {
        Self::intact(handle, EINVAL)
    }

    /// Returns `None` for NULL, else the result of [`live`](Self::live).
    pub(crate) fn optional<'a>(handle: *mut E::Handle) -> Result<Option<&'a Self>> {
        if handle.is_null() { Ok(None) } else { Self::live(handle).map(Some) }
    }

    /// Returns the object of the handle of a destroy call; EINVAL if there is none of this
    /// kind. Overwritten identity fields are ENOENT, the kernel's answer to an unknown number
    /// (`rdma_lookup_get_uobject`).
    pub(crate) fn to_destroy<'a>(handle: *mut E::Handle) -> Result<&'a Self> {
        Self::intact(handle, ENOENT)
    }

    fn intact<'a>(handle: *mut E::Handle, changed: Errno) -> Result<&'a Self> {
        let Some(object) = Self::registered(handle) else {
            return Err(Self::refuse(handle.addr(), is_destroyed(handle.addr())));
        };
        if object.is_intact() {
            return Ok(object);
        }
        explain::because(|| {
            let (kind, at) = (Self::kind(), handle.addr());
            format!("the {kind} at {at:#x} was overwritten: its field context or handle has changed")
        });
        Err(changed)
    }

    /// Returns the object of a handle that the program stored and may have destroyed since.
    pub(crate) fn if_alive<'a>(handle: *mut E::Handle) -> Option<&'a Self> {
        Self::registered(handle).filter(|object| object.is_intact())
    }

    fn kind() -> &'static str {
        let path = core::any::type_name::<E::Handle>();
        path.rsplit("::").next().unwrap_or(path)
    }

    #[cold]
    fn refuse(address: usize, is_destroyed: bool) -> Errno {
        let kind = Self::kind();
        if address == 0 {
            return invalid(|| format!("the {kind} is NULL"));
        }
        let is_other = REGISTRY.lock().by_address.contains_key(&address);
        invalid(|| {
            if is_destroyed {
                format!("the {kind} at {address:#x} is already destroyed")
            } else if is_other {
                format!("the object at {address:#x} is not of kind {kind}")
            } else {
                format!("there is no {kind} at {address:#x}: it was destroyed, or belongs to another library")
            }
        })
    }

    fn registered<'a>(handle: *mut E::Handle) -> Option<&'a Self> {
        match REGISTRY.lock().by_address.get(&handle.addr()) {
            // SAFETY: the registry says that a block of this type lies there and was not freed.
            Some(kind) if *kind == TypeId::of::<E>() => unsafe { Some(&*Self::block(handle)) },
            _ => None,
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        // SAFETY: the structure lives as long as the object.
        unsafe { Identity::read(self.exposed()) == self.identity }
    }

    pub(crate) fn number(&self) -> u32 {
        self.identity.handle
    }

    /// Calls `use_it` with the object of a handle, even if its identity fields were
    /// overwritten. The object cannot be retired meanwhile.
    pub(crate) fn with_live<T>(handle: *mut E::Handle, use_it: impl FnOnce(&Self) -> T) -> Result<T> {
        let registry = REGISTRY.lock();
        if registry.by_address.get(&handle.addr()) != Some(&TypeId::of::<E>()) {
            return Err(EINVAL);
        }
        // SAFETY: registered with this type; not freed while the registry is locked.
        Ok(use_it(unsafe { &*Self::block(handle) }))
    }

    /// First half of destroying an object with events: new events no longer find it, and delivered
    /// ones can still be acknowledged.
    pub(crate) fn conceal(&self) {
        REGISTRY.lock().by_token.remove(&self.token);
    }

    /// Returns the first result of `choose`, in no particular order.
    pub(crate) fn find<T>(choose: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let registry = REGISTRY.lock();
        let mut alive = registry.by_token.values().filter(|(_, kind)| *kind == TypeId::of::<E>());
        alive.find_map(|&(address, _)| {
            let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
            // SAFETY: registered with this type; not freed while the registry is locked.
            choose(unsafe { &*Self::block(handle) })
        })
    }

    /// Returns the result of `choose` for the object with this number (`man ibv_import_pd`); EINVAL
    /// if there is none.
    pub(crate) fn numbered<T>(number: u32, choose: impl Fn(&E::Inner) -> Option<T>) -> Result<T> {
        Self::find(|object| if object.number() == number { choose(&object.inner) } else { None }).ok_or(EINVAL)
    }

    /// Removes an object from the registry, even if its identity fields were overwritten. Dropping
    /// the result frees it.
    pub(crate) fn retire(handle: *mut E::Handle) -> Result<Retired<E>> {
        let mut registry = REGISTRY.lock();
        if registry.by_address.get(&handle.addr()) != Some(&TypeId::of::<E>()) {
            drop(registry);
            return Err(Self::refuse(handle.addr(), is_destroyed(handle.addr())));
        }
        registry.by_address.remove(&handle.addr());
        // SAFETY: alive until the line above; removing the entry makes this call its owner.
        let object = Retired(unsafe { NonNull::new_unchecked(Self::block(handle)) });
        registry.by_token.remove(&object.token);
        Ok(object)
    }

    /// Destroys an object without events, unless `release`, which frees the provider's part, fails.
    pub(crate) fn destroy(
        handle: *mut E::Handle,
        release: impl FnOnce(&E::Inner) -> core::result::Result<(), roxe_provider::Error>,
    ) -> Result<()> {
        release(&Self::to_destroy(handle)?.inner)?;
        Self::retire(handle).map(drop)
    }

    /// Like [`destroy`](Self::destroy), but waits until the program has acknowledged `events`.
    pub(crate) fn destroy_acknowledged(
        handle: *mut E::Handle,
        release: impl FnOnce(&E::Inner) -> core::result::Result<(), roxe_provider::Error>,
        events: impl FnOnce(&E::Inner) -> &Unacked,
    ) -> Result<()> {
        let object = Self::to_destroy(handle)?;
        release(&object.inner)?;
        object.conceal();
        events(&object.inner).wait();
        Self::retire(handle).map(drop)
    }

    /// Returns the object of a handle of the data path; `None` for NULL and, with the checker
    /// on, for destroyed objects.
    ///
    /// # Safety
    /// `handle` is NULL or came from [`Object::publish`] of this type and is alive.
    pub(crate) unsafe fn trusted<'a>(handle: *mut E::Handle) -> Option<&'a Self> {
        if handle.is_null() || (roxe_check::is_checking() && is_destroyed(handle.addr())) {
            return None;
        }
        // SAFETY: this function's contract.
        Some(unsafe { &*Self::block(handle) })
    }

    pub(crate) fn handle(&self) -> *mut E::Handle {
        self.exposed.get().cast::<u8>().wrapping_add(E::HANDLE_OFFSET).cast()
    }

    /// The structure that the program sees. Access single fields through raw pointers; never make
    /// a reference to it.
    pub(crate) fn exposed(&self) -> *mut E {
        self.exposed.get()
    }

    #[allow(clippy::cast_ptr_alignment)] // Back to the address that `publish` started from.
    fn block(handle: *mut E::Handle) -> *mut Self {
        handle.cast::<u8>().wrapping_sub(E::HANDLE_OFFSET).cast()
    }
}

/// An object that no handle or event reaches any more.
pub(crate) struct Retired<E: Exposed>(NonNull<Object<E>>);

impl<E: Exposed> Deref for Retired<E> {
    type Target = Object<E>;

    fn deref(&self) -> &Object<E> {
        // SAFETY: the holder of a retired object owns its block.
        unsafe { self.0.as_ref() }
    }
}

impl<E: Exposed> Drop for Retired<E> {
    fn drop(&mut self) {
        let block = self.0.as_ptr();
        let handle = self.handle().addr();
        match self.allocator {
            None if roxe_check::is_checking() => {
                roxe_check::emit(|| Event::HandleGone { handle, kind: core::any::type_name::<E::Handle>() });
                // SAFETY: owned; the Rust part is not used after this, the structure needs no drop.
                unsafe { (&raw mut (*block).inner).drop_in_place() };
                // SAFETY: made by a box, and nothing in it is left to drop.
                let block = unsafe { Block::new(self.0) };
                // Freed after the lock is released.
                let oldest = QUARANTINE.lock().keep(handle, block);
                drop(oldest);
            }
            // SAFETY: owned, made by a box, and not used after this.
            None => drop(unsafe { Box::from_raw(block) }),
            Some(allocator) => {
                // SAFETY: owned, whole, and not used after this.
                unsafe { block.drop_in_place() };
                allocator.free(block.cast());
            }
        }
    }
}

/// Calls `use_it` with the live object of this kind named `token`. It cannot be retired meanwhile.
pub(crate) fn with_token<E: Exposed, T>(token: Token, use_it: impl FnOnce(&Object<E>) -> T) -> Option<T> {
    let registry = REGISTRY.lock();
    let &(address, kind) = registry.by_token.get(&token)?;
    if kind != TypeId::of::<E>() {
        return None;
    }
    let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
    // SAFETY: registered with this type; not freed while the registry is locked.
    Some(use_it(unsafe { &*Object::<E>::block(handle) }))
}

/// Returns true if the handle is that of a destroyed object, and reports it to the checker.
#[cold]
fn is_destroyed(handle: usize) -> bool {
    let is_destroyed = QUARANTINE.lock().handles.contains(&handle);
    if is_destroyed {
        roxe_check::emit(|| Event::HandleUsed { handle });
    }
    is_destroyed
}

/// Unacknowledged events; destroying the object waits for them (`man ibv_get_cq_event`).
pub(crate) struct Unacked {
    what: &'static str,
    object: Option<ObjectId>,
    count: parking_lot::Mutex<u64>,
    acked: Condvar,
}

impl Unacked {
    /// `object` is the one that the checker knows, if any.
    pub(crate) fn new(what: &'static str, object: Option<ObjectId>) -> Self {
        Self { what, object, count: parking_lot::Mutex::default(), acked: Condvar::new() }
    }

    pub(crate) fn deliver(&self) {
        *self.count.lock() += 1;
    }

    /// Acknowledges `n` events, at most as many as were delivered.
    pub(crate) fn ack(&self, n: u64) {
        let mut count = self.count.lock();
        let taken = *count;
        *count = taken.saturating_sub(n);
        if *count == 0 {
            self.acked.notify_all();
        }
        drop(count);
        if n > taken {
            roxe_check::emit(|| Event::AckedTooMany { object: self.object, what: self.what, taken, acked: n });
        }
    }

    pub(crate) fn wait(&self) {
        let mut count: parking_lot::MutexGuard<'_, u64> = self.count.lock();
        if roxe_check::is_checking() {
            self.acked.wait_while_for(&mut count, |count| *count > 0, ACK_GRACE);
            let left = *count;
            if left > 0 {
                drop(count);
                roxe_check::emit(|| Event::WaitsForAcks { object: self.object, what: self.what, left });
                count = self.count.lock();
            }
        }
        while *count > 0 {
            self.acked.wait(&mut count);
        }
    }
}

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// Blocks start at, and are multiples of, this many bytes: simple allocators that only count
/// upwards keep them aligned.
const GRAIN: usize = 64;

/// Purpose of a block, for allocators. The upper 32 bits, a number of kernel drivers, are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Resource {
    Qp = 1,
    Srq = 2,
    Cq = 3,
}

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: Alloc,
    pub(crate) free: Free,
    pub(crate) pd_context: *mut c_void,
}

// SAFETY: the pointer is only passed to the program's own functions, which the program promised to
// be callable from every thread that creates or destroys an object of the domain.
unsafe impl Send for Allocators {}
// SAFETY: as for `Send`.
unsafe impl Sync for Allocators {}

/// The program's allocator for one kind of object of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct ObjectAllocator {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) allocators: Allocators,
    pub(crate) resource: Resource,
}

impl ObjectAllocator {
    /// Returns a block; `None` if the program leaves it to us, ENOMEM if it has none.
    pub(crate) fn alloc(&self, layout: Layout) -> Result<Option<NonNull<c_void>>> {
        let Allocators { alloc, pd_context, .. } = self.allocators;
        let align = layout.align().max(GRAIN);
        let size = layout.size().next_multiple_of(align);
        // SAFETY: a function of the program, called with what its man page promises.
        let block = unsafe { alloc(self.pd, pd_context, size, align, self.resource as u64) };
        match block.addr() {
            USE_DEFAULT => Ok(None),
            addr if addr.is_multiple_of(layout.align()) => NonNull::new(block).map(Some).ok_or(Errno(libc::ENOMEM)),
            _ => {
                self.free(block);
                Err(EINVAL)
            }
        }
    }

    pub(crate) fn free(&self, block: *mut c_void) {
        let Allocators { free, pd_context, .. } = self.allocators;
        // SAFETY: a function of the program, called with a block that its other function gave us.
        unsafe { free(self.pd, pd_context, block, self.resource as u64) };
    }
}

/// Destroyed objects whose blocks are kept, so that their addresses are not reused.
const QUARANTINED: usize = 4096;

/// A heap block whose contents need no drop.
pub(crate) struct Block(NonNull<u8>, Layout);

// SAFETY: it is the only owner of plain memory.
unsafe impl Send for Block {}

impl Block {
    /// # Safety
    /// `block` was made by a `Box`, is owned by the caller, and its contents need no drop.
    pub(crate) const unsafe fn new<T>(block: NonNull<T>) -> Self {
        Self(block.cast(), Layout::new::<T>())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: a box of this layout made it, by the contract of `new`; not used after this.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// Blocks and handles of destroyed objects, kept while the checker is on.
#[derive(Default)]
struct Quarantine {
    handles: HashSet<usize>,
    blocks: VecDeque<(usize, Block)>,
}

/// Without a rank: calls take it while they hold any other lock, and take none inside it.
static QUARANTINE: LazyLock<parking_lot::Mutex<Quarantine>> = LazyLock::new(Default::default);

impl Quarantine {
    /// Adds the block of a destroyed object. Returns the oldest block if there are too many.
    fn keep(&mut self, handle: usize, block: Block) -> Option<Block> {
        self.handles.insert(handle);
        self.blocks.push_back((handle, block));
        if self.handles.len() <= QUARANTINED {
            return None;
        }
        let (oldest, block) = self.blocks.pop_front()?;
        self.handles.remove(&oldest);
        Some(block)
    }
}
