//! Rights that regions grant to peers, and whether one of them ever used them.

use super::key_faults::rights;
use super::observer::Observer;
use crate::event::{Event, Made, Memory};
use crate::id_map::{IdMap, IdSet};
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{World, describe};
use roxe_base::uses::ObjectId;
use roxe_transport::wr::Access;

/// What peers may do with a region, as far as their uses are seen.
const OF_PEERS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// `access-unused`.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// By the key of a region for peers.
    used: IdMap<u32, Access>,
    /// Regions that a library keeps for itself.
    of_library: IdSet<ObjectId>,
}

impl Observer for Rights {
    fn look(&mut self, event: &Event<'_>, _: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::FirstUse { rkey, right } => *self.used.entry(rkey.0).or_default() |= right,
            Event::MadeByLibrary(id) => drop(self.of_library.insert(id)),
            Event::Destroyed(id) => {
                let is_ours = !self.of_library.remove(&id);
                if let Some(known) = world.object(id).filter(|_| is_ours)
                    && let Made::Mr(memory) = known.made
                {
                    reports.extend(self.unused(&memory, &known.created, "it was deregistered"));
                    self.used.remove(&memory.rkey);
                }
            }
            Event::Exit => {
                let ours = world.regions().filter(|(id, ..)| !self.of_library.contains(id));
                let unused = ours.filter_map(|(_, memory, made)| self.unused(memory, made, "the program ended"));
                reports.extend(unused);
            }
            _ => {}
        }
    }
}

impl Rights {
    fn unused(&self, memory: &Memory, registered: &Stack, until: &str) -> Option<Report> {
        let used = self.used.get(&memory.rkey).copied().unwrap_or_default();
        let unused = memory.access & OF_PEERS & !used;
        if unused.is_empty() {
            return None;
        }
        let (flags, name) = (rights(unused), describe(&Made::Mr(*memory)));
        let sentence = format!("The {name} grants {flags}, which no peer had used when {until}.");
        Some(Report::new(Rule::AccessUnused, sentence).at("registered at", registered).advice(format!(
            "Register it without {flags} unless another run needs it: who learns or guesses the rkey may use the right."
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Card;
    use roxe_wire::RKey;

    const GRANTED: Access = OF_PEERS.union(Access::LOCAL_WRITE);

    fn uses(card: &mut Card, right: Access) {
        assert_eq!(card.tell(Event::FirstUse { rkey: RKey(5), right }), []);
    }

    #[test]
    fn a_right_that_nobody_used_is_reported_when_the_region_goes() {
        for (right, expected) in [(Access::REMOTE_ATOMIC, &[][..]), (Access::REMOTE_READ, &[Rule::AccessUnused])] {
            let mut card = Card::new();
            let mr = card.mr(5, 4096, 64, GRANTED);
            for right in [Access::REMOTE_READ, Access::REMOTE_WRITE, right] {
                uses(&mut card, right);
            }
            assert_eq!(card.tell(Event::Destroyed(mr)), expected);
        }
    }

    #[test]
    fn a_region_that_stays_is_looked_at_when_the_program_ends_unless_it_is_a_librarys() {
        let mut card = Card::new();
        card.mr(5, 4096, 64, Access::LOCAL_WRITE);
        assert_eq!(card.tell(Event::Exit), [Rule::Leak]);
        let mr = card.mr(6, 4096, 64, GRANTED);
        assert_eq!(card.tell(Event::Exit), [Rule::Leak, Rule::AccessUnused]);
        card.tell(Event::MadeByLibrary(mr));
        assert_eq!(card.tell(Event::Exit), [Rule::Leak]);
    }
}
