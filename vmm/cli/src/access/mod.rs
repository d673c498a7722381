//! What the person was asked while a command ran: the questions, the answers, and which of them are remembered.

mod clerk;
mod memory;
mod shown;

pub(crate) use clerk::Clerk;
pub(crate) use memory::{Memory, MemoryError, Remembered};
pub(crate) use shown::{scope_text, subject_text};
