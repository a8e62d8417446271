//! Memory windows: access, binding, invalidation.

use super::*;
use crate::mr::{Mr, MrChange};
use crate::testing::{self, PAGE_SIZE, Pages};
use roxe_base::uses::ObjectId;
use roxe_memory::guard::own_cells;
use roxe_memory::region::AccessScope;
use roxe_memory::table::MemoryTable;
use roxe_transport::cx::MemError;
use roxe_transport::wr::Sge;
use roxe_transport::wr::{Access, Bind};
use roxe_wire::LKey;

const READ_WRITE: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// A region that windows may be bound to and that no peer can access, and a queue pair.
struct MwSetup {
    pages: Pages,
    pd: Arc<Pd>,
    mr: Arc<Mr>,
    qp: AccessScope,
}

impl MwSetup {
    fn new() -> Self {
        let (pages, pd) = (Pages::new(1), testing::pd());
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let mr = pd.register(pages.addr(), PAGE_SIZE, pages.addr(), access).unwrap();
        let qp = AccessScope { pd: pd.id(), qp: Some(ObjectId::next()) };
        Self { pages, pd, mr, qp }
    }

    /// Returns another queue pair of the domain.
    fn other_qp(&self) -> AccessScope {
        AccessScope { qp: Some(ObjectId::next()), ..self.qp }
    }

    fn table(&self) -> &MemoryTable {
        self.pd.context().memory()
    }

    fn at(&self, offset: u64) -> u64 {
        self.pages.addr() + offset
    }

    /// Returns a bind of `mw` to bytes 16 to 32 with this key tag.
    fn bind(&self, mw: &Mw, tag: u8) -> Bind {
        let rkey = RKey(mw.rkey().0 & !0xff | u32::from(tag));
        Bind { rkey, lkey: self.mr.lkey(), access: READ_WRITE, addr: self.at(16), length: 16 }
    }

    fn write(&self, scope: AccessScope, rkey: RKey, va: u64) -> Result<(), MemError> {
        self.table().hold().write_remote(scope, rkey, va, &[1; 8])
    }
}

fn errno(result: Result<(), Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |()| 0)
}

// clause: WINDOW-ACCESS, WINDOW-BIND
#[test]
fn window_grants_its_range_with_its_rights() {
    let s = MwSetup::new();
    for kind in [MwKind::One, MwKind::Two] {
        let mw = s.pd.alloc_mw(kind).unwrap();
        assert!(s.write(s.qp, mw.rkey(), s.at(16)).is_err(), "not bound");
        let bind = Bind { access: Access::REMOTE_WRITE, ..s.bind(&mw, 7) };
        s.table().bind(s.qp, &bind).unwrap();
        assert_eq!(s.write(s.qp, bind.rkey, s.at(24)), Ok(()));
        assert_eq!(s.write(s.qp, bind.rkey, s.at(25)), Err(MemError::Range));
        assert_eq!(s.write(s.qp, bind.rkey, s.at(15)), Err(MemError::Range));
        assert_eq!(
            s.table().hold().read_remote(s.qp, bind.rkey, s.at(16), own_cells(&mut [0; 8])),
            Err(MemError::Access)
        );
        assert_eq!(s.write(s.qp, RKey(bind.rkey.0 ^ 1), s.at(16)), Err(MemError::BadKey));
        let others = if kind == MwKind::One { Ok(()) } else { Err(MemError::WrongDomain) };
        assert_eq!(s.write(s.other_qp(), bind.rkey, s.at(16)), others, "{kind:?}");
        let other_domain = AccessScope { pd: s.pd.context().alloc_pd().unwrap().id(), qp: None };
        assert_eq!(s.write(other_domain, bind.rkey, s.at(16)), Err(MemError::WrongDomain));
    }
    assert_eq!(s.write(s.qp, RKey(s.mr.lkey().0), s.at(16)), Err(MemError::Access), "the region grants nothing");
}

// clause: WINDOW-BIND, FLUSH-RIGHTS
#[test]
fn window_is_flushable_if_its_region_is() {
    let s = MwSetup::new();
    let mw = s.pd.alloc_mw(MwKind::Two).unwrap();
    let flushable = s.pd.register(s.at(0), PAGE_SIZE, s.at(0), Access::MW_BIND | Access::FLUSH_GLOBAL).unwrap();
    let bind = Bind { lkey: flushable.lkey(), access: Access::FLUSH_GLOBAL, ..s.bind(&mw, 1) };
    s.table().bind(s.qp, &bind).unwrap();
    let flush = |range| s.table().hold().flush_remote(s.qp, bind.rkey, range, Access::FLUSH_GLOBAL);
    assert_eq!((flush(None), flush(Some((s.at(16), 16)))), (Ok(()), Ok(())));
    assert_eq!(flush(Some((s.at(16), 17))), Err(MemError::Range));
    assert_eq!(s.write(s.qp, bind.rkey, s.at(16)), Err(MemError::Access));
}

