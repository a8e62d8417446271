//! Objects that C programs hold pointers to, and the register of those that are alive.
//!
//! An object is one heap block: first the structure the program sees and may write to, then the
//! Rust part. The register turns NULL, a handle of another library and a stale one of a control
//! call into EINVAL, and a late event of a destroyed object into nothing. It also notices when the
//! program has written over the `context` or `handle` field of a structure: such a call is refused,
//! and the object is as it was once the field is put back. The data path does not consult it: there
//! a handle is only compared with NULL, as in every verbs library.
//!
//! Touches the heap blocks it made and nothing else.

use crate::abi::ibv_pd;
use crate::errno::{EINVAL, ENOENT, Errno, Result, invalid};
use crate::lock::Register as RegisterRank;
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
    /// What the program's pointer points to.
    type Handle;
    /// The Rust part of the object.
    type Inner: Send + Sync;
    /// Where the handle lies in the structure.
    const HANDLE_OFFSET: usize = 0;
    /// Where the structure names the context of the object, if it does.
    const CONTEXT_FIELD: Option<usize> = None;
    /// Where the structure shows the number of the object, if it has one.
    const HANDLE_FIELD: Option<usize> = None;
}

/// A thread that acknowledges while another one destroys does so within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says which C structures start objects: `structure => handle [at field]: Rust part, context =
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

/// What the structure of an object says about where it belongs: fields that are written when it is
/// made and never again.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// Address of the context; 0 where the structure does not name one.
    context: usize,
    /// The number of the object; 0 where the structure has none.
    handle: u32,
}

impl Identity {
    /// What the structure says now.
    ///
    /// # Safety
    /// `exposed` points to a whole structure.
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

/// See the module's description. `repr(C)` because a handle is converted back by its offset.
#[repr(C)]
pub(crate) struct Object<E: Exposed> {
    exposed: UnsafeCell<E>,
    /// The program's allocator that the block comes from; `None`: ours.
    allocator: Option<ObjectAllocator>,
    /// Names the object in events; never used twice.
    token: Token,
    /// What the structure said when the object was made.
    identity: Identity,
    /// The Rust part.
    pub(crate) inner: E::Inner,
}

// SAFETY: the Rust part is Send and Sync; the exposed part is reached through raw pointers only, by
// the program and by us, under the rules of the verbs interface (fields are written by whoever owns
// the call in progress).
unsafe impl<E: Exposed> Sync for Object<E> {}

/// Names an object in events for as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token(pub(crate) u64);

impl Token {
    /// A name that no object has or had.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// For the `handle` fields.
    pub(crate) fn short(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }
}

/// The objects alive, by handle address and by token.
#[derive(Default)]
struct Register {
    by_address: HashMap<usize, TypeId>,
    by_token: HashMap<Token, (usize, TypeId)>,
}

static REGISTER: LazyLock<Mutex<RegisterRank, Register>> = LazyLock::new(Mutex::default);

impl<E: Exposed> Object<E> {
    /// Makes an object, enters it in the register and returns the handle.
    pub(crate) fn publish(token: Token, exposed: E, inner: E::Inner) -> *mut E::Handle {
        Self::enter(token, Box::into_raw(Box::new(Self::new(None, token, exposed, inner))))
    }

    /// Makes an object that has no events, whose structure shows the number that `expose` is given.
    pub(crate) fn publish_numbered(inner: E::Inner, expose: impl FnOnce(u32) -> E) -> *mut E::Handle {
        let token = Token::new();
        Self::publish(token, expose(token.short()), inner)
    }

    /// Makes an object in a block of the program's allocator, if there is one and it does not leave
    /// the choice to us; ENOMEM if it has no memory.
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
        // SAFETY: a whole structure.
        let identity = unsafe { Identity::read(&raw const exposed) };
        Self { exposed: UnsafeCell::new(exposed), allocator, token, identity, inner }
    }

    /// Enters a finished block in the register.
    fn enter(token: Token, block: *mut Self) -> *mut E::Handle {
        let handle = block.cast::<u8>().wrapping_add(E::HANDLE_OFFSET).cast::<E::Handle>();
        let mut register = REGISTER.lock();
        let address = handle.expose_provenance();
        register.by_address.insert(address, TypeId::of::<E>());
        register.by_token.insert(token, (address, TypeId::of::<E>()));
        handle
    }

