//! Opening a device: its engine in this process, the interface that is followed from then on, and a
//! context.

use crate::context::Context;
use crate::device::Device;
use crate::fork;
use roxe_base::error::Error;
use std::sync::Arc;

impl Device {
    /// Opens the device as its interface is now. From here on port and GID table follow the
    /// interface, and every change is an event of the context.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        let runtime = fork::runtime_of(self)?;
        let context = Context::new(Arc::clone(self), runtime.engine())?;
        context.engine().watch();
        self.adapter().observe(&context);
        Ok(context)
    }
}
