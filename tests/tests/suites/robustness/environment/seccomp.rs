//! Restricts a process to the system calls of an unprivileged Docker container. The filter refuses
//! the calls that Docker lists as blocked by its default profile (docs.docker.com, "Seccomp
//! security profiles for Docker").
//!
//! The filter is a classic BPF program for `seccomp` (`man 2 seccomp`) over `struct seccomp_data`:
//! number, architecture, instruction pointer, arguments.

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter, sock_fprog};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// System calls that are refused with EPERM.
const REFUSED: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_get_mempolicy,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mbind,
    libc::SYS_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Offsets in `struct seccomp_data` of the call's number and the low half of its first argument.
const CALL_NUMBER: u32 = 0;
const FIRST_ARGUMENT: u32 = 16;

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(from: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, from)
}

/// Skips the next instruction unless the loaded word passes the test.
fn unless(test: u32, k: u32) -> sock_filter {
    sock_filter { jf: 1, ..statement(BPF_JMP | test | BPF_K, k) }
}

fn answer(errno: i32) -> sock_filter {
    statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

fn filter() -> Vec<sock_filter> {
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWCGROUP;
    let mut program = vec![load(CALL_NUMBER)];
    for call in REFUSED {
        program.extend([unless(BPF_JEQ, *call as u32), answer(libc::EPERM)]);
    }
    // The filter cannot read the flags of `clone3`, which are in memory. With ENOSYS the C library
    // falls back to `clone`.
    program.extend([unless(BPF_JEQ, libc::SYS_clone3 as u32), answer(libc::ENOSYS)]);
    // The jump skips the rules for `clone`.
    let clone = sock_filter { jf: 3, ..statement(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_clone as u32) };
    program.extend([clone, load(FIRST_ARGUMENT), unless(BPF_JSET, namespaces.cast_unsigned()), answer(libc::EPERM)]);
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    program
}

/// Replaces this process by `command`, which runs with the filter, like its children. Returns only
/// on failure.
pub(crate) fn become_contained(command: &[String]) -> io::Error {
    let Some((name, args)) = command.split_first() else { return io::ErrorKind::InvalidInput.into() };
    let mut filter = filter();
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a number and no pointers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return io::Error::last_os_error();
    }
    // SAFETY: the program and its instructions outlive the call, which copies them.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } != 0 {
        return io::Error::last_os_error();
    }
    Command::new(name).args(args).exec()
}
