//! The handler of SIGSEGV and SIGBUS for faults of the guarded instructions.

use super::asm::{roxe_guard_begin, roxe_guard_end, roxe_guard_fault};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The signals that a bad address raises.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The previous handlers of the two signals; null until [`on_fault`] is installed.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(install_handlers);
}

/// Installs [`on_fault`] before the current handlers.
pub(super) fn install_handlers() {
    for (&signal, previous) in SIGNALS.iter().zip(&PREVIOUS) {
        let action = current_action(signal);
        // Leaked, because a handler may run at any later time. Stored first, so that `on_fault`
        // always finds it.
        previous.store(Box::into_raw(Box::new(action)), Ordering::Release);
        set_action(signal, &action);
    }
}

/// Installs [`on_fault`] with the signal mask of `previous`, because it may call that handler.
fn set_action(signal: i32, previous: &libc::sigaction) {
    let mut action = *previous;
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | (previous.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART));
    // SAFETY: `action` is a complete sigaction whose handler is async-signal-safe and has the
    // SA_SIGINFO signature. With these signals and a valid pointer the call cannot fail.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
}

fn current_action(signal: i32) -> libc::sigaction {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes the current action to `action`, for which all zeros are valid too.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    }
}

/// Redirects faults of guarded instructions to `roxe_guard_fault`; passes others to the previous
/// handler.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and, to SA_SIGINFO handlers, a valid ucontext that
    // the handler may change. Only plain loads and stores happen here.
    unsafe {
        let machine = &raw mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        #[cfg(target_arch = "x86_64")]
        let instruction = (&raw mut (*machine).gregs[libc::REG_RIP as usize]).cast::<u64>();
        #[cfg(target_arch = "aarch64")]
        let instruction = &raw mut (*machine).pc;
        let raised_by_kernel = (*info).si_code > 0;
        if raised_by_kernel && is_guarded(*instruction as usize) {
            *instruction = (&raw const roxe_guard_fault) as usize as u64;
            return;
        }
    }
    call_previous(signal, info, context);
}

fn is_guarded(instruction: usize) -> bool {
    ((&raw const roxe_guard_begin) as usize..(&raw const roxe_guard_end) as usize).contains(&instruction)
}

/// Calls the previous handler. If that is SIG_DFL or SIG_IGN, does what the kernel would have done.
fn call_previous(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let slot = SIGNALS.iter().zip(&PREVIOUS).find(|(known, _)| **known == signal);
    let previous = slot.map_or(std::ptr::null_mut(), |(_, previous)| previous.load(Ordering::Acquire));
    // SAFETY: the pointer is null or a box that `install_handlers` leaked and never writes again.
    let Some(previous) = (unsafe { previous.as_ref() }) else { return run_default_action(signal, info) };
    if previous.sa_flags & libc::SA_RESETHAND != 0 {
        restore_default(signal);
    }
    // SAFETY: a handler other than SIG_DFL and SIG_IGN is a function with the signature of its
    // SA_SIGINFO flag. It gets the kernel's arguments, which are valid until this handler returns.
    unsafe {
        match previous.sa_sigaction {
            libc::SIG_DFL => run_default_action(signal, info),
            libc::SIG_IGN if (*info).si_code <= 0 => {}
            libc::SIG_IGN => run_default_action(signal, info),
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

/// Restores the default action and causes it: after the return, the faulting instruction runs
/// again, and a signal that a process sent is raised again.
fn run_default_action(signal: i32, info: *mut libc::siginfo_t) {
    restore_default(signal);
    // SAFETY: the kernel's siginfo is valid; `raise` is async-signal-safe.
    unsafe {
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

fn restore_default(signal: i32) {
    // SAFETY: `libc::signal` is async-signal-safe and takes no pointers.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
