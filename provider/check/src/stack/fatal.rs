//! Signals that end a process, or that ask where a thread is: the handler hands the return
//! addresses of the thread to a thread of this library, which names them. **Unsafe**: `sigaction`,
//! a pipe, and a handler that calls only async-signal-safe functions.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::{io, ptr};

/// Maximum number of return addresses of a stack.
const MAX_ADDRESSES: usize = 48;

/// Signals whose default action ends the process and that a mistake of the program raises.
const FATAL: [i32; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// Number of waits of 10 ms for the stack of a thread to be written.
const MAX_WAITS: u32 = 200;

/// One message from the handler to the writer, below `PIPE_BUF`, so that it arrives in one piece.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    thread: i32,
    signal: i32,
    count: usize,
    addresses: [usize; MAX_ADDRESSES],
}

/// The pipe from the handlers to the writer: its reading end and its writing end.
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();
/// Number of stacks that were written.
static WRITTEN: AtomicU32 = AtomicU32::new(0);
/// The thread that writes them.
static WRITER: AtomicI32 = AtomicI32::new(0);

/// Returns the signal by which `roxe sweep` asks each thread for its stack.
pub(crate) fn question() -> i32 {
    libc::SIGRTMAX() - 3
}

/// Installs the handlers where the program has none yet; to be called before `main`.
pub(crate) fn install() {
    let Some(pipe) = pipe() else { return };
    if PIPE.set(pipe).is_ok() {
        FATAL.into_iter().chain([question()]).for_each(handle);
    }
}

fn pipe() -> Option<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe().ok()?;
    Some((out_of_the_way(&reader.into())?, out_of_the_way(&writer.into())?))
}

/// Returns a duplicate with a high number: programs count on the first ones.
fn out_of_the_way(end: &OwnedFd) -> Option<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::fcntl(end.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 200) };
    // SAFETY: just opened, and no other code knows it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn handle(signal: i32) {
    // SAFETY: a complete `sigaction`, for which all zero is a valid value; its handler has the
    // signature of SA_SIGINFO and is async-signal-safe.
    unsafe {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
        libc::sigaction(signal, ptr::null(), &raw mut action);
        if action.sa_sigaction != libc::SIG_DFL {
            return;
        }
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: takes no arguments.
    let thread = unsafe { libc::gettid() };
    let mut message = Message { thread, signal, count: 0, addresses: [0; MAX_ADDRESSES] };
    // SAFETY: the unwinder reads tables of loaded objects; a second thread in it is only a danger
    // for symbols, which are not looked up here.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            message.addresses[message.count] = frame.ip().addr();
            message.count += 1;
            message.count < MAX_ADDRESSES
        });
    }
    let before = WRITTEN.load(Ordering::Acquire);
    if let Some((_, writer)) = PIPE.get() {
        // SAFETY: the whole structure, which outlives the call.
        unsafe { libc::write(writer.as_raw_fd(), (&raw const message).cast(), size_of::<Message>()) };
    }
    let is_question = signal == question();
    let waits = if thread == WRITER.load(Ordering::Relaxed) { 0 } else { MAX_WAITS };
    for _ in 0..waits {
        // The sweep asks before the end of the run. A program whose call it has interrupted must
        // not end on its own before all stacks are written.
        if !is_question && WRITTEN.load(Ordering::Acquire) != before {
            break;
        }
        // SAFETY: no descriptors, only a time.
        unsafe { libc::poll(ptr::null_mut(), 0, 10) };
    }
    if is_question {
        return;
    }
    // SAFETY: async-signal-safe calls without pointers. A fault of an instruction happens again
    // after the return; a signal that a process sent has to be sent again.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if info.is_null() || (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

/// Sends the question to each thread of process `pid`.
pub(crate) fn ask(pid: u32) {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse::<libc::c_int>().ok());
    for thread in numbers {
        // SAFETY: takes no pointers. A thread that has ended meanwhile is an error that changes
        // nothing.
        unsafe { libc::syscall(libc::SYS_tgkill, pid.cast_signed(), thread, question()) };
    }
}

/// Passes thread, signal and return addresses of each stack to `write`, forever.
pub(crate) fn serve(write: impl Fn(i32, i32, &[usize])) {
    let Some((reader, _)) = PIPE.get() else { return };
    // SAFETY: takes no arguments.
    WRITER.store(unsafe { libc::gettid() }, Ordering::Relaxed);
    loop {
        let mut message = MaybeUninit::<Message>::zeroed();
        // SAFETY: room for one message, which outlives the call.
        let length = unsafe { libc::read(reader.as_raw_fd(), message.as_mut_ptr().cast(), size_of::<Message>()) };
        match usize::try_from(length) {
            Ok(length) if length == size_of::<Message>() => {}
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => continue,
            _ => return,
        }
        // SAFETY: filled by a handler; every value of its fields is valid.
        let message = unsafe { message.assume_init() };
        let addresses = &message.addresses[..message.count.min(MAX_ADDRESSES)];
        // The outermost address of a thread is 0.
        let end = addresses.iter().position(|address| *address == 0).unwrap_or(addresses.len());
        write(message.thread, message.signal, &addresses[..end]);
        WRITTEN.fetch_add(1, Ordering::Release);
    }
}
