//! All implementations on mapped, unmapped, inaccessible and read-only memory; signals that the
//! guard does not handle.

#[cfg(target_arch = "x86_64")]
use super::x86::Moves;
use super::{Fault, arch, own_cells, portable, signals};
use crate::testing::{PAGE_SIZE, Pages};
use roxe_transport::cx::AtomicOp;
use roxe_wire::icrc::{BLOCK_LEN, Crc, Tables};
use std::sync::atomic::AtomicU8;

#[derive(Clone, Copy)]
struct Arch {
    name: &'static str,
    read: fn(u64, &[AtomicU8]) -> Result<(), Fault>,
    write: fn(u64, &[u8]) -> Result<(), Fault>,
    atomic: fn(u64, AtomicOp) -> Result<u64, Fault>,
    store: fn(u64, [u8; 8]) -> Result<(), Fault>,
}

/// Returns the implementations whose instructions and system calls this machine has.
fn arches() -> Vec<Arch> {
    super::install();
    let own = Arch { name: "own", read: arch::read, write: arch::write, atomic: arch::atomic, store: arch::store };
    let shared = Arch {
        name: "moves",
        read: arch::read_shared,
        write: |addr, data| arch::write_shared(addr, data.into()),
        ..own
    };
    let mut arches = vec![own, shared];
    #[cfg(target_arch = "x86_64")]
    arches.push(Arch {
        name: "narrow moves",
        read: |addr, out| Moves::Narrow.read(addr, out),
        write: |addr, data| Moves::Narrow.write(addr, data.into()),
        ..own
    });
    if has_portable() {
        arches.push(Arch {
            name: "portable",
            read: portable::read,
            write: portable::write,
            atomic: portable::atomic,
            store: portable::store,
        });
    }
    arches
}

/// Returns true if the kernel has the system call of `portable`. qemu-user, which runs these tests
/// for other processors, does not.
fn has_portable() -> bool {
    // SAFETY: without vectors nothing is read.
    let rc = unsafe { libc::process_vm_readv(libc::getpid(), std::ptr::null(), 0, std::ptr::null(), 0, 0) };
    let has = rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS);
    if !has {
        println!("SKIPPED: portable: the kernel has no process_vm_readv");
    }
    has
}

#[test]
fn every_length_at_every_alignment_is_copied_exactly() {
    let pages = Pages::new(4);
    let data: Vec<u8> = (0..6000u32).map(|i| (i * 7 + i / 256) as u8 | 1).collect();
    for Arch { name, read, write, .. } in arches() {
        let lengths =
            (0..200).chain([255, 256, 1023, 1024, 1032, 1095, 1096, 2047, 2048, 2055, 2056, 2064, 4096, 5000]);
        for (len, skew) in lengths.flat_map(|len| (0..16).map(move |skew| (len, skew))) {
            let at = pages.addr() + 64 + skew;
            write(pages.addr(), &vec![0; len + 128]).unwrap();
            write(at, &data[..len]).unwrap();
            let mut whole = vec![0xaa; len + 128];
            read(pages.addr(), own_cells(&mut whole)).unwrap();
            let start = 64 + skew as usize;
            assert_eq!(&whole[start..start + len], &data[..len], "{name} len {len} skew {skew}");
            assert!(whole[..start].iter().chain(&whole[start + len..]).all(|&byte| byte == 0), "{name} {len} {skew}");
        }
    }
}

