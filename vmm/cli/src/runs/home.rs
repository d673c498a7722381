//! Where runs are kept.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::StoreError;

/// `PVISOR_RUN_HOME`, else `pvisor/runs` in `XDG_STATE_HOME`, else `.local/state/pvisor/runs` in `HOME`. A relative
/// `PVISOR_RUN_HOME` is meant from `cwd`; a relative `XDG_STATE_HOME` is ignored, as its specification asks.
///
/// # Errors
/// None of them is set.
pub(crate) fn run_home(var: impl Fn(&str) -> Option<OsString>, cwd: &Path) -> Result<PathBuf, StoreError> {
    let set = |name: &str| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(home) = set("PVISOR_RUN_HOME") {
        return Ok(cwd.join(home));
    }
    if let Some(state) = set("XDG_STATE_HOME").filter(|p| p.is_absolute()) {
        return Ok(state.join("pvisor/runs"));
    }
    match set("HOME") {
        Some(home) if home.is_absolute() => Ok(home.join(".local/state/pvisor/runs")),
        _ => Err(StoreError::NoHome),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(vars: &[(&str, &str)]) -> Result<PathBuf, StoreError> {
        run_home(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()), Path::new("/here"))
    }

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let all = [("HOME", "/h"), ("XDG_STATE_HOME", "/x"), ("PVISOR_RUN_HOME", "/p")];
        assert_eq!(home(&all).unwrap(), Path::new("/p"));
        assert_eq!(home(&all[..2]).unwrap(), Path::new("/x/pvisor/runs"));
        assert_eq!(home(&all[..1]).unwrap(), Path::new("/h/.local/state/pvisor/runs"));
        assert!(matches!(home(&[]), Err(StoreError::NoHome)));
    }

    #[test]
    fn relative_and_empty_values() {
        assert_eq!(home(&[("PVISOR_RUN_HOME", "runs")]).unwrap(), Path::new("/here/runs"));
        let odd = [("PVISOR_RUN_HOME", ""), ("XDG_STATE_HOME", "x"), ("HOME", "/h")];
        assert_eq!(home(&odd).unwrap(), Path::new("/h/.local/state/pvisor/runs"));
    }
}
