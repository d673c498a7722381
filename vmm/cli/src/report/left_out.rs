//! Parts of a change that were not done.

use std::io::{self, Write};

use pvisor_spec::OsBytes;
use pvisor_stage::RelPath;
use serde::Serialize;

use super::plain;

/// A path and why it, or a part of it, was left out.
#[derive(Serialize)]
pub(crate) struct LeftOut<'a> {
    path: OsBytes,
    reason: &'a str,
}

/// For programs.
pub(crate) fn left_out(parts: &[(RelPath, String)]) -> Vec<LeftOut<'_>> {
    parts.iter().map(|(path, reason)| LeftOut { path: path.as_bytes().to_vec().into(), reason }).collect()
}

/// For people, a line each, after `what` became of them.
pub(crate) fn tell_left_out(out: &mut dyn Write, what: &str, parts: &[(RelPath, String)]) -> io::Result<()> {
    for (path, reason) in parts {
        let path = String::from_utf8_lossy(path.as_bytes());
        writeln!(out, "{what}: {}: {}", plain(&path).replace('\n', "\\n"), plain(reason))?;
    }
    Ok(())
}
