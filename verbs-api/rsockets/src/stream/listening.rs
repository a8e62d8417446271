//! Listening: the background thread takes requests as they come and answers them; `accept` hands
//! the connections out.

use super::endpoint::Endpoint;
use super::open::Open;
use super::settings::Settings;
use super::{Inner, Listening, Phase, Stream};
use crate::errno::{self, os};
use crate::proto::conn::ConnData;
use crate::{service, wait};
use roxe::cm::{CmEvent, CmId, ConnParam, EventChannel};
use std::collections::VecDeque;
use std::io;

/// Connections that may wait for `accept`, whatever the program asks for: as the system limits it.
const MOST_BACKLOG: usize = 4096;

impl Stream {
    pub(crate) fn listen(&self, backlog: i32) -> io::Result<()> {
        let backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, MOST_BACKLOG);
        let mut inner = self.inner.lock();
        match &mut inner.phase {
            Phase::Idle(id) => {
                // The manager holds those that come in while the own queue is full.
                id.listen(backlog as u32).map_err(errno::of)?;
                inner.phase = Phase::Listening(Listening { id: id.clone(), backlog, accepted: VecDeque::new() });
            }
            Phase::Listening(listening) => listening.backlog = backlog,
            _ => return Err(os(libc::EINVAL)),
        }
        Ok(())
    }

    /// The next connection; waits for it if `wait`.
    ///
    /// # Errors
    /// EINVAL if it does not listen, EAGAIN.
    pub(crate) fn accept(&self, wait: bool) -> io::Result<Self> {
        wait::retry(self, wait, libc::POLLIN, || self.next_accepted())
    }

    fn next_accepted(&self) -> io::Result<Option<Self>> {
        let mut inner = self.inner.lock();
        let Phase::Listening(listening) = &mut inner.phase else { return Err(os(libc::EINVAL)) };
        let was_full = !listening.has_room();
        let next = listening.accepted.pop_front();
        drop(inner);
        if was_full {
            service::wake();
        }
        Ok(next)
    }

    /// Takes the requests that have come, and accepts them.
    pub(crate) fn take_requests(&self) {
        let mut inner = self.inner.lock();
        let Inner { phase: Phase::Listening(listening), settings, watchers, .. } = &mut *inner else { return };
        while listening.has_room()
            && let Some(mut event) = self.channel.try_next()
        {
            if let Some(id) = event.take_request()
                // Who cannot be served is refused: the id is dropped.
                && let Ok(accepted) = admit(id, &event, settings)
            {
                listening.accepted.push_back(accepted);
                watchers.wake();
            }
        }
    }
}

/// Accepts the request that `event` brought.
fn admit(id: CmId, event: &CmEvent, settings: &Settings) -> io::Result<Stream> {
    let peer = ConnData::decode(event.private_data()).map_err(|_| os(libc::EPROTO))?;
    let channel = EventChannel::create().map_err(errno::of)?;
    id.migrate(&channel).map_err(errno::of)?;
    let endpoint = Endpoint::build(&id, settings.sizes(), settings.inline)?;
    let terms = event.param().cloned().unwrap_or_default();
    let private_data = endpoint.conn_data().encode().to_vec();
    id.accept(&ConnParam { private_data, ..terms }).map_err(errno::of)?;
    let open = Box::new(Open::new(id, endpoint, peer, settings.inline, false));
    Ok(Stream::in_phase(channel, Phase::Open(open), settings.clone()))
}
