//! `ibv_advise_mr`.

use super::*;
use crate::memory::advise_mr;

#[test]
fn advise_mr_checks_its_arguments() {
    let rig = Rig::new();
    // SAFETY: the rig keeps the region alive.
    let (addr, lkey) = unsafe { ((*rig.mr).addr.addr() as u64, (*rig.mr).lkey) };
    let mut list = [ibv_sge { addr, length: 4096, lkey }, ibv_sge { addr: addr + 4096, length: 4096, lkey }];
    // SAFETY: the list is a variable of this test, or NULL.
    let advise = |value, flags, list: *mut ibv_sge, count| unsafe { advise_mr(rig.pd, value, flags, list, count) };
    for value in 0..=2 {
        assert_eq!(advise(value, 0, list.as_mut_ptr(), 2), 0);
        assert_eq!(advise(value, 1, list.as_mut_ptr(), 2), 0);
    }
    assert_eq!(advise(3, 0, list.as_mut_ptr(), 2), libc::EOPNOTSUPP);
    assert_eq!(advise(0, 2, list.as_mut_ptr(), 2), libc::EINVAL);
    assert_eq!(advise(0, 0, null_mut(), 2), libc::EINVAL);
    assert_eq!(advise(0, 0, null_mut(), 0), 0);
    list[1].length += 1;
    assert_eq!(advise(0, 0, list.as_mut_ptr(), 2), libc::EFAULT);
    // SAFETY: the call refuses the domain before it reads the list.
    assert_eq!(unsafe { advise_mr(null_mut(), 0, 0, list.as_mut_ptr(), 2) }, libc::EINVAL);
}
