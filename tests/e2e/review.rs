//! What a person is shown before anything is applied, and what the real git makes of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::world::World;

fn git(dir: &Path, args: &[&str]) -> String {
    let identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main"];
    let done = Command::new("git").args(identity).args(args).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A project in a repository of its own, all of it committed.
fn repository() -> World {
    let world = World::new();
    let project = world.project();
    let lines: String = (0..60).map(|n| format!("line {n}\n")).collect();
    fs::write(project.join("long.txt"), &lines).unwrap();
    fs::write(project.join("moves.txt"), lines.replace("line", "row")).unwrap();
    fs::write(project.join("edited and moved"), lines.replace("line", "entry")).unwrap();
    fs::write(project.join("no-newline"), "first\nlast").unwrap();
    fs::write(project.join("picture"), b"\x89PNG\0\x01\x02\xff").unwrap();
    fs::write(project.join("tool"), "#!/bin/sh\n").unwrap();
    fs::write(project.join("gone"), "bye\n").unwrap();
    std::os::unix::fs::symlink("README.md", project.join("link")).unwrap();
    git(&project, &["init", "-q"]);
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "one"]);
    world
}

const EDITS: &str = r#"
sed -i 's/line 7/line seven/; /line 50/d' long.txt
cp long.txt copy-of-edited.txt
mkdir -p "new dir/deep"
mv moves.txt "new dir/moved.txt"
sed -i 's/entry 3$/entry three/' "edited and moved" && mv "edited and moved" 'odd "name"'
printf 'first\nlast, still without newline' > no-newline
printf '\211PNG\000changed' > picture
printf '\000new' > "new dir/binary"
chmod +x tool
rm gone
ln -sfn src/lib.rs link
ln -s README.md "$(printf 'tab\there')"
: > empty
printf 'x\n' > "$(printf 'not utf8 \377')"
mkdir nothing-in-it
rm README.md && mkdir README.md && echo inside > README.md/file
"#;