// clause: WINDOW-REMOTE-ONLY
#[test]
fn window_key_is_refused_in_lists() {
    let s = MwSetup::new();
    for kind in [MwKind::One, MwKind::Two] {
        let mw = s.pd.alloc_mw(kind).unwrap();
        let bind = s.bind(&mw, 1);
        s.table().bind(s.qp, &bind).unwrap();
        let list = [Sge { addr: s.at(16), length: 8, lkey: LKey(bind.rkey.0) }];
        assert_eq!(s.table().hold().gather(s.pd.id(), &list, 0, own_cells(&mut [0; 8])), Err(MemError::WrongDomain));
        assert_eq!(s.table().hold().scatter(s.pd.id(), &list, 0, &[0; 8]), Err(MemError::WrongDomain));
    }
}

// clause: WINDOW-BIND
#[test]
fn invalid_bind_changes_nothing() {
    let s = MwSetup::new();
    let (one, two) = (s.pd.alloc_mw(MwKind::One).unwrap(), s.pd.alloc_mw(MwKind::Two).unwrap());
    let reg = |access| s.pd.register(s.at(0), PAGE_SIZE, s.at(0), access).unwrap();
    let (closed, read_only) = (reg(Access::LOCAL_WRITE), reg(Access::MW_BIND));
    let zero_based = reg(Access::MW_BIND | Access::LOCAL_WRITE | Access::ZERO_BASED);
    let good = s.bind(&two, 1);
    let other_domain = AccessScope { pd: s.pd.context().alloc_pd().unwrap().id(), ..s.qp };
    for (scope, bind, expected) in [
        (other_domain, good, MemError::WrongDomain),
        (s.qp, Bind { rkey: s.mr.rkey(), ..good }, MemError::BadKey),
        (s.qp, Bind { lkey: LKey(5), ..good }, MemError::BadKey),
        (s.qp, Bind { lkey: closed.lkey(), ..good }, MemError::Access),
        (s.qp, Bind { lkey: read_only.lkey(), ..good }, MemError::Access),
        (s.qp, Bind { lkey: zero_based.lkey(), addr: 0, ..good }, MemError::Access),
        (s.qp, Bind { access: Access::FLUSH_GLOBAL, ..good }, MemError::Access),
        (s.qp, Bind { length: PAGE_SIZE, ..good }, MemError::Range),
        (s.qp, Bind { length: u64::MAX, ..good }, MemError::Range),
        (s.qp, Bind { length: 0, ..good }, MemError::Access),
        (s.qp, Bind { access: READ_WRITE | Access::ZERO_BASED, ..s.bind(&one, 1) }, MemError::Access),
    ] {
        assert_eq!(s.table().bind(scope, &bind), Err(expected), "{bind:?}");
    }
    let reads = Bind { lkey: read_only.lkey(), access: Access::REMOTE_READ, ..good };
    assert_eq!(s.table().bind(s.qp, &reads), Ok(()), "a read-only window needs no LOCAL_WRITE");
    assert_eq!(errno(s.mr.deregister()), 0, "no window was bound");
}

// clause: WINDOW-TYPE-1
#[test]
fn type_1_window_rebinds_and_closes_with_zero_length() {
    let s = MwSetup::new();
    let mw = s.pd.alloc_mw(MwKind::One).unwrap();
    let (first, second) = (s.bind(&mw, 1), Bind { addr: s.at(64), ..s.bind(&mw, 2) });
    s.table().bind(s.qp, &first).unwrap();
    s.table().bind(s.other_qp(), &second).unwrap();
    assert_eq!(s.write(s.qp, first.rkey, s.at(16)), Err(MemError::BadKey));
    assert_eq!(s.write(s.qp, second.rkey, s.at(64)), Ok(()));
    assert_eq!(s.table().invalidate(s.qp, second.rkey), Err(MemError::Access));
    let none = Bind { length: 0, lkey: LKey(0), ..s.bind(&mw, 3) };
    s.table().bind(s.qp, &none).unwrap();
    assert!(s.write(s.qp, none.rkey, s.at(64)).is_err());
    assert_eq!(errno(s.mr.deregister()), 0);
}