    /// The object behind the handle of a control call; EINVAL if there is none of this kind, or if
    /// its structure does not say any more what it said when the object was made.
    ///
    /// The program promises, as everywhere in verbs, not to destroy an object while another call
    /// uses it.
    pub(crate) fn live<'a>(handle: *mut E::Handle) -> Result<&'a Self> {
        Self::unchanged(handle, EINVAL)
    }

    /// The object behind a handle that NULL may stand for; EINVAL as for [`live`](Self::live).
    pub(crate) fn optional<'a>(handle: *mut E::Handle) -> Result<Option<&'a Self>> {
        if handle.is_null() { Ok(None) } else { Self::live(handle).map(Some) }
    }

    /// The object behind the handle of a call that destroys it; EINVAL if there is none of this
    /// kind. A structure that names another object is ENOENT, as the kernel answers for a number
    /// that it did not give out (`rdma_lookup_get_uobject`).
    pub(crate) fn to_destroy<'a>(handle: *mut E::Handle) -> Result<&'a Self> {
        Self::unchanged(handle, ENOENT)
    }

    /// The object behind a handle; EINVAL if there is none, `changed` if its structure names
    /// another.
    fn unchanged<'a>(handle: *mut E::Handle, changed: Errno) -> Result<&'a Self> {
        let Some(object) = Self::registered(handle) else {
            return Err(Self::refuse(handle.addr(), is_destroyed(handle.addr())));
        };
        if object.is_itself() {
            return Ok(object);
        }
        explain::because(|| {
            let (kind, at) = (Self::kind(), handle.addr());
            format!("the {kind} at {at:#x} was overwritten: its field context or handle is not what it was")
        });
        Err(changed)
    }

    /// The object behind a handle that the program left somewhere and may have destroyed since.
    pub(crate) fn if_alive<'a>(handle: *mut E::Handle) -> Option<&'a Self> {
        Self::registered(handle).filter(|object| object.is_itself())
    }

    /// The name of the structure that programs hold.
    fn kind() -> &'static str {
        let path = core::any::type_name::<E::Handle>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// EINVAL for what is no handle of this kind.
    #[cold]
    fn refuse(address: usize, is_destroyed: bool) -> Errno {
        let kind = Self::kind();
        if address == 0 {
            return invalid(|| format!("the {kind} is NULL"));
        }
        let is_other = REGISTER.lock().by_address.contains_key(&address);
        invalid(|| {
            if is_destroyed {
                format!("the {kind} at {address:#x} was destroyed before")
            } else if is_other {
                format!("what is at {address:#x} is no {kind} but another kind of object")
            } else {
                format!("there is no {kind} at {address:#x}: it was destroyed, or another library made it")
            }
        })
    }

    fn registered<'a>(handle: *mut E::Handle) -> Option<&'a Self> {
        match REGISTER.lock().by_address.get(&handle.addr()) {
            // SAFETY: the register says that a block of this type lies there and was not freed.
            Some(kind) if *kind == TypeId::of::<E>() => unsafe { Some(&*Self::block(handle)) },
            _ => None,
        }
    }

    /// True if its structure says what it said when the object was made.
    pub(crate) fn is_itself(&self) -> bool {
        // SAFETY: the structure lives as long as the object.
        unsafe { Identity::read(self.exposed()) == self.identity }
    }

    /// The number that the structure showed when the object was made.
    pub(crate) fn number(&self) -> u32 {
        self.identity.handle
    }

    /// Calls `use_it` with the object behind a handle, whatever its structure says; it cannot be
    /// retired meanwhile.
    pub(crate) fn with_live<T>(handle: *mut E::Handle, use_it: impl FnOnce(&Self) -> T) -> Result<T> {
        let register = REGISTER.lock();
        if register.by_address.get(&handle.addr()) != Some(&TypeId::of::<E>()) {
            return Err(EINVAL);
        }
        // SAFETY: the register says that a block of this type lies there, and it cannot be freed
        // while locked.
        Ok(use_it(unsafe { &*Self::block(handle) }))
    }

    /// First half of destroying an object that has events: none finds it any more, and those handed
    /// out may still be acknowledged.
    pub(crate) fn conceal(&self) {
        REGISTER.lock().by_token.remove(&self.token);
    }

    /// What `choose` makes of the first object that it wants; they are looked at in no order.
    pub(crate) fn find<T>(choose: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let register = REGISTER.lock();
        let mut alive = register.by_token.values().filter(|(_, kind)| *kind == TypeId::of::<E>());
        alive.find_map(|&(address, _)| {
            let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
            // SAFETY: registered with this type, and it cannot be freed while the register is
            // locked.
            choose(unsafe { &*Self::block(handle) })
        })
    }

