//! What pvisor says: short lines on standard error, answers on standard output, failures as text or JSON.

mod failure;
mod left_out;
mod streams;
mod text;

pub(crate) use failure::{Failure, chain};
pub(crate) use left_out::{LeftOut, left_out, tell_left_out};
pub(crate) use streams::{answer, answer_json, say, say_json};
pub(crate) use text::{ago, count, left, plain, plain_path, size, span};
