//! The guarded instructions of x86-64 and the fault handler that knows them.

use super::{Fault, SharedBytes, Sum};
use crate::crc::{FOLD, can_fold};
use roxe_transport::cx::AtomicOp;
use roxe_wire::icrc::BLOCK;
use std::arch::global_asm;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

// Between `roxe_guard_begin` and `roxe_guard_end` no instruction moves the stack pointer and nothing is called, so at a
// fault anywhere in between, jumping to `roxe_guard_fault` returns 1 to the caller. All functions return 0 otherwise.
//
// copy(rdi = to, rsi = from, rdx = length): the head, then the tail, which is what lies in the last aligned word of the
// destination (r8 = its bytes). Every byte is stored once, and stores become visible in program order,
// a string instruction as a whole before the stores behind it. Below the threshold 16-byte moves beat the start-up of
// `rep movsq`, which is as fast as `rep movsb`, and eight times as fast on an emulated processor.
//
// move() is the same with 16-byte moves only, and asks for the lines 1024 bytes further on at both ends, those that are
// written as its own. Not for lines behind the end, which the other processor is about to use. wide() moves 64 bytes at a
// time. Where two processors share no cache, a bare ring with `rep movsq` in and plain moves out moves 8.5 to 9.2 GB/s,
// with move() at both ends 10.5 to 12, and with wide() 11.5 to 12.4.
global_asm!(
    ".macro roxe_ask_ahead",
    "prefetcht0 [rsi + 1024]",
    "prefetchw [rdi + 1024]",
    ".endm",
    ".macro roxe_move_wide_line",
    "vmovdqu64 zmm0, [rsi]",
    "vmovdqu64 [rdi], zmm0",
    "add rsi, 64",
    "add rdi, 64",
    ".endm",
    ".macro roxe_move_line",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    ".endm",
    ".pushsection .text.roxe_guard,\"ax\",@progbits",
    ".p2align 6",
    ".globl roxe_guard_begin, roxe_guard_end, roxe_guard_fault, roxe_guard_copy, roxe_guard_cas, roxe_guard_add",
    ".hidden roxe_guard_begin, roxe_guard_end, roxe_guard_fault, roxe_guard_copy, roxe_guard_cas, roxe_guard_add",
    ".globl roxe_guard_fold, roxe_guard_move, roxe_guard_wide",
    ".hidden roxe_guard_fold, roxe_guard_move, roxe_guard_wide",
    "roxe_guard_begin:",
    // wide(rdi = to, rsi = from, rdx = length): the last 8 to 71 bytes as move() does.
    ".type roxe_guard_wide,@function",
    "roxe_guard_wide:",
    ".cfi_startproc",
    "mov rcx, rdx",
    "sub rcx, 8",
    "jb roxe_guard_move",
    "shr rcx, 6",
    "jz roxe_guard_move",
    "mov rax, rcx",
    "shl rax, 6",
    "sub rdx, rax",
    "sub rcx, 16",
    "jbe 2f",
    "1:",
    "roxe_ask_ahead",
    "roxe_move_wide_line",
    "dec rcx",
    "jnz 1b",
    "2:",
    "add rcx, 16",
    "3:",
    "roxe_move_wide_line",
    "dec rcx",
    "jnz 3b",
    "vzeroupper",
    "jmp roxe_guard_move",
    ".cfi_endproc",
    ".size roxe_guard_wide, . - roxe_guard_wide",
    ".type roxe_guard_move,@function",
    "roxe_guard_move:",
    ".cfi_startproc",
    "mov r9, -1",
    "jmp 1f",
    ".cfi_endproc",
    ".size roxe_guard_move, . - roxe_guard_move",
    ".type roxe_guard_copy,@function",
    "roxe_guard_copy:",
    ".cfi_startproc",
    "mov r9d, {threshold}",
    "1:",
    "lea r8, [rdi + rdx - 1]",
    "and r8d, 7",
    "inc r8d",
    "cmp r8, rdx",
    "cmova r8, rdx",
    "sub rdx, r8",
    "jz 7f",
    "cmp rdx, r9",
    "jb 1f",
    // Zen 4 and 5: it takes up to 5 times as long where the target is 1 to 31 bytes further in its page.
    "mov eax, edi",
    "sub eax, esi",
    "dec eax",
    "and eax, 4095",
    "cmp eax, 31",
    "jae 9f",
    "1:",
    "mov ecx, edx",
    "shr ecx, 6",
    "jz 2f",
    "test r9, r9",
    "jns 1f",
    "sub ecx, 16",
    "jbe 3f",
    "4:",
    "roxe_ask_ahead",
    "roxe_move_line",
    "dec ecx",
    "jnz 4b",
    "3:",
    "add ecx, 16",
    "1:",
    "roxe_move_line",
    "dec ecx",
    "jnz 1b",
    "2:",
    "mov ecx, edx",
    "shr ecx, 4",
    "and ecx, 3",
    "jz 4f",
    "3:",
    "movups xmm0, [rsi]",
    "movups [rdi], xmm0",
    "add rsi, 16",
    "add rdi, 16",
    "dec ecx",
    "jnz 3b",
    "4:",
    "test dl, 8",
    "jz 5f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "5:",
    "20:",
    "test dl, 4",
    "jz 5f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "5:",
    "test dl, 2",
    "jz 6f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "6:",
    "test dl, 1",
    "jz 7f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    // The tail: r8 = 0..=8 bytes, of which only 8 has bit 3.
    "7:",
    "test r8b, 8",
    "jz 8f",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "xor eax, eax",
    "ret",
    "8:",
    "test r8b, 4",
    "jz 8f",
    "mov eax, [rsi]",
    "mov [rdi], eax",
    "add rsi, 4",
    "add rdi, 4",
    "8:",
    "test r8b, 2",
    "jz 8f",
    "mov ax, [rsi]",
    "mov [rdi], ax",
    "add rsi, 2",
    "add rdi, 2",
    "8:",
    "test r8b, 1",
    "jz 8f",
    "mov al, [rsi]",
    "mov [rdi], al",
    "8:",
    "xor eax, eax",
    "ret",
    "9:",
    "mov rcx, rdx",
    "shr rcx, 3",
    "rep movsq",
    "jmp 20b",
    ".cfi_endproc",
    ".size roxe_guard_copy, . - roxe_guard_copy",
    // cas(rdi = word, rsi = compare, rdx = swap, rcx = where the old value goes)
    ".type roxe_guard_cas,@function",
    "roxe_guard_cas:",
    ".cfi_startproc",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size roxe_guard_cas, . - roxe_guard_cas",
    // add(rdi = word, rsi = what to add, rdx = where the old value goes)
    ".type roxe_guard_add,@function",
    "roxe_guard_add:",
    ".cfi_startproc",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size roxe_guard_add, . - roxe_guard_add",
    // fold(rdi = to, rsi = from, rdx = length, a multiple of 256 and not 0, rcx = where the CRC-32 register goes that was 0
    // before all of it, r8 = `FOLD`): copies, and folds blocks of 256 bytes into one on the way (V. Gopal and others, Fast
    // CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction).
    ".type roxe_guard_fold,@function",
    "roxe_guard_fold:",
    ".cfi_startproc",
    "vbroadcasti32x4 zmm8, [r8]",
    "vmovdqu64 zmm0, [rsi + 0]",
    "vmovdqu64 zmm1, [rsi + 64]",
    "vmovdqu64 zmm2, [rsi + 128]",
    "vmovdqu64 zmm3, [rsi + 192]",
    "vmovdqu64 [rdi + 0], zmm0",
    "vmovdqu64 [rdi + 64], zmm1",
    "vmovdqu64 [rdi + 128], zmm2",
    "vmovdqu64 [rdi + 192], zmm3",
    "1:",
    "sub rdx, 256",
    "jz 2f",
    "add rsi, 256",
    "add rdi, 256",
    "prefetcht0 [rsi + 4096]",
    "prefetcht0 [rsi + 4160]",
    "prefetcht0 [rsi + 4224]",
    "prefetcht0 [rsi + 4288]",
    "vmovdqu64 zmm4, [rsi + 0]",
    "vmovdqu64 zmm5, [rsi + 64]",
    "vmovdqu64 zmm6, [rsi + 128]",
    "vmovdqu64 zmm7, [rsi + 192]",
    "vmovdqu64 [rdi + 0], zmm4",
    "vmovdqu64 [rdi + 64], zmm5",
    "vmovdqu64 [rdi + 128], zmm6",
    "vmovdqu64 [rdi + 192], zmm7",
    "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm9, zmm4, 0x96",
    "vpclmulqdq zmm10, zmm1, zmm8, 0x00",
    "vpclmulqdq zmm1, zmm1, zmm8, 0x11",
    "vpternlogq zmm1, zmm10, zmm5, 0x96",
    "vpclmulqdq zmm11, zmm2, zmm8, 0x00",
    "vpclmulqdq zmm2, zmm2, zmm8, 0x11",
    "vpternlogq zmm2, zmm11, zmm6, 0x96",
    "vpclmulqdq zmm12, zmm3, zmm8, 0x00",
    "vpclmulqdq zmm3, zmm3, zmm8, 0x11",
    "vpternlogq zmm3, zmm12, zmm7, 0x96",
    "jmp 1b",
    // 256 bytes into 128, and those into 64.
    "2:",
    "vbroadcasti32x4 zmm8, [r8 + 16]",
    "vpclmulqdq zmm4, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm4, zmm2, 0x96",
    "vpclmulqdq zmm4, zmm1, zmm8, 0x00",
    "vpclmulqdq zmm1, zmm1, zmm8, 0x11",
    "vpternlogq zmm1, zmm4, zmm3, 0x96",
    "vbroadcasti32x4 zmm8, [r8 + 32]",
    "vpclmulqdq zmm4, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm4, zmm1, 0x96",
    // 64 bytes into 16.
    "vextracti32x4 xmm1, zmm0, 1",
    "vextracti32x4 xmm2, zmm0, 2",
    "vextracti32x4 xmm3, zmm0, 3",
    "vpclmulqdq xmm4, xmm0, [r8 + 48], 0x00",
    "vpclmulqdq xmm0, xmm0, [r8 + 48], 0x11",
    "vpxor xmm3, xmm3, xmm4",
    "vpxor xmm3, xmm3, xmm0",
    "vpclmulqdq xmm4, xmm1, [r8 + 64], 0x00",
    "vpclmulqdq xmm1, xmm1, [r8 + 64], 0x11",
    "vpxor xmm3, xmm3, xmm4",
    "vpxor xmm3, xmm3, xmm1",
    "vpclmulqdq xmm4, xmm2, [r8 + 80], 0x00",
    "vpclmulqdq xmm2, xmm2, [r8 + 80], 0x11",
    "vpxor xmm3, xmm3, xmm4",
    "vpxor xmm3, xmm3, xmm2",
    // 128 bits into 96, 64 and, by Barrett, 32.
    "vpclmulqdq xmm0, xmm3, [r8 + 80], 0x10",
    "vpsrldq xmm1, xmm3, 8",
    "vpxor xmm0, xmm0, xmm1",
    "vpand xmm1, xmm0, [r8 + 128]",
    "vpclmulqdq xmm1, xmm1, [r8 + 96], 0x00",
    "vpsrldq xmm2, xmm0, 4",
    "vpxor xmm0, xmm1, xmm2",
    "vpand xmm1, xmm0, [r8 + 128]",
    "vpclmulqdq xmm1, xmm1, [r8 + 112], 0x10",
    "vpand xmm1, xmm1, [r8 + 128]",
    "vpclmulqdq xmm1, xmm1, [r8 + 112], 0x00",
    "vpxor xmm0, xmm0, xmm1",
    "vpextrd [rcx], xmm0, 1",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".cfi_endproc",
    ".size roxe_guard_fold, . - roxe_guard_fold",
    "roxe_guard_end:",
    "roxe_guard_fault:",
    ".cfi_startproc",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".popsection",
    ".purgem roxe_move_line",
    ".purgem roxe_move_wide_line",
    ".purgem roxe_ask_ahead",
    threshold = const 960,
);

