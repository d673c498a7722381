//! The programs that a kernel is built with.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::KernelError;

/// Something that a build needs, and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Program, or header in angle brackets.
    pub name: &'static str,
    /// Debian package.
    pub package: &'static str,
}

const fn tool(name: &'static str, package: &'static str) -> Tool {
    Tool { name, package }
}

/// For every source; the compiler comes before the headers, which it looks for.
pub(super) const KERNEL_TOOLS: [Tool; 13] = [
    tool("make", "make"),
    tool("gcc", "gcc"),
    tool("ld", "binutils"),
    tool("flex", "flex"),
    tool("bison", "bison"),
    tool("bc", "bc"),
    tool("awk", "mawk"),
    tool("cmp", "diffutils"),
    tool("find", "findutils"),
    tool("sed", "sed"),
    tool("tar", "tar"),
    tool("<stdlib.h>", "libc6-dev"),
    tool("<gelf.h>", "libelf-dev"),
];

/// All that is missing, in one message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub struct MissingTools(pub Vec<Tool>);

impl fmt::Display for MissingTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the guest kernel can't be built without ")?;
        for (i, tool) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{} (Debian package {})", tool.name, tool.package)?;
        }
        let mut packages: Vec<&str> = self.0.iter().map(|t| t.package).collect();
        packages.sort_unstable();
        packages.dedup();
        write!(f, "; on Debian and Ubuntu: apt-get install {}", packages.join(" "))
    }
}

/// The build's programs, and a clean environment to run them in.
#[derive(Clone, Debug)]
pub(super) struct Toolchain {
    path: OsString,
    /// First lines of the compiler's and the linker's versions.
    pub(super) version: String,
}

impl Toolchain {
    /// Looks for `tools` in the directories of `path`.
    pub(super) fn find(path: &OsStr, tools: &[Tool]) -> Result<Self, KernelError> {
        let mut toolchain = Self { path: path.to_owned(), version: String::new() };
        let missing: Vec<Tool> = tools.iter().filter(|t| !toolchain.has(t.name)).copied().collect();
        if !missing.is_empty() {
            return Err(MissingTools(missing).into());
        }
        let versions = [toolchain.first_line("gcc")?, toolchain.first_line("ld")?];
        toolchain.version = versions.join("; ");
        Ok(toolchain)
    }

    /// A program of the toolchain. Nothing of the caller's environment reaches it but the search path, the directory for
    /// temporary files and what apt needs to reach its archive: a build is the same for everybody.
    pub(super) fn command(&self, program: &str) -> Command {
        let program_path = self.locate(program).unwrap_or_else(|| PathBuf::from(program));
        let mut command = Command::new(program_path);
        command.env_clear().env("PATH", &self.path).env("LC_ALL", "C").stdin(Stdio::null());
        for name in ["TMPDIR", "HOME", "http_proxy", "https_proxy", "no_proxy", "APT_CONFIG"] {
            if let Some(value) = env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }

    /// Whether a program or a header is there.
    pub(super) fn has(&self, name: &str) -> bool {
        if name.starts_with('<') { self.has_header(name) } else { self.locate(name).is_some() }
    }

    fn locate(&self, program: &str) -> Option<PathBuf> {
        let executable = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        env::split_paths(&self.path).map(|dir| dir.join(program)).find(executable)
    }

    fn has_header(&self, name: &str) -> bool {
        let mut command = self.command("gcc");
        command.args(["-fsyntax-only", "-x", "c", "-"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(mut child) = child else { return false };
        // A compiler that does not take the line will not succeed either.
        let _ = child.stdin.take().map(|mut stdin| writeln!(stdin, "#include {name}"));
        child.wait().is_ok_and(|status| status.success())
    }

    fn first_line(&self, program: &str) -> Result<String, KernelError> {
        let out = self.command(program).arg("--version").output();
        let out = out.map_err(|source| KernelError::Run { program: program.to_owned(), source })?;
        Ok(String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default().chars().take(200).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn everything_missing_is_one_message_with_every_package() {
        let empty = tempfile::tempdir().unwrap();
        let message = Toolchain::find(empty.path().as_os_str(), &KERNEL_TOOLS).unwrap_err().to_string();
        for tool in KERNEL_TOOLS {
            assert!(message.contains(&format!("{} (Debian package {})", tool.name, tool.package)), "{message}");
        }
        let command = message.split_once("apt-get install ").unwrap().1;
        let installed: Vec<&str> = command.split(' ').collect();
        assert!(installed.is_sorted() && installed.contains(&"libelf-dev") && installed.contains(&"flex"), "{command}");
    }

    #[test]
    fn what_is_there_is_not_named() {
        let bin = tempfile::tempdir().unwrap();
        symlink("/bin/true", bin.path().join("flex")).unwrap();
        std::fs::write(bin.path().join("bison"), "not executable").unwrap();
        let tools = [tool("flex", "flex"), tool("bison", "bison")];
        let Err(KernelError::MissingTools(missing)) = Toolchain::find(bin.path().as_os_str(), &tools) else { panic!() };
        assert_eq!(missing.0, [tools[1]]);
    }

    #[test]
    fn headers_are_looked_for_by_the_compiler() {
        let path = env::var_os("PATH").unwrap();
        let tools = [tool("<stdlib.h>", "libc6-dev"), tool("<no-such-header.h>", "none")];
        let Err(KernelError::MissingTools(missing)) = Toolchain::find(&path, &tools) else { panic!() };
        assert_eq!(missing.0, [tools[1]]);
        assert!(Toolchain::find(&path, &tools[..1]).unwrap().version.to_lowercase().contains("gcc"));
    }
}
