//! Name queries over TCP.

use super::core::Core;
use super::endpoint::Endpoint;
use super::splice::Outcome;
use crate::event::FlowEnd;

/// One such connection.
#[derive(Debug, Default)]
pub(crate) struct NameChannel {}

impl NameChannel {
    pub(crate) fn turn(&mut self, _endpoint: &mut Endpoint, _core: &mut Core, _v4: bool) -> Outcome {
        Outcome::Ended(FlowEnd::Reset)
    }
}
