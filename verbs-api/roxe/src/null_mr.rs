//! The null region: bytes that do not matter.
//!
//! Touches the provider's registration.

use crate::{Error, ProtectionDomain};
use roxe_provider as provider;
use roxe_transport::wr::Sge;
use std::sync::Arc;

impl ProtectionDomain {
    /// Makes a region for the parts of lists that do not matter.
    ///
    /// # Errors
    /// [`Error::Resources`] if the card has no room.
    pub fn alloc_null_mr(&self) -> Result<NullRegion, Error> {
        Ok(NullRegion(self.pd.alloc_null_mr()?))
    }
}

/// Bytes that do not matter: they read as zeros, and what is written to them is forgotten. Peers
/// cannot reach them.
///
/// ```
/// # use roxe::{Access, Context, WorkRequest};
/// # use std::time::Duration;
/// # let context = Context::open_first()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.create_cq(16)?;
/// # let (alice, bob) = (pd.create_qp(&cq, &cq).build()?, pd.create_qp(&cq, &cq).build()?);
/// # alice.connect(&bob.endpoint())?;
/// # bob.connect(&alice.endpoint())?;
/// let (ignored, body) = (pd.alloc_null_mr()?, pd.alloc_mr(64, Access::LOCAL_WRITE)?);
///
/// // Bob wants messages without their first 4 bytes.
/// bob.post_recv(1, &[ignored.slice(4), body.slice(..)?])?;
/// alice.post_send(&WorkRequest::send_inline(b"HEADbody"))?;
/// assert_eq!(cq.wait(Duration::from_secs(5))?.check()?.byte_len(), 8);
/// assert_eq!(body.to_vec(..4)?, b"body");
/// # Ok::<(), roxe::Error>(())
/// ```
#[derive(Debug)]
pub struct NullRegion(Arc<provider::Mr>);

impl NullRegion {
    /// `len` such bytes as an element of a work request.
    pub fn slice(&self, len: u32) -> Sge {
        Sge { addr: 0, length: len, lkey: self.0.lkey() }
    }
}
