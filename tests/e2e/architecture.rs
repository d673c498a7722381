//! The shape of the workspace, held by a test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Which package may depend on which: everything that is not here is forbidden, and everything here is used.
const ARROWS: [(&str, &[&str]); 11] = [
    ("pvisor", &["pvisor-host-exec", "pvisor-images", "pvisor-oci", "pvisor-spec", "pvisor-stage", "pvisor-vmm"]),
    ("pvisor-guest-agent", &["pvisor-proto"]),
    ("pvisor-host-exec", &["pvisor-netstack", "pvisor-spec", "pvisor-virtiofs"]),
    ("pvisor-images", &["pvisor-spec"]),
    ("pvisor-netstack", &["pvisor-spec"]),
    ("pvisor-oci", &["pvisor-host-exec", "pvisor-spec"]),
    ("pvisor-proto", &[]),
    ("pvisor-spec", &[]),
    ("pvisor-stage", &["pvisor-spec"]),
    ("pvisor-virtiofs", &["pvisor-spec", "pvisor-stage"]),
    ("pvisor-vmm", &["pvisor-host-exec", "pvisor-netstack", "pvisor-proto", "pvisor-spec", "pvisor-virtiofs"]),
];

/// Where unsafe code may stand.
const UNSAFE: [&str; 4] = ["vmm/src", "host-exec/src", "guest-agent/src", "netstack/src/os"];

/// Most lines of a source file.
const MAX_LINES: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn packages() -> Vec<Value> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// Rust files of the project, without build output.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                open.push(path);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    assert!(found.len() > 50, "the sources are elsewhere");
    found
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    let packages = packages();
    assert_eq!(packages.len(), ARROWS.len());
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let expected = allowed.get(name).unwrap_or_else(|| panic!("{name} is not drawn"));
        // Tests may look at more.
        let normal = package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"] != "dev");
        let ours: BTreeSet<&str> =
            normal.map(|d| d["name"].as_str().unwrap()).filter(|d| allowed.contains_key(d)).collect();
        let extra: Vec<_> = ours.difference(expected).collect();
        assert!(extra.is_empty(), "{name} must not depend on {extra:?}");
    }
}

#[test]
fn the_command_is_what_cargo_run_runs() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("default-members = [\"vmm/cli\"]"));
    assert!(root().join("Cargo.lock").exists());
    assert!(!root().join("rust-toolchain.toml").exists() && !root().join("rust-toolchain").exists());
}

#[test]
fn each_crate_has_its_page_of_design() {
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let page = manifest.with_file_name("DESIGN.md");
        let text = fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert!(text.contains("## Purpose") && text.contains("## Invariants"), "{}", page.display());
        assert!(text.lines().count() <= 80, "{} is more than a screen", page.display());
    }
}

#[test]
fn lints_hold_in_every_crate() {
    for package in packages() {
        let manifest = fs::read_to_string(package["manifest_path"].as_str().unwrap()).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", package["name"]);
    }
}

#[test]
fn unsafe_code_stays_where_it_may_be() {
    let root = root();
    for path in sources() {
        let relative = path.strip_prefix(&root).unwrap();
        if UNSAFE.iter().any(|dir| relative.starts_with(dir)) && !relative.starts_with("vmm/cli") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for (at, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let is_block = words.contains(&"unsafe") && !code.contains('"');
            let is_permit = words.windows(2).any(|w| matches!(w, ["allow" | "expect", "unsafe_code"]));
            assert!(!is_block && !is_permit, "{}:{}: {line}", relative.display(), at + 1);
        }
    }
}

#[test]
fn every_unsafe_block_says_why_it_is_sound() {
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains("unsafe {") || code.contains('"') {
                continue;
            }
            let above = &lines[at.saturating_sub(8)..=at];
            assert!(above.iter().any(|l| l.contains("SAFETY:")), "{}:{}", path.display(), at + 1);
        }
    }
}

#[test]
fn files_stay_readable() {
    for path in sources() {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{} has {lines} lines", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(!["utils", "util", "common", "helpers", "manager"].contains(&name), "{}", path.display());
    }
}

#[test]
fn main_is_one_statement() {
    let text = fs::read_to_string(root().join("vmm/cli/src/main.rs")).unwrap();
    let body = text.split_once('{').unwrap().1;
    assert_eq!(body.lines().filter(|l| !l.trim().is_empty() && l.trim() != "}").count(), 1, "{text}");
}