// clause: WINDOW-TYPE-2, INVALIDATE-REFUSED
#[test]
fn type_2_window_needs_invalidation_before_rebind() {
    let s = MwSetup::new();
    let mw = s.pd.alloc_mw(MwKind::Two).unwrap();
    let zero_based = Bind { access: READ_WRITE | Access::ZERO_BASED, ..s.bind(&mw, 1) };
    assert_eq!(s.table().invalidate(s.qp, mw.rkey()), Err(MemError::Access), "not bound");
    s.table().bind(s.qp, &zero_based).unwrap();
    assert_eq!(s.write(s.qp, zero_based.rkey, 8), Ok(()));
    assert_eq!(testing::load(s.at(24)), 0x0101_0101_0101_0101);
    assert_eq!(s.table().bind(s.qp, &s.bind(&mw, 2)), Err(MemError::Access));
    assert_eq!(s.table().invalidate(s.other_qp(), zero_based.rkey), Err(MemError::WrongDomain));
    assert_eq!(s.table().invalidate(s.qp, RKey(zero_based.rkey.0 ^ 1)), Err(MemError::BadKey));
    s.table().invalidate(s.qp, zero_based.rkey).unwrap();
    assert!(s.write(s.qp, zero_based.rkey, 8).is_err());
    s.table().bind(s.other_qp(), &s.bind(&mw, 1)).unwrap();
}

// clause: KEY-DEAD
#[test]
fn invalidated_window_is_not_written() {
    let s = MwSetup::new();
    let mw = s.pd.alloc_mw(MwKind::Two).unwrap();
    let (table, qp, va) = (s.table(), s.qp, s.at(0));
    std::thread::scope(|scope| {
        for tag in 0..200u8 {
            let bind = Bind { addr: va, length: PAGE_SIZE, ..s.bind(&mw, tag) };
            table.bind(qp, &bind).unwrap();
            let writer = scope.spawn(move || while table.hold().write_remote(qp, bind.rkey, va, &[7; 4096]).is_ok() {});
            table.invalidate(qp, bind.rkey).unwrap();
            s.pages.clear(0);
            writer.join().unwrap();
            assert_eq!(testing::load(va + PAGE_SIZE - 8), 0);
        }
    });
}

// clause: WINDOW-QP-GONE
#[test]
fn destroyed_qp_closes_its_type_2_windows() {
    let s = MwSetup::new();
    let [one, two, other] = [MwKind::One, MwKind::Two, MwKind::Two].map(|kind| s.pd.alloc_mw(kind).unwrap());
    let [first, second, third] = [&one, &two, &other].map(|mw| s.bind(mw, 5));
    s.table().bind(s.qp, &first).unwrap();
    s.table().bind(s.qp, &second).unwrap();
    let survivor = s.other_qp();
    s.table().bind(survivor, &third).unwrap();
    s.table().forget_qp(s.qp.qp.unwrap());
    assert_eq!(s.write(s.qp, second.rkey, s.at(16)), Err(MemError::WrongDomain));
    assert_eq!(s.write(survivor, first.rkey, s.at(16)), Ok(()), "type 1 is for the whole domain");
    assert_eq!(s.write(survivor, third.rkey, s.at(16)), Ok(()));
    s.table().bind(survivor, &s.bind(&two, 6)).unwrap();
}

// clause: WINDOW-HOLDS
#[test]
fn dropped_region_closes_its_windows() {
    let MwSetup { pages, pd, mr, qp } = MwSetup::new();
    let windows = [MwKind::One, MwKind::Two].map(|kind| pd.alloc_mw(kind).unwrap());
    let bindings = [&windows[0], &windows[1]].map(|mw| Bind {
        rkey: mw.rkey(),
        lkey: mr.lkey(),
        access: READ_WRITE,
        addr: pages.addr(),
        length: 8,
    });
    let table = pd.context().memory();
    for bind in &bindings {
        table.bind(qp, bind).unwrap();
    }
    drop(mr);
    for bind in &bindings {
        assert_eq!(table.hold().write_remote(qp, bind.rkey, bind.addr, &[1; 8]), Err(MemError::WrongDomain));
    }
    drop(windows);
    assert_eq!((table.hold().count(), errno(pd.dealloc())), (0, 0));
}

// clause: WINDOW-HOLDS
#[test]
fn region_and_domain_are_busy_while_they_have_windows() {
    let s = MwSetup::new();
    let windows = [MwKind::One, MwKind::Two].map(|kind| s.pd.alloc_mw(kind).unwrap());
    for mw in &windows {
        s.table().bind(s.qp, &s.bind(mw, 9)).unwrap();
    }
    let change_access = || s.mr.change(MrChange { access: Some(Access::empty()), ..MrChange::default() });
    assert_eq!((errno(s.mr.deregister()), errno(change_access())), (libc::EBUSY, libc::EBUSY));
    windows[0].deallocate();
    windows[0].deallocate();
    assert_eq!(errno(s.mr.deregister()), libc::EBUSY);
    s.table().invalidate(s.qp, s.bind(&windows[1], 9).rkey).unwrap();
    assert_eq!((errno(change_access()), errno(s.mr.deregister())), (0, 0));
    assert_eq!(errno(s.pd.dealloc()), libc::EBUSY);
    drop(windows);
    assert_eq!((errno(s.pd.dealloc()), s.table().hold().count()), (0, 0));
}
