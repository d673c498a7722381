//! The hunks of a unified diff.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

/// Unchanged lines around a change.
const CONTEXT: usize = 3;
/// After that the diff is still right, but may be longer than it has to be.
const PATIENCE: Duration = Duration::from_secs(2);

/// Lines of `old` that go, and lines of `new` that come.
pub(super) fn count(old: &[u8], new: &[u8]) -> (usize, usize) {
    let ops = operations(&lines(old), &lines(new));
    let changed = ops.iter().filter(|op| op.tag() != DiffTag::Equal);
    changed.fold((0, 0), |(a, b), op| (a + op.old_range().len(), b + op.new_range().len()))
}

/// The steps from one to the other.
pub(super) fn operations(old: &[&[u8]], new: &[&[u8]]) -> Vec<DiffOp> {
    let deadline = Instant::now().checked_add(PATIENCE);
    capture_diff_slices_deadline(Algorithm::Myers, old, new, deadline)
}

/// Groups of steps with unchanged lines around them.
pub(super) fn groups(old: &[&[u8]], new: &[&[u8]]) -> Vec<Vec<DiffOp>> {
    let groups = group_diff_ops(operations(old, new), CONTEXT).into_iter();
    groups.filter(|ops| ops.iter().any(|op| op.tag() != DiffTag::Equal)).collect()
}

/// Writes the hunks that make `new` of `old`; none where they are equal.
pub(super) fn write(old: &[u8], new: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let (old, new) = (lines(old), lines(new));
    for group in groups(&old, &new) {
        write_hunk(&group, &old, &new, out)?;
    }
    Ok(())
}

/// Lines with their line feeds. A carriage return ends none.
pub(super) fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

fn write_hunk(ops: &[DiffOp], old: &[&[u8]], new: &[&[u8]], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", header(ops))?;
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

/// Where a hunk is: `@@ -1,3 +1,4 @@`.
pub(super) fn header(ops: &[DiffOp]) -> String {
    let (Some(first), Some(last)) = (ops.first(), ops.last()) else { return String::new() };
    let span = |start: usize, end: usize| {
        // The line before, where there is none.
        let at = if end > start { start + 1 } else { start };
        format!("{at},{}", end - start)
    };
    let before = span(first.old_range().start, last.old_range().end);
    let after = span(first.new_range().start, last.new_range().end);
    format!("@@ -{before} +{after} @@")
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