#[test]
fn summed_copy_and_its_sum_are_exact() {
    super::install();
    let pages = Pages::new(4);
    let data: Vec<u8> = (0..9000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for (len, skew) in
        [0, 1, 256, 1023, 1024, 1025, 1280, 2048, 4096, 4097, 8000].into_iter().flat_map(|len| [(len, 0), (len, 5)])
    {
        arch::write(pages.addr() + skew, &data[..len]).unwrap();
        let mut out = vec![0xaa; len];
        let sum = super::read_summed(pages.addr() + skew, own_cells(&mut out)).unwrap();
        assert_eq!(out, data[..len], "{len} {skew}");
        if let Some(super::Sum { blocks, remainder }) = sum {
            let end = usize::from(blocks) * BLOCK_LEN;
            assert_eq!(end, len - len % BLOCK_LEN);
            assert_eq!(remainder, Tables::update(0, &data[..end]), "{len} {skew}");
        }
    }
    pages.unmap(1, 1);
    for before in [0, 1, 256, 700, 4095] {
        let mut out = vec![0; 4096];
        assert_eq!(super::read_summed(pages.addr() + PAGE_SIZE - before, own_cells(&mut out)), Err(Fault), "{before}");
    }
}

/// Processors with the 512-bit instructions use those, so the product does not run the others
/// there.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[test]
fn summed_copy_by_256_bits_is_exact() {
    use super::x86::Fold;
    super::install();
    if !Fold::has_half() {
        return eprintln!("skipped: this processor has no AVX2 or no VPCLMULQDQ");
    }
    let pages = Pages::new(3);
    let data: Vec<u8> = (0..8192u32).map(|i| (i * 13 + i / 256) as u8).collect();
    arch::write(pages.addr(), &data).unwrap();
    for len in (1..=32).map(|blocks| blocks * BLOCK_LEN) {
        let mut out = vec![0xaa; len];
        // SAFETY: the processor has the instructions, and the length is a multiple of 256.
        let remainder = unsafe { Fold::Half.run(pages.addr(), own_cells(&mut out)) };
        assert_eq!(remainder, Ok(Tables::update(0, &data[..len])), "{len}");
        assert_eq!(out, data[..len], "{len}");
    }
    pages.unmap(1, 1);
    // SAFETY: as above.
    let faults = [256, 512].map(|before| unsafe {
        Fold::Half.run(pages.addr() + PAGE_SIZE - before, own_cells(&mut vec![0; 4096])) == Err(Fault)
    });
    assert_eq!(faults, [true; 2]);
}

#[test]
fn unmapped_gap_is_a_fault_at_any_offset() {
    let pages = Pages::new(3);
    pages.unmap(1, 1);
    for Arch { name, read, write, .. } in arches() {
        for len in [1, 2, 4, 7, 8, 9, 64, 2048, 4096] {
            for before in [0, 1, 4, len - 1].into_iter().filter(|before| *before < len) {
                let at = pages.addr() + PAGE_SIZE - before;
                assert_eq!(read(at, own_cells(&mut vec![0; len as usize])), Err(Fault), "{name} {len} {before}");
                assert_eq!(write(at, &vec![0; len as usize]), Err(Fault), "{name} {len} {before}");
            }
            assert_eq!(
                read(pages.addr() + PAGE_SIZE - len, own_cells(&mut vec![0; len as usize])),
                Ok(()),
                "{name} {len}"
            );
            assert_eq!(write(pages.addr() + 2 * PAGE_SIZE, &vec![0; len as usize]), Ok(()), "{name} {len}");
        }
    }
}

#[test]
fn protection_is_respected() {
    let pages = Pages::new(2);
    pages.protect(0, libc::PROT_NONE);
    pages.protect(1, libc::PROT_READ);
    for Arch { name, read, write, atomic, store } in arches() {
        assert_eq!(read(pages.addr(), own_cells(&mut [0; 8])), Err(Fault), "{name}");
        assert_eq!(write(pages.addr(), &[0; 8]), Err(Fault), "{name}");
        assert_eq!(store(pages.addr(), [0; 8]), Err(Fault), "{name}");
        assert_eq!(store(pages.addr() + PAGE_SIZE, [0; 8]), Err(Fault), "{name}");
        assert_eq!(read(pages.addr() + PAGE_SIZE, own_cells(&mut [0; 8])), Ok(()), "{name}");
        assert_eq!(write(pages.addr() + PAGE_SIZE, &[0; 8]), Err(Fault), "{name}");
        for op in [AtomicOp::FetchAdd { add: 1 }, AtomicOp::CompareSwap { compare: 0, swap: 1 }] {
            assert_eq!(atomic(pages.addr(), op), Err(Fault), "{name}");
            assert_eq!(atomic(pages.addr() + PAGE_SIZE, op), Err(Fault), "{name}");
        }
    }
}

#[test]
fn addresses_that_cannot_exist_are_faults() {
    for Arch { name, read, write, .. } in arches() {
        for addr in [0, 8, 1 << 47, 1 << 63, u64::MAX - 15] {
            assert_eq!(read(addr, own_cells(&mut [0; 8])), Err(Fault), "{name} {addr:#x}");
            assert_eq!(write(addr, &[0; 8]), Err(Fault), "{name} {addr:#x}");
        }
    }
}

#[test]
fn access_beyond_a_truncated_file_is_a_fault() {
    let pages = Pages::of_file(2);
    pages.truncate_file();
    for Arch { name, read, write, atomic, .. } in arches() {
        assert_eq!(read(pages.addr(), own_cells(&mut [0; 8])), Err(Fault), "{name}");
        assert_eq!(write(pages.addr(), &[0; 4096]), Err(Fault), "{name}");
        assert_eq!(atomic(pages.addr(), AtomicOp::FetchAdd { add: 1 }), Err(Fault), "{name}");
    }
}

// clause: ATOMIC-RESULT
#[test]
fn atomics_return_the_old_value_and_store_the_new() {
    let pages = Pages::new(1);
    let word = pages.addr() + 8;
    for Arch { name, read, write, atomic, .. } in arches() {
        let value = || {
            let mut bytes = [0; 8];
            read(word, own_cells(&mut bytes)).unwrap();
            u64::from_ne_bytes(bytes)
        };
        write(word, &5u64.to_ne_bytes()).unwrap();
        assert_eq!(atomic(word, AtomicOp::FetchAdd { add: u64::MAX }), Ok(5), "{name}");
        assert_eq!(value(), 4, "{name}");
        assert_eq!(atomic(word, AtomicOp::CompareSwap { compare: 9, swap: 1 }), Ok(4), "{name}");
        assert_eq!(value(), 4, "{name}");
        assert_eq!(atomic(word, AtomicOp::CompareSwap { compare: 4, swap: 1 }), Ok(4), "{name}");
        assert_eq!(value(), 1, "{name}");
    }
}

// clause: ATOMIC-WRITE-WHOLE
#[test]
fn stored_word_is_not_torn() {
    const ROUNDS: u64 = 2_000;
    let pages = Pages::new(1);
    let at = pages.addr() + 8;
    for Arch { name, store, .. } in arches() {
        store(at, [0; 8]).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || (1..=ROUNDS).all(|round| store(at, [round as u8; 8]).is_ok()));
            loop {
                let done = writer.is_finished();
                let seen = super::atomic(at, AtomicOp::FetchAdd { add: 0 }).unwrap().to_ne_bytes();
                assert_eq!(seen, [seen[0]; 8], "{name}");
                if done {
                    break;
                }
            }
            assert!(writer.join().unwrap(), "{name}");
        });
    }
}