#[test]
fn a_fresh_clone_with_the_diff_is_the_project_with_the_changes() {
    let world = repository();
    world.staged(EDITS).expect(0);
    let diff = world.pvisor(&["review", "--diff"]).expect(0);
    let text = diff.stdout();
    for part in [
        "rename from moves.txt\nrename to new dir/moved.txt\n",
        "rename from edited and moved\nrename to \"odd \\\"name\\\"\"\n",
        "copy to copy-of-edited.txt\n",
        "old mode 100644\nnew mode 100755\n",
        "GIT binary patch\n",
        "\\ No newline at end of file\n",
        "not utf8 \\377",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (clone, patch) = (world.path().join("clone"), world.path().join("patch"));
    fs::write(&patch, &diff.0.stdout).unwrap();
    git(world.path(), &["clone", "-q", "project", "clone"]);
    git(&clone, &["apply", "--index", patch.to_str().unwrap()]);
    world.pvisor(&["apply", "last"]).expect(0);
    git(&world.project(), &["add", "-A"]);
    assert_eq!(git(&clone, &["write-tree"]), git(&world.project(), &["write-tree"]));
    // And the very same files, checked out.
    git(&clone, &["diff", "--quiet"]);
}

#[test]
fn only_what_is_different_in_the_end_is_a_change() {
    let world = repository();
    let script = "cp README.md x; cat x > README.md; rm x; mkdir d; echo y > d/y; rm -r d; \
        mv tool t; mv t tool; chmod 600 gone; chmod 644 gone; touch -d yesterday long.txt; echo z > z";
    world.staged(script).expect(0);
    let json = world.pvisor(&["review", "--json"]).expect(0).json();
    let paths: Vec<&Value> = json["changes"].as_array().unwrap().iter().map(|c| &c["path"]).collect();
    assert_eq!(paths, ["z"], "{json:#}");
    let stat = world.pvisor(&["review", "--stat"]).expect(0).stdout();
    assert_eq!(stat, " z |   1 +\n 1 file changed, 1 insertion(+), 0 deletions(-)\n");
}

#[test]
fn a_selection_is_the_same_for_review_and_apply() {
    let world = repository();
    world.staged("mkdir -p a/b; echo 1 > a/b/one; ln a/b/one two; echo 3 > three; rm -r src").expect(0);
    let shown = |args: &[&str]| -> Vec<String> {
        let review = world.pvisor(&[&["review", "--json"], args].concat()).expect(0).json();
        let names = review["changes"].as_array().unwrap().iter().map(|c| c["path"].as_str().unwrap().to_owned());
        let dry = world.pvisor(&[&["apply", "last", "--dry-run", "--json"], args].concat()).expect(0).json();
        assert_eq!(dry["left"], review["left"]);
        names.collect()
    };
    assert_eq!(shown(&["--path", "two"]), ["a", "a/b", "a/b/one", "two"]);
    assert_eq!(shown(&["--include", "src"]), ["src", "src/lib.rs"]);
    assert_eq!(shown(&["--exclude", "lib.rs", "--exclude", "a"]), ["three"]);
    assert!(world.pvisor(&["review", "--path", "three", "--diff"]).expect(0).stdout().contains("+3"));
    world.pvisor(&["review", "--path", "nothing"]).expect(2).says(&["nothing changed at nothing"]);
    world.pvisor(&["review", "--path", "../x"]).expect(2).says(&["relative to the project"]);
    world.pvisor(&["review", "--include", "["]).expect(2).says(&["bad pattern"]);
}

#[test]
fn what_would_run_on_the_host_is_named_and_not_applied_unless_allowed() {
    let world = repository();
    let project = world.project();
    fs::create_dir(project.join("tools")).unwrap();
    git(&project, &["config", "core.hooksPath", "tools/hooks"]);
    let script = "printf '#!/bin/sh\\n' > .git/hooks/post-checkout; mkdir tools/hooks; echo x > tools/hooks/pre-push; \
        git config alias.st '!sh -c evil'; mkdir conf; ln -s conf .vscode; echo '{}' > conf/tasks.json; \
        printf '\\177ELF\\000' > prog; chmod 4755 prog; echo 'all:' > Makefile; echo fine > fine";
    world.staged(script).expect(0);
    let before = world.listing();
    let summary = world.pvisor(&["review"]).expect(0).stdout();
    let dangerous =
        [".git/config", ".git/hooks/post-checkout", ".vscode", "conf/tasks.json", "prog", "tools/hooks/pre-push"];
    for path in dangerous {
        assert!(summary.contains(&format!("!! {path}  ")), "{path}: {summary}");
    }
    assert!(summary.contains("alias.st") && summary.contains("!  Makefile  "), "{summary}");
    assert!(summary.contains("6 of them make the host run something"), "{summary}");

    for args in [&["apply", "last"][..], &["apply", "last", "--dry-run"]] {
        let refused = world.pvisor(args).expect(1);
        assert!(refused.stderr().contains("--allow-exec-sinks"), "{refused}");
        assert!(dangerous.iter().all(|path| refused.stderr().contains(path)), "{refused}");
        assert!(!refused.stderr().contains("Makefile"), "{refused}");
        assert_eq!(world.listing(), before);
    }
    let json = world.pvisor(&["apply", "last", "--json"]).expect(1).json();
    assert_eq!(json["kind"], "exec_sinks");
    let named: Vec<&Value> = json["exec_sinks"].as_array().unwrap().iter().map(|s| &s["path"]).collect();
    assert!(dangerous.iter().all(|path| named.contains(&&Value::from(*path))), "{json:#}");

    let without: Vec<&str> = dangerous.iter().flat_map(|path| ["--exclude", path]).collect();
    world.pvisor(&[&["apply", "last"], &without[..]].concat()).expect(0);
    assert!(project.join("fine").exists() && project.join("Makefile").exists() && !project.join("prog").exists());
    world.pvisor(&["apply", "last", "--allow-exec-sinks"]).expect(0);
    assert!(project.join(".git/hooks/post-checkout").exists());
    assert_eq!(project.join("prog").metadata().unwrap().permissions().mode() & 0o7777, 0o4755);
    world.pvisor(&["apply", "last"]).expect(0);
}

#[test]
fn the_page_is_whole_private_and_replaces_an_older_one() {
    let world = repository();
    world
        .staged("echo '<script>alert(1)</script>' > '<img src=x>'; sed -i s/7/seven/ long.txt; echo x > .envrc")
        .expect(0);
    let page = world.path().join("page.html");
    fs::write(&page, "old").unwrap();
    let done = world.pvisor(&["review", "--html", "../page.html"]).expect(0);
    assert!(done.stdout().contains("3 changes written to"), "{done}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    assert!(html.contains("Content-Security-Policy") && html.contains("&lt;script&gt;alert(1)"));
    assert_eq!(html.matches("<script").count(), 1);
    assert!(html.contains("1 change makes your machine run something"));
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let part = world.pvisor(&["review", "--html", "../page.html", "--path", "long.txt", "--json"]).expect(0).json();
    assert_eq!(part["changes"].as_array().unwrap().len(), 1);
    assert!(!fs::read_to_string(&page).unwrap().contains(".envrc"));
    world.pvisor(&["review", "--html", "../missing/page.html"]).expect(1).says(&["can't write", "--html"]);
    let left = fs::read_dir(world.path()).unwrap().filter(|e| e.as_ref().unwrap().file_name() != "page.html");
    assert!(left.into_iter().all(|e| !e.unwrap().file_name().to_string_lossy().contains("review")));
}

/// Whether a value has nothing that the schema does not know, and all that it demands.
fn fits(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        return fits(value, &root["$defs"][name.trim_start_matches("#/$defs/")], root);
    }
    if let Some(choices) = schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array()) {
        let fit = choices.iter().any(|choice| fits(value, choice, root).is_ok());
        return if fit { Ok(()) } else { Err(format!("{value} is none of {choices:?}")) };
    }
    if schema["const"] != Value::Null && schema["const"] != *value {
        return Err(format!("{value} is not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return Err(format!("{value} is not in {}", schema["enum"]));
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = &schema["type"];
    if *kinds != Value::Null && kinds != kind && !kinds.as_array().is_some_and(|all| all.contains(&kind.into())) {
        return Err(format!("{value} is no {kinds}"));
    }
    for item in value.as_array().into_iter().flatten() {
        fits(item, &schema["items"], root)?;
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let known = schema["properties"].get(key).ok_or(format!("{key} is not in the schema"))?;
        fits(inner, known, root).map_err(|e| format!("{key}: {e}"))?;
    }
    let required = schema["required"].as_array().into_iter().flatten();
    let missing: Vec<&Value> = required.filter(|key| value.get(key.as_str().unwrap()).is_none()).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} are missing")) }
}

#[test]
fn the_published_schema_fits_what_a_review_answers() {
    let world = repository();
    world.staged(EDITS).expect(0);
    let schema = world.pvisor(&["schema", "review"]).expect(0).json();
    assert_eq!(schema["$id"], "pvisor.review/1");
    let review = world.pvisor(&["review", "--json"]).expect(0).json();
    fits(&review, &schema, &schema).unwrap();
    let mut wrong = review.clone();
    wrong["changes"][0]["status"] = "Z".into();
    assert!(fits(&wrong, &schema, &schema).is_err());
    wrong = review;
    wrong.as_object_mut().unwrap().remove("seal");
    assert!(fits(&wrong, &schema, &schema).is_err());
}
