//! Steps of the far side by librdmacm.

use super::state::{Run, Stop, differs};
use crate::craft::bytes_differ;
use crate::number::Number;
use crate::script::steps::{Act, Data, Numbers};
use crate::target::{ConnectionEvent, Handle, Terms};

/// The port space of connections and of datagram services, in a service id (annex A11).
const TCP: u64 = 0x0106;
const UDP: u64 = 0x0111;

impl Run<'_> {
    pub(super) fn connection(&mut self, name: &str, act: &Act) -> Result<(), Stop> {
        match act {
            Act::Listen { space } => {
                let (id, port) = self.target.listen(space)?;
                let high = if space == "UDP" { UDP } else { TCP };
                self.name(name, "port", port.into());
                self.name(name, "service", high << 16 | u64::from(port));
                self.world.ids.insert(name.to_owned(), id);
            }
            Act::Request { of, private, within } => {
                let listener = self.world.id(of)?;
                let is_it = |event: &ConnectionEvent| event.listener == Some(listener);
                let event = self.next_event(&format!("a request for {of}"), within.as_ref(), is_it)?;
                self.has_said(&event, private.as_ref())?;
                self.world.ids.insert(name.to_owned(), event.id);
            }
            Act::Connect { qp, space, private, numbers } => {
                let terms = self.terms(numbers, private.as_ref())?;
                let port = self.attribute(numbers, "port", 18_515)? as u16;
                let near = self.card.near[0];
                if near.to_ip().is_loopback() {
                    // roxe takes it for another name of its own host.
                    let why = "the near side is on the loopback interface, where librdmacm meets this host only";
                    return Err(Stop::Unsupported(why.into()));
                }
                let id = self.target.connect(space, port, self.world.tie(Some(qp))?.qp, &terms)?;
                self.world.ids.insert(name.to_owned(), id);
            }
            Act::Accept { qp, state, private, numbers } => {
                let terms = self.terms(numbers, private.as_ref())?;
                self.target.accept(self.world.id(name)?, self.world.tie(Some(qp))?.qp, state, &terms)?;
            }
            Act::Establish { qp } => self.target.establish(self.world.id(name)?, self.world.tie(Some(qp))?.qp)?,
            Act::Reject { private } => {
                let private = private.as_ref().map_or(Ok(Vec::new()), |data| data.bytes(&self.names))?;
                self.target.reject(self.world.id(name)?, &private)?;
            }
            Act::Disconnect => self.target.disconnect(self.world.id(name)?)?,
            Act::Notify => self.target.notify(self.world.id(name)?)?,
            Act::Forget => {
                self.target.destroy_id(self.world.id(name)?)?;
                self.world.ids.remove(name);
            }
            Act::Event { event, status, private, within } => {
                self.told(name, event, status.as_ref(), private.as_ref(), within.as_ref())?;
            }
            Act::Quiet { time } => self.nothing_told(name, time.as_ref())?,
        }
        Ok(())
    }

    fn terms(&self, numbers: &Numbers, private: Option<&Data>) -> Result<Terms, Stop> {
        let number = |name, usual| self.attribute(numbers, name, usual).map(|value| value as u8);
        Ok(Terms {
            private_data: private.map_or(Ok(Vec::new()), |data| data.bytes(&self.names))?,
            depths: [number("responder_resources", 4)?, number("initiator_depth", 4)?],
            retry_cnt: number("retry_cnt", 7)?,
            rnr_retry: number("rnr_retry", 7)?,
        })
    }

    /// The next event of which `is_it` says so.
    fn next_event(
        &mut self,
        expected: &str,
        within: Option<&Number>,
        is_it: impl Fn(&ConnectionEvent) -> bool,
    ) -> Result<ConnectionEvent, Stop> {
        let found = self.wait(within, |run| {
            let new = run.target.connection_events()?;
            run.world.connection_events.extend(new);
            let at = run.world.connection_events.iter().position(&is_it);
            Ok(at.map(|at| run.world.connection_events.remove(at)))
        })?;
        let names: Vec<_> = self.world.connection_events.iter().map(|event| event.name.as_str()).collect();
        let others = if names.is_empty() { "nothing".into() } else { format!("other events: {}", names.join(", ")) };
        found.ok_or_else(|| differs(expected.into(), others))
    }

    fn told(
        &mut self,
        name: &str,
        event: &str,
        status: Option<&Number>,
        private: Option<&Data>,
        within: Option<&Number>,
    ) -> Result<(), Stop> {
        let id = self.world.id(name)?;
        let expected = format!("event {event} of {name}");
        let is_it = |event: &ConnectionEvent| event.id == id && event.listener.is_none();
        let came = self.next_event(&expected, within, is_it)?;
        if came.name != event {
            return Err(differs(expected, format!("{} with status {}", came.name, came.status)));
        }
        if let Some(status) = status {
            let wanted = status.value(&self.names)?.cast_signed();
            if came.status != wanted {
                return Err(differs(format!("{expected} with status {wanted}"), format!("status {}", came.status)));
            }
        }
        self.has_said(&came, private)
    }

    /// Whether an event has this private data; librdmacm gives all of it that messages have, with
    /// zeros behind.
    fn has_said(&self, event: &ConnectionEvent, private: Option<&Data>) -> Result<(), Stop> {
        let Some(data) = private else { return Ok(()) };
        let mut wanted = data.bytes(&self.names)?;
        wanted.resize(wanted.len().max(event.private_data.len()), 0);
        let differ = bytes_differ("private data", &wanted, &event.private_data);
        differ.map_or(Ok(()), |differ| Err(differs(format!("{} with private data", event.name), differ)))
    }

    /// No event of an identifier comes for so long.
    fn nothing_told(&mut self, name: &str, time: Option<&Number>) -> Result<(), Stop> {
        let id = self.world.id(name)?;
        self.pass(time)?;
        let new = self.target.connection_events()?;
        self.world.connection_events.extend(new);
        let is_it = |event: &&ConnectionEvent| belongs(event, id);
        match self.world.connection_events.iter().find(is_it) {
            None => Ok(()),
            Some(event) => Err(differs(format!("no event of {name}"), event.name.clone())),
        }
    }
}

/// Whether an event is about an identifier, or a request for it.
fn belongs(event: &ConnectionEvent, id: Handle) -> bool {
    event.listener.map_or(event.id == id, |listener| listener == id)
}
