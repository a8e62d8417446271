//! Rights that regions grant to peers, and whether one of them ever used them.

use super::key_faults::rights;
use super::observer::Observer;
use crate::event::{Event, Made};
use crate::id_map::IdMap;
use crate::report::Report;
use crate::rule::Rule;
use crate::stack::Stack;
use crate::world::{Known, World, describe};
use roxe_transport::wr::Access;

/// What peers may do with a region, as far as their uses are seen.
const OF_PEERS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// `access-unused`.
#[derive(Debug, Default)]
pub(super) struct Rights {
    /// By the key of a region for peers.
    used: IdMap<u32, Access>,
}

impl Observer for Rights {
    fn look(&mut self, event: &Event<'_>, _: &Stack, world: &World, reports: &mut Vec<Report>) {
        match *event {
            Event::FirstUse { rkey, right } => *self.used.entry(rkey.0).or_default() |= right,
            Event::Destroyed(id) => {
                if let Some(known) = world.object(id)
                    && let Made::Mr(memory) = known.made
                {
                    reports.extend(self.unused(known, "it was deregistered"));
                    self.used.remove(&memory.rkey);
                }
            }
            Event::Exit => {
                reports.extend(world.objects().filter_map(|(_, known)| self.unused(known, "the program ended")));
            }
            _ => {}
        }
    }
}

impl Rights {
    fn unused(&self, known: &Known, until: &str) -> Option<Report> {
        let Made::Mr(memory) = known.made else { return None };
        let used = self.used.get(&memory.rkey).copied().unwrap_or_default();
        let unused = memory.access & OF_PEERS & !used;
        if unused.is_empty() || known.of_library {
            return None;
        }
        let (flags, name) = (rights(unused), describe(&known.made));
        let sentence = format!("The {name} grants {flags}, which no peer had used when {until}.");
        Some(Report::new(Rule::AccessUnused, sentence).at("registered at", &known.created).advice(format!(
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