    /// What `choose` makes of the object that shows this number (`man ibv_import_pd`); EINVAL if
    /// there is none that it wants.
    pub(crate) fn numbered<T>(number: u32, choose: impl Fn(&E::Inner) -> Option<T>) -> Result<T> {
        Self::find(|object| if object.number() == number { choose(&object.inner) } else { None }).ok_or(EINVAL)
    }

    /// Takes an object out of the register, whatever its structure says; dropping the result frees
    /// it.
    pub(crate) fn retire(handle: *mut E::Handle) -> Result<Retired<E>> {
        let mut register = REGISTER.lock();
        if register.by_address.get(&handle.addr()) != Some(&TypeId::of::<E>()) {
            drop(register);
            return Err(Self::refuse(handle.addr(), is_destroyed(handle.addr())));
        }
        register.by_address.remove(&handle.addr());
        // SAFETY: the block was alive until the line above, and whoever removes the entry owns the
        // block.
        let object = Retired(unsafe { NonNull::new_unchecked(Self::block(handle)) });
        register.by_token.remove(&object.token);
        Ok(object)
    }

    /// Destroys an object without events: `release` ends what the provider has, or refuses; then
    /// the block is freed.
    pub(crate) fn destroy(
        handle: *mut E::Handle,
        release: impl FnOnce(&E::Inner) -> core::result::Result<(), roxe_provider::Error>,
    ) -> Result<()> {
        release(&Self::to_destroy(handle)?.inner)?;
        Self::retire(handle).map(drop)
    }

    /// Destroys an object as [`destroy`](Self::destroy) does, and waits in between until the
    /// program has acknowledged all of its `events`.
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

    /// The object behind a handle of the data path; only NULL is refused, and with the checker on
    /// what was destroyed.
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

    /// The handle programs hold.
    pub(crate) fn handle(&self) -> *mut E::Handle {
        self.exposed.get().cast::<u8>().wrapping_add(E::HANDLE_OFFSET).cast()
    }

    /// The structure the program sees. Read and write single fields through it; never make a
    /// reference to it.
    pub(crate) fn exposed(&self) -> *mut E {
        self.exposed.get()
    }

    #[allow(clippy::cast_ptr_alignment)] // Back to the address that `publish` started from.
    fn block(handle: *mut E::Handle) -> *mut Self {
        handle.cast::<u8>().wrapping_sub(E::HANDLE_OFFSET).cast()
    }
}

/// An object that nobody else can reach any more.
pub(crate) struct Retired<E: Exposed>(NonNull<Object<E>>);

impl<E: Exposed> Deref for Retired<E> {
    type Target = Object<E>;

    fn deref(&self) -> &Object<E> {
        // SAFETY: whoever retired the object owns the block.
        unsafe { self.0.as_ref() }
    }
}