// SAFETY: these are the symbols and the signatures of the assembly above. They may be called with any application
// address once the handler is installed; the address that is ours (the slice, `old`) must be valid as usual.
unsafe extern "C" {
    static roxe_guard_begin: u8;
    static roxe_guard_end: u8;
    static roxe_guard_fault: u8;
    fn roxe_guard_copy(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    fn roxe_guard_move(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    fn roxe_guard_wide(to: *mut c_void, from: *const c_void, len: usize) -> u32;
    fn roxe_guard_cas(word: u64, compare: u64, swap: u64, old: *mut u64) -> u32;
    fn roxe_guard_add(word: u64, add: u64, old: *mut u64) -> u32;
    fn roxe_guard_fold(
        to: *mut c_void,
        from: *const c_void,
        len: usize,
        remainder: *mut u32,
        by: *const [u64; 2],
    ) -> u32;
}

#[inline]
pub(super) fn read(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    // SAFETY: `out` is valid for its length, and atomics may change behind a shared reference; a fault at `addr` is reported.
    // Racing accesses at either end are no data race in the eyes of the compiler, which does not see the assembly's.
    let rc = unsafe { roxe_guard_copy(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

/// From this length on summing while copying is faster than before sealing.
const WORTH_SUMMING: usize = 4 * BLOCK;

pub(super) fn read_summed(addr: u64, out: &[AtomicU8]) -> Result<Option<Sum>, Fault> {
    let len = out.len() - out.len() % BLOCK;
    let Ok(blocks) = u8::try_from(len / BLOCK) else { return read(addr, out).map(|()| None) };
    if len < WORTH_SUMMING || !can_fold() {
        return read(addr, out).map(|()| None);
    }
    let (start, rest) = out.split_at(len);
    let mut remainder = 0;
    // SAFETY: `start` is valid for its length, a multiple of 256 that is not 0; the processor has the instructions; the rest
    // as in `read`.
    let rc = unsafe {
        roxe_guard_fold(
            start.as_ptr().cast_mut().cast(),
            addr as *const c_void,
            len,
            &raw mut remainder,
            (&raw const FOLD).cast(),
        )
    };
    if rc != 0 {
        return Err(Fault);
    }
    if !rest.is_empty() {
        read(addr.wrapping_add(len as u64), rest)?;
    }
    Ok(Some(Sum { blocks, remainder }))
}

#[inline]
pub(super) fn write(addr: u64, data: &[u8]) -> Result<(), Fault> {
    // SAFETY: `data` is valid for its length; a fault at `addr` is reported. The caller checked that the program
    // registered these bytes for writing, so they are not memory of ours.
    let rc = unsafe { roxe_guard_copy(addr as *mut c_void, data.as_ptr().cast(), data.len()) };
    if rc == 0 { Ok(()) } else { Err(Fault) }
}

/// From this length on [`Moves::Wide`] pays.
const WIDE: usize = 1024;

/// How bytes are moved that another processor has in its cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moves {
    /// 16 at a time.
    Narrow,
    /// 64 at a time; the processor must have AVX-512.
    Wide,
}

impl Moves {
    /// The fastest way to move `len` bytes.
    #[inline]
    fn best(len: usize) -> Self {
        if len >= WIDE && std::is_x86_feature_detected!("avx512f") { Self::Wide } else { Self::Narrow }
    }

    /// # Safety
    ///
    /// As for the assembly: the address that is ours is valid for `len` bytes.
    #[inline]
    unsafe fn run(self, to: *mut c_void, from: *const c_void, len: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise; who says `Wide` has found the instructions.
        let rc = unsafe {
            match self {
                Self::Narrow => roxe_guard_move(to, from, len),
                Self::Wide => roxe_guard_wide(to, from, len),
            }
        };
        if rc == 0 { Ok(()) } else { Err(Fault) }
    }

    #[inline]
    pub(super) fn read(self, addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
        // SAFETY: as in `read` below.
        unsafe { self.run(out.as_ptr().cast_mut().cast(), addr as *const c_void, out.len()) }
    }

    #[inline]
    pub(super) fn write(self, addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
        // SAFETY: as in `write` above; the bytes are mapped, and no reference to them exists.
        unsafe { self.run(addr as *mut c_void, data.addr as *const c_void, data.len()) }
    }
}

#[inline]
pub(super) fn write_shared(addr: u64, data: SharedBytes<'_>) -> Result<(), Fault> {
    Moves::best(data.len()).write(addr, data)
}

#[inline]
pub(super) fn read_shared(addr: u64, out: &[AtomicU8]) -> Result<(), Fault> {
    Moves::best(out.len()).read(addr, out)
}

#[inline]
pub(super) fn store(addr: u64, word: [u8; 8]) -> Result<(), Fault> {
    // An aligned word is the tail, which one instruction stores.
    write(addr, &word)
}

#[inline]
pub(super) fn atomic(addr: u64, op: AtomicOp) -> Result<u64, Fault> {
    let mut old = 0;
    // SAFETY: `old` is valid; a fault at `addr` is reported; the rest as in `write`.
    let rc = unsafe {
        match op {
            AtomicOp::CompareSwap { compare, swap } => roxe_guard_cas(addr, compare, swap, &raw mut old),
            AtomicOp::FetchAdd { add } => roxe_guard_add(addr, add, &raw mut old),
        }
    };
    if rc == 0 { Ok(old) } else { Err(Fault) }
}

/// The signals that a bad address raises.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What handled the two signals before us; null until we are in front.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(put_in_front);
}

/// Puts our handler in front of those that are there now.
pub(super) fn put_in_front() {
    for (&signal, previous) in SIGNALS.iter().zip(&PREVIOUS) {
        let action = current_action(signal);
        // Kept for ever: a handler may run at any later time. Stored first, so that ours always finds it.
        previous.store(Box::into_raw(Box::new(action)), Ordering::Release);
        set_action(signal, &action);
    }
}

/// Installs our handler with the mask of `previous`, which may be called from it.
fn set_action(signal: i32, previous: &libc::sigaction) {
    let mut action = *previous;
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    // SAFETY: `action` is a complete sigaction whose handler is async-signal-safe and has the SA_SIGINFO signature.
    // With these signals and a valid pointer the call cannot fail.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

fn current_action(signal: i32) -> libc::sigaction {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only reads the current action into `action`, for which all zero is a valid value too.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// The handler: sends our own faults to the exit, everything else to the previous handler.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and, for SA_SIGINFO handlers, a valid ucontext of its own layout that
    // the handler may change; nobody else looks at them meanwhile. Only plain loads and stores happen here.
    unsafe {
        let rip = &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize];
        let raised_by_kernel = (*info).si_code > 0;
        if raised_by_kernel && is_guarded(*rip as usize) {
            *rip = (&raw const roxe_guard_fault) as usize as i64;
            return;
        }
    }
    chain(signal, info, context);
}

fn is_guarded(rip: usize) -> bool {
    ((&raw const roxe_guard_begin) as usize..(&raw const roxe_guard_end) as usize).contains(&rip)
}

/// Does what would have happened without us.
fn chain(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let slot = SIGNALS.iter().zip(&PREVIOUS).find(|(known, _)| **known == signal);
    let previous = slot.map_or(std::ptr::null_mut(), |(_, previous)| previous.load(Ordering::Acquire));
    // SAFETY: null, or a box that was leaked by `put_in_front` and is never written again.
    let Some(previous) = (unsafe { previous.as_ref() }) else { return give_up(signal, info) };
    if previous.sa_flags & libc::SA_RESETHAND != 0 {
        reset(signal);
    }
    // SAFETY: a handler that is neither SIG_DFL nor SIG_IGN is a function of the signature its SA_SIGINFO flag says;
    // it gets exactly what the kernel gave us, on the stack and with the mask it asked for.
    unsafe {
        match previous.sa_sigaction {
            libc::SIG_DFL => give_up(signal, info),
            libc::SIG_IGN if (*info).si_code <= 0 => {}
            libc::SIG_IGN => give_up(signal, info),
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Lets the default action happen: the faulting instruction runs again after the return; a signal that somebody sent
/// has to be sent again.
fn give_up(signal: i32, info: *mut libc::siginfo_t) {
    reset(signal);
    // SAFETY: the kernel's siginfo is valid; `raise` is async-signal-safe.
    unsafe {
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

fn reset(signal: i32) {
    // SAFETY: `signal` is async-signal-safe and takes no pointers.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
