//! The hunks of a unified diff.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// After that the diff is still right, but may be longer than it has to be.
const PATIENCE: Duration = Duration::from_secs(2);

/// Writes the hunks that make `new` of `old`; none where they are equal.
pub(super) fn write(old: &[u8], new: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let (old, new) = (lines(old), lines(new));
    let deadline = Instant::now().checked_add(PATIENCE);
    let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
    for group in group_diff_ops(ops, CONTEXT) {
        write_hunk(&group, &old, &new, out)?;
    }
    Ok(())
}

/// Lines with their line feeds. A carriage return ends none.
fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

fn write_hunk(ops: &[DiffOp], old: &[&[u8]], new: &[&[u8]], out: &mut dyn Write) -> io::Result<()> {
    let (Some(first), Some(last)) = (ops.first(), ops.last()) else { return Ok(()) };
    if ops.iter().all(|op| op.tag() == DiffTag::Equal) {
        return Ok(());
    }
    let span = |start: usize, end: usize| {
        // The line before, where there is none.
        let at = if end > start { start + 1 } else { start };
        format!("{at},{}", end - start)
    };
    let before = span(first.old_range().start, last.old_range().end);
    let after = span(first.new_range().start, last.new_range().end);
    writeln!(out, "@@ -{before} +{after} @@")?;
    for op in ops {
        match op.tag() {
            DiffTag::Equal => write_lines(b' ', &old[op.old_range()], out)?,
            DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => {
                write_lines(b'-', &old[op.old_range()], out)?;
                write_lines(b'+', &new[op.new_range()], out)?;
            }
        }
    }
    Ok(())
}

fn write_lines(sign: u8, lines: &[&[u8]], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        out.write_all(&[sign])?;
        out.write_all(line)?;
        if !line.ends_with(b"\n") {
            out.write_all(b"\n\\ No newline at end of file\n")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: &str, new: &str) -> String {
        let mut out = Vec::new();
        write(old.as_bytes(), new.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hunks_are_those_of_a_unified_diff() {
        assert_eq!(diff("a\nb\nc\n", "a\nB\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert_eq!(diff("", "x"), "@@ -0,0 +1,1 @@\n+x\n\\ No newline at end of file\n");
        assert_eq!(diff("x\n", ""), "@@ -1,1 +0,0 @@\n-x\n");
        assert_eq!(diff("same\n", "same\n"), "");
        assert_eq!(diff("a\rb\n", "a\rc\n"), "@@ -1,1 +1,1 @@\n-a\rb\n+a\rc\n");
    }

    #[test]
    fn far_changes_are_hunks_of_their_own() {
        let old: String = (0..40).map(|n| format!("{n}\n")).collect();
        let new = old.replace("5\n", "five\n").replacen("38\n", "", 1);
        assert!(diff(&old, &new).matches("@@ -").count() >= 2);
    }
}
