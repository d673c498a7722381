#!/bin/sh
# The main job on a throw-away git repository: run, review, apply. Builds pvisor first.
set -eu
cd "$(dirname "$0")/.."
cargo build --release
target=${CARGO_TARGET_DIR:-target}
pvisor=$(cd "$target/release" && pwd)/pvisor
tour=$(mktemp -d)
trap 'rm -rf "$tour"' EXIT
show() { printf '\n$ %s\n' "$*"; }

git init -q "$tour/project"
cd "$tour/project"
printf 'a greeting\n' >README.md
mkdir src && printf 'int main(void) { return 0; }\n' >src/main.c
git add . && git -c user.name=you -c user.email=you@localhost commit -qm first
PVISOR_RUN_HOME=$tour/runs
export PVISOR_RUN_HOME

show "pvisor run -- sh -c 'sed -i s/a/b/ README.md; rm -r src; mkdir new; echo x > new/f'"
"$pvisor" run -- sh -c 'sed -i s/a/b/ README.md; rm -r src; mkdir new; echo x > new/f'
show 'git status --short        # the project is untouched'
git status --short
show 'pvisor review --diff last'
"$pvisor" review --diff last
show 'pvisor status --review last'
"$pvisor" status --review last
show 'pvisor apply last'
"$pvisor" apply last
show 'git status --short        # now it is not'
git status --short
