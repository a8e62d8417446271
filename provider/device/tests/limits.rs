//! The limits that `ibv_query_device` reports are exact. These tests have a process of their own
//! and run one after the other, because all objects of a process count towards its limits.

use roxe_provider::{Access, AhAttr, CqInit, Error, MwKind, QpCaps, QpInit, Service, SrqInit, WqInit, devices, limits};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Serializes the tests.
static ALONE: Mutex<()> = Mutex::new(());

/// Creates objects until ENOMEM, which must be returned once `max` exist, including the
/// `existing` ones of the caller. Destroying an object must make room for one.
fn fill<T>(what: &str, existing: u32, max: u32, create: impl Fn() -> Result<T, Error>) {
    let (began, mut made) = (Instant::now(), Vec::new());
    let refused = loop {
        match create() {
            Ok(object) => made.push(object),
            Err(error) => break error,
        }
        assert!(made.len() <= (max - existing) as usize, "more than {max} {what} were created");
    };
    assert_eq!((made.len(), refused.errno()), ((max - existing) as usize, libc::ENOMEM), "{what}: {refused}");
    drop(made.pop());
    made.push(create().unwrap());
    assert_eq!(create().err().map(|error| error.errno()), Some(libc::ENOMEM), "{what}");
    drop(made);
    drop(create().unwrap());
    println!("{what}: {max} in {:.1} s", began.elapsed().as_secs_f32());
}

#[test]
fn objects_are_limited_to_device_attributes() {
    let _alone = ALONE.lock().unwrap();
    let context = devices().unwrap()[0].open().unwrap();
    let attr = context.device().attr();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(CqInit { cqe: 1, ..CqInit::default() }).unwrap();
    fill("protection domains", 1, attr.max_pd, || context.alloc_pd());
    fill("parent domains", 1, attr.max_pd, || pd.extend());
    fill("completion queues", 1, attr.max_cq, || context.create_cq(CqInit { cqe: 1, ..CqInit::default() }));
    let srq = SrqInit { max_wr: 1, max_sge: 1, ..SrqInit::default() };
    fill("shared receive queues", 0, attr.max_srq, || pd.create_srq(srq));
    let loopback = AhAttr { dgid: Ipv4Addr::LOCALHOST.into(), port: 1, has_grh: true, ..AhAttr::default() };
    fill("address handles", 0, attr.max_ah, || pd.create_ah(&loopback));
    let caps = QpCaps { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    fill("queue pairs", 0, attr.max_qp, || {
        let (send_cq, recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
        pd.create_qp(QpInit {
            service: Service::Rc,
            caps,
            sq_sig_all: true,
            send_cq,
            recv_cq,
            srq: None,
            user_context: 0,
        })
    });
    let wq = pd.create_wq(WqInit { max_wr: 1, max_sge: 1, cq: Arc::clone(&cq), user_context: 0 }).unwrap();
    fill("indirection tables", 0, limits::MAX_RWQ_TABLES, || context.create_rwq_table(&[Arc::clone(&wq)]));
}

#[test]
#[ignore = "needs a gigabyte, and half a minute of an idle processor"]
fn regions_and_windows_are_limited_to_device_attributes() {
    let _alone = ALONE.lock().unwrap();
    let context = devices().unwrap()[0].open().unwrap();
    let (attr, pd) = (context.device().attr(), context.alloc_pd().unwrap());
    fill("memory windows", 0, attr.max_mw, || pd.alloc_mw(MwKind::Two));
    let memory = [0u64; 8];
    let addr = memory.as_ptr().addr() as u64;
    // SAFETY: the domain has no queue pair, so nothing accesses the registered memory.
    fill("memory regions", 0, attr.max_mr, || unsafe { pd.reg_mr(addr, 64, addr, Access::LOCAL_WRITE) });
}