impl<E: Exposed> Drop for Retired<E> {
    fn drop(&mut self) {
        let block = self.0.as_ptr();
        let handle = self.handle().addr();
        match self.allocator {
            None if roxe_check::is_checking() => {
                roxe_check::tell(|| Event::HandleGone { handle, kind: core::any::type_name::<E::Handle>() });
                // SAFETY: owned; the Rust part is not used after this, and the structure has none
                // to drop.
                unsafe { (&raw mut (*block).inner).drop_in_place() };
                // SAFETY: made by a box, and nothing in it is left to drop.
                let block = unsafe { Block::new(self.0) };
                // The oldest block is freed behind the lock.
                let oldest = KEPT.lock().keep(handle, block);
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

/// Calls `use_it` with the object named `token` if it is of this kind and alive; it cannot be
/// retired meanwhile.
pub(crate) fn with_token<E: Exposed, T>(token: Token, use_it: impl FnOnce(&Object<E>) -> T) -> Option<T> {
    let register = REGISTER.lock();
    let &(address, kind) = register.by_token.get(&token)?;
    if kind != TypeId::of::<E>() {
        return None;
    }
    let handle = core::ptr::with_exposed_provenance_mut::<E::Handle>(address);
    // SAFETY: registered with this type, and `retire` needs the lock held here before it can free
    // the block.
    Some(use_it(unsafe { &*Object::<E>::block(handle) }))
}

/// Whether the handle is that of an object that was destroyed, which the checker is told then.
#[cold]
fn is_destroyed(handle: usize) -> bool {
    let is_destroyed = KEPT.lock().handles.contains(&handle);
    if is_destroyed {
        roxe_check::tell(|| Event::HandleUsed { handle });
    }
    is_destroyed
}

/// Events handed to the program and not acknowledged yet; destroying the object waits for them
/// (`man ibv_get_cq_event`).
pub(crate) struct Unacked {
    /// What the events are, and whose, for the checker.
    what: &'static str,
    object: Option<ObjectId>,
    count: parking_lot::Mutex<u64>,
    acked: Condvar,
}

impl Unacked {
    /// None yet of the events that people call `what`, of an object that the checker may know.
    pub(crate) fn new(what: &'static str, object: Option<ObjectId>) -> Self {
        Self { what, object, count: parking_lot::Mutex::default(), acked: Condvar::new() }
    }

    /// One more event was handed out.
    pub(crate) fn hand_out(&self) {
        *self.count.lock() += 1;
    }

    /// The program acknowledged `n` events; more than were handed out counts as all of them.
    pub(crate) fn ack(&self, n: u64) {
        let mut count = self.count.lock();
        let taken = *count;
        *count = taken.saturating_sub(n);
        if *count == 0 {
            self.acked.notify_all();
        }
        drop(count);
        if n > taken {
            roxe_check::tell(|| Event::AckedTooMany { object: self.object, what: self.what, taken, acked: n });
        }
    }

    /// Waits until every event handed out is acknowledged.
    pub(crate) fn wait(&self) {
        let mut count: parking_lot::MutexGuard<'_, u64> = self.count.lock();
        if roxe_check::is_checking() {
            self.acked.wait_while_for(&mut count, |count| *count > 0, PATIENCE);
            let left = *count;
            if left > 0 {
                drop(count);
                roxe_check::tell(|| Event::WaitsForAcks { object: self.object, what: self.what, left });
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

/// What a block is for, as allocators are told. The upper 32 bits, a number of the kernel for the
/// driver, are 0 (unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Resource {
    Qp = 1,
    Srq = 2,
    Cq = 3,
}

type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

/// A program's functions.
#[derive(Clone, Copy)]
pub(crate) struct Allocators {
    pub(crate) alloc: Alloc,
    pub(crate) free: Free,
    pub(crate) pd_context: *mut c_void,
}

// SAFETY: the pointer is only handed back to the program's own functions, which it promised to be
// callable from every thread that creates or destroys an object of the domain.
unsafe impl Send for Allocators {}
// SAFETY: the pointer is only handed back to the program's own functions, which it promised to be
// callable from every thread that creates or destroys an object of the domain.
unsafe impl Sync for Allocators {}

/// The allocator for one kind of object of a parent domain.
#[derive(Clone, Copy)]
pub(crate) struct ObjectAllocator {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) allocators: Allocators,
    pub(crate) resource: Resource,
}

impl ObjectAllocator {
    /// A block from the program; `None` if it leaves that to us, ENOMEM if it has none.
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

    /// Returns a block.
    pub(crate) fn free(&self, block: *mut c_void) {
        let Allocators { free, pd_context, .. } = self.allocators;
        // SAFETY: a function of the program, called with a block that its other function gave us.
        unsafe { free(self.pd, pd_context, block, self.resource as u64) };
    }
}

/// Blocks that are kept.
const MOST: usize = 4096;

/// A heap block without anything in it that has to be dropped; freed when dropped.
pub(crate) struct Block(NonNull<u8>, Layout);

// SAFETY: it is the only owner of plain memory.
unsafe impl Send for Block {}

impl Block {
    /// # Safety
    /// `block` was made by a `Box`, is owned by the caller and holds nothing that has to be
    /// dropped.
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

/// Which handles are those of destroyed objects.
#[derive(Default)]
struct Kept {
    handles: HashSet<usize>,
    blocks: VecDeque<(usize, Block)>,
}

/// Without a rank: calls ask while they hold any other lock, and nothing else is taken inside.
static KEPT: LazyLock<parking_lot::Mutex<Kept>> = LazyLock::new(Default::default);

impl Kept {
    /// Keeps the block of a destroyed object. Returns the block that has been here longest if there
    /// are too many.
    fn keep(&mut self, handle: usize, block: Block) -> Option<Block> {
        self.handles.insert(handle);
        self.blocks.push_back((handle, block));
        if self.handles.len() <= MOST {
            return None;
        }
        let (oldest, block) = self.blocks.pop_front()?;
        self.handles.remove(&oldest);
        Some(block)
    }
}
