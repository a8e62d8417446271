//! Objects that C programs hold pointers to, and the registry of those that are alive.
//!
//! An object is one heap block: first the C structure that the program sees and may write to, then
//! the Rust part. Control calls look handles up in the registry, so NULL, foreign and stale handles
//! are EINVAL. A control call also fails if the program has overwritten the `context` or `handle`
//! field of the structure. Late events of a destroyed object are dropped. The data path skips the
//! registry and only compares handles with NULL, as every verbs library does.

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

/// With the checker on, a destroy call that waits this long for acknowledgements of events is
/// reported.
const ACK_GRACE: Duration = Duration::from_secs(2);

/// Declares C structures that start objects: `structure => handle [at field]: Rust part, context =
/// field, number = field`.
macro_rules! exposed {
    ($($structure:ident => $handle:ident $(at $at:ident)?: $inner:ty
        $(, context = $($context:ident).+)? $(, number = $($number:ident).+)?;)+) => {
        $(
            // SAFETY: the handle is the field `$at`, or the start of the structure; `offset_of!`
            // computes the other offsets from fields whose types the callers of the macro chose to
            // match.
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

/// Fields of a structure that this library writes at creation only. If they differ later, the
/// program has overwritten the structure.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// Address of the context; 0 if the structure has none.
    context: usize,
    /// Number of the object; 0 if the structure has none.
    handle: u32,
}

impl Identity {
    /// Reads the fields of a structure.
    ///
    /// # Safety
    /// `exposed` points to a valid structure.
    unsafe fn read<E: Exposed>(exposed: *const E) -> Self {
        let field = |at| exposed.cast::<u8>().wrapping_add(at);
        // SAFETY: the caller guarantees a valid structure, `Exposed` that this is one of its
        // pointer fields.
        let context =
            E::CONTEXT_FIELD.map_or(0, |at| unsafe { field(at).cast::<*const c_void>().read_unaligned() }.addr());
        // SAFETY: the caller guarantees a valid structure, `Exposed` that this is one of its 32-bit
        // fields.
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

// SAFETY: the Rust part is Send and Sync. The program and this library access the exposed part
// through raw pointers only, and the program serialises calls on one object that write its fields,
// as the manual pages of the verbs demand.
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

    /// Publishes an object in a block of the program's allocator, if there is one and it does not
    /// return `IBV_ALLOCATOR_USE_DEFAULT`. Returns ENOMEM if the allocator returns no memory.
    pub(crate) fn publish_in(
        allocator: Option<ObjectAllocator>,
        token: Token,
        exposed: E,
        inner: E::Inner,
    ) -> Result<*mut E::Handle> {
        let block = allocator.map_or(Ok(None), |allocator| allocator.alloc(Layout::new::<Self>()))?;
        let Some(block) = block else { return Ok(Self::publish(token, exposed, inner)) };
        let block = block.cast::<Self>().as_ptr();
        // SAFETY: the program's allocator returned a block of this size, owned by this library
        // until `ObjectAllocator::free`; `alloc` checked its alignment.
        unsafe { block.write(Self::new(allocator, token, exposed, inner)) };
        Ok(Self::enter(token, block))
    }

    fn new(allocator: Option<ObjectAllocator>, token: Token, exposed: E, inner: E::Inner) -> Self {
        // SAFETY: `exposed` is a local value, valid during the call.
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

    /// Returns the object of the handle of a control call. Fails with EINVAL if there is none of
    /// this kind or its identity fields were overwritten.
    ///
    /// The result is valid during the call: a program must not destroy an object while another call
    /// uses it.
    pub(crate) fn live<'a>(handle: *mut E::Handle) -> Result<&'a Self> {
        Self::intact(handle, EINVAL)
    }

    /// Returns `None` for NULL, else the result of [`live`](Self::live).
    pub(crate) fn optional<'a>(handle: *mut E::Handle) -> Result<Option<&'a Self>> {
        if handle.is_null() { Ok(None) } else { Self::live(handle).map(Some) }
    }

    /// Returns the object of the handle of a destroy call. Fails with EINVAL if there is none of
    /// this kind. Overwritten identity fields are ENOENT, the kernel's answer to an unknown number
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
            // SAFETY: `enter` registered a block of this type at this address, and `retire` removes
            // the entry before the block is freed. The program does not destroy an object that
            // another call uses.
            Some(kind) if *kind == TypeId::of::<E>() => unsafe { Some(&*Self::block(handle)) },
            _ => None,
        }
    }

    pub(crate) fn is_intact(&self) -> bool {
        // SAFETY: the structure is part of `self`.
        unsafe { Identity::read(self.exposed()) == self.identity }
    }

    pub(crate) fn number(&self) -> u32 {
        self.identity.handle
    }

    /// Calls `use_it` with the object of a handle, even if its identity fields were overwritten. No
    /// thread can retire the object during the call.
    pub(crate) fn with_live<T>(handle: *mut E::Handle, use_it: impl FnOnce(&Self) -> T) -> Result<T> {
        let registry = REGISTRY.lock();
        if registry.by_address.get(&handle.addr()) != Some(&TypeId::of::<E>()) {
            return Err(EINVAL);
        }
        // SAFETY: the registry has a block of this type there, and its lock keeps `retire` from
        // removing it.
        Ok(use_it(unsafe { &*Self::block(handle) }))
    }

    /// Hides the object from new events, as the first half of its destruction. Delivered events can
    /// still be acknowledged.
    pub(crate) fn hide_from_events(&self) {
        REGISTRY.lock().by_token.remove(&self.token);
    }

    /// Returns the first result of `choose`, in no particular order.
    pub(crate) fn find<T>(choose: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let registry = REGISTRY.lock();
        let mut alive = registry.by_token.values().filter(|(_, kind)| *kind == TypeId::of::<E>());
        alive.find_map(|&(address, _)| {
            let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
            // SAFETY: the registry has a block of this type there, and its lock keeps `retire` from
            // removing it.
            choose(unsafe { &*Self::block(handle) })
        })
    }

    /// Returns the result of `choose` for the object with this number (`man ibv_import_pd`). Fails
    /// with EINVAL if there is none.
    pub(crate) fn by_number<T>(number: u32, choose: impl Fn(&E::Inner) -> Option<T>) -> Result<T> {
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
        // SAFETY: not NULL; the entry proved that a block of this type is alive, and removing the
        // entry makes this call its only owner.
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

    /// Destroys an object like [`destroy`](Self::destroy), but waits until the program has
    /// acknowledged its `events`.
    pub(crate) fn destroy_acknowledged(
        handle: *mut E::Handle,
        release: impl FnOnce(&E::Inner) -> core::result::Result<(), roxe_provider::Error>,
        events: impl FnOnce(&E::Inner) -> &Unacked,
    ) -> Result<()> {
        let object = Self::to_destroy(handle)?;
        release(&object.inner)?;
        object.hide_from_events();
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
        // SAFETY: not NULL; the caller guarantees a live object of this type.
        Some(unsafe { &*Self::block(handle) })
    }

    pub(crate) fn handle(&self) -> *mut E::Handle {
        self.exposed.get().cast::<u8>().wrapping_add(E::HANDLE_OFFSET).cast()
    }

    /// Returns the structure that the program sees. Access single fields through raw pointers;
    /// never make a reference to it.
    pub(crate) fn exposed(&self) -> *mut E {
        self.exposed.get()
    }

    #[allow(clippy::cast_ptr_alignment)] // The result is the aligned address that `enter` was given.
    fn block(handle: *mut E::Handle) -> *mut Self {
        handle.cast::<u8>().wrapping_sub(E::HANDLE_OFFSET).cast()
    }
}

/// An object that no handle or event reaches any more.
pub(crate) struct Retired<E: Exposed>(NonNull<Object<E>>);

impl<E: Exposed> Deref for Retired<E> {
    type Target = Object<E>;

    fn deref(&self) -> &Object<E> {
        // SAFETY: `retire` made this value the only owner of the block, which `drop` frees.
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
                // SAFETY: `self` owns the block and uses the Rust part no more; the C structure
                // needs no drop.
                unsafe { (&raw mut (*block).inner).drop_in_place() };
                // SAFETY: `publish` made the block with a `Box`, and nothing in it is left to drop.
                let block = unsafe { Block::new(self.0) };
                // In two statements, so that the oldest block is freed after the lock is released.
                let oldest = QUARANTINE.lock().keep(handle, block);
                drop(oldest);
            }
            // SAFETY: `publish` made the block with a `Box`; `self` owns it and uses it no more.
            None => drop(unsafe { Box::from_raw(block) }),
            Some(allocator) => {
                // SAFETY: `self` owns the block, with every field initialised, and uses it no more.
                unsafe { block.drop_in_place() };
                allocator.free(block.cast());
            }
        }
    }
}

/// Calls `use_it` with the object of this kind that `token` names; `None` if it is not alive. No
/// thread can retire the object during the call.
pub(crate) fn with_token<E: Exposed, T>(token: Token, use_it: impl FnOnce(&Object<E>) -> T) -> Option<T> {
    let registry = REGISTRY.lock();
    let &(address, kind) = registry.by_token.get(&token)?;
    if kind != TypeId::of::<E>() {
        return None;
    }
    let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
    // SAFETY: the registry has a block of this type there, and its lock keeps `retire` from
    // removing it.
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

/// Counts delivered and unacknowledged events of an object. Its destruction waits for them (`man
/// ibv_get_cq_event`).
pub(crate) struct Unacked {
    /// Kind of the object, for reports of the checker.
    kind: &'static str,
    /// The object in reports of the checker, if the checker knows it.
    object: Option<ObjectId>,
    count: parking_lot::Mutex<u64>,
    all_acked: Condvar,
}

impl Unacked {
    pub(crate) fn new(kind: &'static str, object: Option<ObjectId>) -> Self {
        Self { kind, object, count: parking_lot::Mutex::default(), all_acked: Condvar::new() }
    }

    pub(crate) fn deliver(&self) {
        *self.count.lock() += 1;
    }

    /// Acknowledges `n` events, at most as many as were delivered.
    pub(crate) fn ack(&self, n: u64) {
        let mut count = self.count.lock();
        let delivered = *count;
        *count = delivered.saturating_sub(n);
        if *count == 0 {
            self.all_acked.notify_all();
        }
        drop(count);
        if n > delivered {
            roxe_check::emit(|| Event::AckedTooMany { object: self.object, kind: self.kind, delivered, acked: n });
        }
    }

    pub(crate) fn wait(&self) {
        let mut count: parking_lot::MutexGuard<'_, u64> = self.count.lock();
        if roxe_check::is_checking() {
            self.all_acked.wait_while_for(&mut count, |count| *count > 0, ACK_GRACE);
            let unacked = *count;
            if unacked > 0 {
                drop(count);
                roxe_check::emit(|| Event::WaitsForAcks { object: self.object, kind: self.kind, unacked });
                count = self.count.lock();
            }
        }
        while *count > 0 {
            self.all_acked.wait(&mut count);
        }
    }
}

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: usize = usize::MAX;
/// Smallest alignment of blocks, in bytes; sizes are multiples of it. So an allocator that ignores
/// alignment and only advances a pointer still returns aligned blocks.
const MIN_ALIGN: usize = 64;

/// Purpose of a block: the `resource_type` of `man ibv_alloc_parent_domain`. Its upper 32 bits, the
/// number of a kernel driver, are 0.
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

// SAFETY: this library only passes `pd_context` to the program's own functions, which must accept
// it on every thread that creates or destroys an object of the domain (`man
// ibv_alloc_parent_domain`).
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
    /// Returns a block; `None` for `IBV_ALLOCATOR_USE_DEFAULT`, ENOMEM for NULL, EINVAL for an
    /// unaligned block.
    pub(crate) fn alloc(&self, layout: Layout) -> Result<Option<NonNull<c_void>>> {
        let Allocators { alloc, pd_context, .. } = self.allocators;
        let align = layout.align().max(MIN_ALIGN);
        let size = layout.size().next_multiple_of(align);
        // SAFETY: the program passed this function and context to `ibv_alloc_parent_domain`, and
        // keeps both valid until it deallocates the domain.
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
        // SAFETY: the program passed this function and context to `ibv_alloc_parent_domain`; its
        // `alloc` returned the block, which is freed once.
        unsafe { free(self.pd, pd_context, block, self.resource as u64) };
    }
}

/// Length of the quarantine, in destroyed objects. While their blocks are kept, their addresses are
/// not reused, so a stale handle is recognised.
const QUARANTINE_LEN: usize = 4096;

/// A heap block whose contents need no drop.
pub(crate) struct Block(NonNull<u8>, Layout);

// SAFETY: it is the only owner of memory without contents.
unsafe impl Send for Block {}

impl Block {
    /// Takes ownership of a block.
    ///
    /// # Safety
    /// A `Box<T>` allocated `block`, the caller owns it, and its contents need no drop.
    pub(crate) const unsafe fn new<T>(block: NonNull<T>) -> Self {
        Self(block.cast(), Layout::new::<T>())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: a `Box` allocated it with this layout, as the caller of `new` guarantees; `self`
        // is its only owner and uses it no more.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// Blocks and handles of destroyed objects, kept while the checker is on.
#[derive(Default)]
struct Quarantine {
    handles: HashSet<usize>,
    blocks: VecDeque<(usize, Block)>,
}

/// Has no lock rank: calls lock it while they hold any other lock, and lock nothing inside it.
static QUARANTINE: LazyLock<parking_lot::Mutex<Quarantine>> = LazyLock::new(Default::default);

impl Quarantine {
    /// Adds the block of a destroyed object. Returns the oldest block if there are too many.
    fn keep(&mut self, handle: usize, block: Block) -> Option<Block> {
        self.handles.insert(handle);
        self.blocks.push_back((handle, block));
        if self.handles.len() <= QUARANTINE_LEN {
            return None;
        }
        let (oldest, block) = self.blocks.pop_front()?;
        self.handles.remove(&oldest);
        Some(block)
    }
}