// clause: ATOMIC-GLOBAL
#[test]
fn atomics_of_several_threads_add_up() {
    super::install();
    let pages = Pages::new(1);
    let word = pages.addr();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                (0..10_000).for_each(|_| assert!(super::atomic(word, AtomicOp::FetchAdd { add: 3 }).is_ok()))
            });
        }
    });
    assert_eq!(super::atomic(word, AtomicOp::FetchAdd { add: 0 }), Ok(120_000));
}

#[test]
fn flag_is_visible_after_its_data() {
    super::install();
    const ROUNDS: u64 = 2_000;
    let pages = Pages::new(1);
    let (data, flag) = (pages.addr(), pages.addr() + 192);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for round in 1..=ROUNDS {
                while crate::testing::load(flag) < round {
                    std::hint::spin_loop();
                    std::thread::yield_now();
                }
                let mut first = [0; 8];
                super::read(data, own_cells(&mut first)).unwrap();
                assert!(u64::from_ne_bytes(first) >= round);
            }
        });
        for round in 1..=ROUNDS {
            super::write(data, &round.to_ne_bytes().repeat(25)).unwrap();
        }
        reader.join().unwrap();
    });
}

#[test]
fn page_protected_during_an_access_raises_no_signal() {
    super::install();
    let pages = Pages::new(1);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..500 {
                pages.protect(0, if round % 2 == 0 { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE });
                std::thread::yield_now();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            // Both results are right; a signal would end the test.
            let _ = super::write(pages.addr(), &[1; 4096]);
        }
    });
    // The last round leaves the page writable.
    assert_eq!(super::write(pages.addr(), &[1; 4096]), Ok(()));
}

/// Runs `child` in a forked process and returns its wait status.
fn in_child(child: impl FnOnce()) -> i32 {
    // SAFETY: the child only makes system calls, touches memory and ends with `_exit`.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(ended.is_err().into());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

/// Loads from address 8 outside the guarded instructions.
fn load_bad_address() {
    // SAFETY: none: the test wants this crash, in a process of its own.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {0}, [{1}]", out(reg) _, in(reg) 8usize);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("ldr {0}, [{1}]", out(reg) _, in(reg) 8usize);
    }
}

extern "C" fn exit_with_42(signal: i32, info: *mut libc::siginfo_t, _: *mut std::ffi::c_void) {
    // SAFETY: the kernel passes a valid siginfo.
    let addr = unsafe { (*info).si_addr() } as usize;
    // SAFETY: `_exit` is async-signal-safe.
    unsafe { libc::_exit(if signal == libc::SIGSEGV && addr == 8 { 42 } else { 1 }) }
}

/// Installs `handler` for SIGSEGV, as a program may before it uses roxe.
fn set_handler(handler: usize, flags: i32) {
    // SAFETY: a complete sigaction; the handlers of these tests have the signature the flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
    }
}

#[test]
fn foreign_faults_reach_the_previous_handler() {
    let status = in_child(|| {
        set_handler(exit_with_42 as *const () as usize, libc::SA_SIGINFO);
        signals::install_handlers();
        assert_eq!(arch::read(8, own_cells(&mut [0; 4])), Err(Fault));
        load_bad_address();
    });
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 42);
}

#[test]
fn foreign_fault_without_handler_kills() {
    for disposition in [libc::SIG_DFL, libc::SIG_IGN] {
        let status = in_child(|| {
            set_handler(disposition, 0);
            signals::install_handlers();
            load_bad_address();
        });
        assert!(libc::WIFSIGNALED(status), "{status:#x}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
    }
}

#[test]
fn sent_signal_has_its_default_effect() {
    let status = in_child(|| {
        set_handler(libc::SIG_DFL, 0);
        signals::install_handlers();
        // SAFETY: takes no pointers.
        unsafe { libc::raise(libc::SIGSEGV) };
    });
    assert!(libc::WIFSIGNALED(status), "{status:#x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}
