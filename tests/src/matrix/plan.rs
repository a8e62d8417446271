//! Selects cells: all, a slice, a few for every change, or those whose names contain given words.

use super::{Cell, Condition, Direction, Group, Ip, Service};
use roxe_peer::plan::{self, MTUS};

/// A group with its cells.
pub type PlannedGroup = (Group, Vec<Cell>);

/// Returns all cells.
pub fn all() -> Vec<PlannedGroup> {
    groups().map(|group| (group, cells(&MTUS, |_| true))).collect()
}

/// Returns a few cells for every change: all services and operations under each condition in both
/// directions, with messages of one byte more than the path MTU and of 64 KiB.
pub fn few() -> Vec<PlannedGroup> {
    let mut plan = slice();
    plan.retain(|(group, _)| (group.ip == Ip::V4) == (group.condition != Condition::Netem));
    for (_, cells) in &mut plan {
        cells.retain(|cell| cell.op.is_atomic() || cell.size == cell.mtu + 1 || cell.size == 64 << 10);
    }
    plan
}

/// Returns a slice: every group with all services and operations, but only one MTU, a different one
/// for each group. Messages of 1 MiB are only in the clean groups.
pub fn slice() -> Vec<PlannedGroup> {
    let mut mtus = MTUS.iter().cycle();
    groups()
        .filter_map(|group| Some((group, *mtus.next()?)))
        .map(|(group, mtu)| (group, cells(&[mtu], |c| c.size < 1 << 20 || group.condition == Condition::Clean)))
        .collect()
}

/// Returns the cells of `plan` whose full name contains all `words`, without empty groups.
pub fn only(plan: Vec<PlannedGroup>, words: &[String]) -> Vec<PlannedGroup> {
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

/// Returns all groups, sorted by condition, so that the guest's netem changes three times and not
/// twelve.
fn groups() -> impl Iterator<Item = Group> {
    Condition::ALL.into_iter().flat_map(|condition| {
        Ip::ALL
            .into_iter()
            .flat_map(move |ip| Direction::ALL.into_iter().map(move |direction| Group { direction, ip, condition }))
    })
}

fn cells(mtus: &[u32], wanted: impl Fn(&Cell) -> bool) -> Vec<Cell> {
    let kinds = Service::ALL.into_iter().flat_map(|service| mtus.iter().map(move |mtu| (service, *mtu)));
    kinds.flat_map(|(service, mtu)| plan::cells(service, mtu)).filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted by hand: operations x sizes x MTUs per group are RC 5 x 7 x 3 + 2 atomics x 3, UC 4
    /// x 7 x 3, UD 2 x 7 x 3; there are twelve groups.
    #[test]
    fn every_cell_is_listed_once() {
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
    fn slice_has_every_group_operation_and_mtu() {
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
                    .expect("find the group");
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
    fn words_select_cells_by_name() {
        let words = ["rxe->roxe ipv6 netem".to_owned(), "RC read size=65536".to_owned()];
        let plan = only(all(), &words);
        let names: Vec<String> = plan.iter().flat_map(|(_, cells)| cells.iter().map(Cell::to_string)).collect();
        assert_eq!(plan.len(), 1);
        assert_eq!(names, ["RC read size=65536 mtu=256", "RC read size=65536 mtu=1024", "RC read size=65536 mtu=4096"]);
    }
}
