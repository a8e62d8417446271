//! Which cells there are: all of them, a slice, a few for every change, or those whose name
//! contains some words.

use super::{Cell, Condition, Direction, Group, Ip, Service};

/// Path MTUs of the matrix.
pub const MTUS: [u32; 3] = [256, 1024, 4096];

/// Bytes of an atomic.
const ATOMIC: u32 = 8;

/// A group with the cells it shall do.
pub type Planned = (Group, Vec<Cell>);

/// Message sizes at one path MTU.
pub fn sizes(mtu: u32) -> [u32; 7] {
    [0, 1, mtu - 1, mtu, mtu + 1, 64 << 10, 1 << 20]
}

/// Every cell that exists.
pub fn all() -> Vec<Planned> {
    groups().map(|group| (group, cells(&MTUS, |_| true))).collect()
}

/// A few cells for every change: all services and operations under each condition in both
/// directions, messages of one byte more than a packet and of 64 KiB.
pub fn few() -> Vec<Planned> {
    let mut plan = slice();
    plan.retain(|(group, _)| (group.ip == Ip::V4) == (group.condition != Condition::Netem));
    for (_, cells) in &mut plan {
        cells.retain(|cell| cell.op.is_atomic() || cell.size == cell.mtu + 1 || cell.size == 64 << 10);
    }
    plan
}

/// A slice of all: each group with all services and operations, one MTU each in turn. Each
/// group does small, edge and 64 KiB messages, and the clean ones 1 MiB.
pub fn slice() -> Vec<Planned> {
    let mut mtus = MTUS.iter().cycle();
    groups()
        .filter_map(|group| Some((group, *mtus.next()?)))
        .map(|(group, mtu)| (group, cells(&[mtu], |c| c.size < 1 << 20 || group.condition == Condition::Clean)))
        .collect()
}

/// Those cells of `plan` whose full name contains every one of `words`. A group without any is left
/// out.
pub fn only(plan: Vec<Planned>, words: &[String]) -> Vec<Planned> {
    let named = |group: &Group, cell: &Cell| {
        let name = format!("{group} {cell}");
        words.iter().all(|word| name.contains(word))
    };
    let kept = plan.into_iter().map(|(group, mut cells)| {
        cells.retain(|cell| named(&group, cell));
        (group, cells)
    });
    kept.filter(|(_, cells)| !cells.is_empty()).collect()
}

/// Conditions outermost, so that the guest's netem is set three times and not twelve.
fn groups() -> impl Iterator<Item = Group> {
    Condition::ALL.into_iter().flat_map(|condition| {
        Ip::ALL
            .into_iter()
            .flat_map(move |ip| Direction::ALL.into_iter().map(move |direction| Group { direction, ip, condition }))
    })
}

fn cells(mtus: &[u32], wanted: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for service in Service::ALL {
        for op in service.ops().iter().copied() {
            for mtu in mtus.iter().copied() {
                let all = sizes(mtu);
                let sizes: &[u32] = if op.is_atomic() { &[ATOMIC] } else { &all };
                cells.extend(sizes.iter().map(|&size| Cell { service, op, size, mtu }));
            }
        }
    }
    cells.retain(wanted);
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 3, item 2, counted by hand: per group RC 5 x 7 x 3 + 2 x 3, UC 4 x 7 x 3, UD 2 x 7 x
    /// 3; twelve groups.
    #[test]
    fn every_cell_is_there_once() {
        let plan = all();
        assert_eq!(plan.len(), 12);
        let mut names: Vec<String> =
            plan.iter().flat_map(|(group, cells)| cells.iter().map(move |cell| format!("{group} {cell}"))).collect();
        assert_eq!(names.len(), 12 * (111 + 84 + 42));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2844);
    }

    #[test]
    fn the_slice_has_every_group_operation_and_mtu() {
        let slice = slice();
        assert_eq!(slice.len(), 12);
        for (group, cells) in &slice {
            for service in Service::ALL {
                for op in service.ops() {
                    assert!(cells.iter().any(|c| c.service == service && c.op == *op), "{group} lacks {op:?}");
                }
            }
        }
        for mtu in MTUS {
            assert!(slice.iter().any(|(_, cells)| cells.iter().any(|c| c.mtu == mtu)));
        }
    }

    #[test]
    fn few_cells_have_every_condition_direction_and_operation() {
        let plan = few();
        for condition in Condition::ALL {
            for direction in Direction::ALL {
                let (_, cells) = plan
                    .iter()
                    .find(|(group, _)| (group.condition, group.direction) == (condition, direction))
                    .expect("a group");
                for service in Service::ALL {
                    for op in service.ops() {
                        assert!(cells.iter().any(|cell| (cell.service, cell.op) == (service, *op)), "{op:?}");
                    }
                }
            }
        }
        assert!(Ip::ALL.iter().all(|ip| plan.iter().any(|(group, _)| group.ip == *ip)));
        assert!(plan.iter().map(|(_, cells)| cells.len()).sum::<usize>() < 200);
    }

    #[test]
    fn words_choose_cells() {
        let words = ["rxe->roxe ipv6 netem".to_owned(), "rc read size=65536".to_owned()];
        let plan = only(all(), &words);
        let names: Vec<String> = plan.iter().flat_map(|(_, cells)| cells.iter().map(Cell::to_string)).collect();
        assert_eq!(plan.len(), 1);
        assert_eq!(names, ["rc read size=65536 mtu=256", "rc read size=65536 mtu=1024", "rc read size=65536 mtu=4096"]);
    }
}
