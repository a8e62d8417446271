//! Compares the table of verbs with the library: every symbol and every slot of a function pointer
//! has a line with the right answer.

use super::*;
use crate::cq::UNSUPPORTED_WC_FLAGS;
use crate::{context, cq_ex, exports, objects, qp_ex};
use core::mem::offset_of;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("../../../../docs/reference/verbs.md");
const MAP: &str = include_str!("../../exports.map");

/// Entry points, and true for those that are implemented.
type EntryPoints = BTreeMap<String, bool>;

/// Lists slots of a structure as `name.field`, and true for filled ones.
macro_rules! slots {
    ($name:ident: $($field:ident)+) => {
        [$((concat!(stringify!($name), ".", stringify!($field)), $name.$field.is_some())),+]
    };
}

fn owned(slots: impl IntoIterator<Item = (&'static str, bool)>) -> EntryPoints {
    slots.into_iter().map(|(entry, filled)| (entry.to_owned(), filled)).collect()
}

/// Returns the number of pointers between two offsets of a structure.
const fn pointers(from: usize, to: usize) -> usize {
    (to - from) / size_of::<Unused>()
}

/// Returns the public symbols of libibverbs and librdmacm.
fn symbols() -> EntryPoints {
    let is_public = |node: &&str| node.starts_with("IBVERBS_1.") || node.starts_with("RDMACM_1.");
    let nodes = MAP.split("\n\n").filter(is_public);
    let names = nodes.filter_map(|node| Some(node.split_once("global:")?.1.split_once('}')?.0));
    let names = names.flat_map(|names| names.split(';').map(str::trim)).filter(|name| !name.is_empty());
    let entries: EntryPoints = names.map(|name| (name.to_owned(), !exports::REFUSED.contains(&name))).collect();
    assert_eq!(entries.len(), 95 + 74);
    // The headers call these two by names without the underscore.
    entries.into_iter().map(|(name, filled)| (format!("symbol {}", name.trim_start_matches('_')), filled)).collect()
}

fn context_slots(rig: &Rig) -> EntryPoints {
    let context = context::exposed(null_mut(), objects::context(rig.context).unwrap());
    let slots = slots! { context:
        query_port advise_mr alloc_null_mr read_counters attach_counters_point_flow create_counters destroy_counters
        reg_dm_mr alloc_dm free_dm modify_flow_action_esp destroy_flow_action create_flow_action_esp
        modify_qp_rate_limit alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops destroy_rwq_ind_table
        create_rwq_ind_table destroy_wq modify_wq create_wq query_rt_values create_cq_ex query_device_ex destroy_flow
        create_flow open_qp create_qp_ex get_srq_num create_srq_ex open_xrcd close_xrcd
    };
    // The other four are placeholders and private data of the library; programs call none of them.
    assert_eq!(slots.len() + 4, pointers(0, offset_of!(verbs_context, sz)));
    let mut entries = owned(slots);
    let (has_dm, has_wq) = (entries["context.alloc_dm"], entries["context.create_wq"]);
    // A created object has its own slots.
    entries.extend(owned([("dm.memcpy_to_dm", has_dm), ("dm.memcpy_from_dm", has_dm), ("wq.post_recv", has_wq)]));
    entries.extend(data_path(&context.context.ops));
    entries
}

fn data_path(ops: &ibv_context_ops) -> EntryPoints {
    let slots = slots! { ops:
        alloc_mw bind_mw dealloc_mw poll_cq req_notify_cq post_srq_recv post_send post_recv
    };
    let mut entries = owned(slots);
    // The headers check only `alloc_mw`, so the other two are always filled.
    if ops.alloc_mw.is_none() {
        entries.extend(owned([("ops.bind_mw", false), ("ops.dealloc_mw", false)]));
    }
    entries
}

fn qp_slots() -> EntryPoints {
    // SAFETY: all zeros are a valid `ibv_qp`: null pointers and numbers.
    let qp_ex = qp_ex::exposed(unsafe { MaybeUninit::zeroed().assume_init() });
    let slots = slots! { qp_ex:
        wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm
        wr_send wr_send_imm wr_send_inv wr_send_tso wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data
        wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort wr_atomic_write
        wr_flush
    };
    assert_eq!(slots.len(), pointers(offset_of!(ibv_qp_ex, wr_atomic_cmp_swp), size_of::<ibv_qp_ex>()));
    let refused = |entry: &str| entry.ends_with(".wr_send_tso");
    owned(slots.map(|(entry, filled)| (entry, filled && !refused(entry))))
}

fn cq_slots() -> EntryPoints {
    // SAFETY: all zeros are a valid `ibv_cq`: null pointers and numbers.
    let cq_ex = cq_ex::exposed(unsafe { MaybeUninit::zeroed().assume_init() });
    let slots = slots! { cq_ex:
        start_poll next_poll end_poll read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp
        read_wc_flags read_slid read_sl read_dlid_path_bits read_completion_ts read_cvlan read_flow_tag read_tm_info
        read_completion_wallclock_ns
    };
    assert_eq!(slots.len(), pointers(offset_of!(ibv_cq_ex, start_poll), size_of::<ibv_cq_ex>()));
    let mut entries = owned(slots);
    // These three slots work only if `create_cq_ex` accepts their flag.
    for (entry, flag) in [("cq_ex.read_cvlan", 8), ("cq_ex.read_flow_tag", 9), ("cq_ex.read_tm_info", 10)] {
        entries.extend(owned([(entry, UNSUPPORTED_WC_FLAGS & 1 << flag == 0)]));
    }
    entries
}

/// Returns the cells of every line that names a verb.
fn lines() -> impl Iterator<Item = [&'static str; 4]> {
    TABLE.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        cells.try_into().unwrap_or_else(|_| panic!("four cells are needed: {line}"))
    })
}

#[test]
fn table_of_verbs_matches_the_library() {
    let rig = Rig::new();
    let mut entries = symbols();
    [context_slots(&rig), qp_slots(), cq_slots()].into_iter().for_each(|more| entries.extend(more));
    let (mut unlisted, mut wrong) = (entries.clone(), vec![]);
    for [verb, entry, answer, note] in lines() {
        let name = verb.trim_matches('`');
        let entry = if entry == "symbol" { format!("symbol {name}") } else { entry.to_owned() };
        unlisted.remove(&entry);
        wrong.extend(match (answer, entries.get(&entry).copied().or_else(|| (entry == "header").then_some(true))) {
            (_, None) => Some(format!("{name}: there is no {entry}")),
            ("yes", Some(true)) => None,
            ("yes", Some(false)) => Some(format!("{name}: the table says `yes`, the library refuses it")),
            ("EOPNOTSUPP", Some(true)) => Some(format!("{name}: the table says `EOPNOTSUPP`, the library has it")),
            ("EOPNOTSUPP", Some(false)) => {
                note.is_empty().then(|| format!("{name}: say in the last cell why it is refused"))
            }
            _ => Some(format!("{name}: the answer is `{answer}`; write `yes` or `EOPNOTSUPP`")),
        });
    }
    wrong.extend(unlisted.into_keys().map(|entry| format!("{entry} is not in the table")));
    assert!(wrong.is_empty(), "docs/reference/verbs.md is wrong:\n{}", wrong.join("\n"));
}
