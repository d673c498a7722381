#!/bin/bash
# usage: tests/lab/lab.sh 'SCRIPT'
#        tests/lab/lab.sh COMMAND ARGUMENT...
#
# Runs a bash script, or one command, as root in an emulated x86-64 machine that has a working /dev/kvm, whatever this
# machine has: QEMU emulates an AMD processor with virtualisation in software. Everything in there is 10 to 50 times
# slower than here, so it shows that things work, not how fast.
#
# In the lab:
#   /            this machine's /, with all its programs; what is written is in memory and lost at the end
#   /tmp /run    empty, in memory; but these of this machine's directories show through where they lie below /tmp: the
#                current one, this checkout, CARGO_TARGET_DIR, CARGO_HOME, XDG_CACHE_HOME, PVISOR_IMAGES, and those
#                listed in LAB_SHOW (separated by colons)
#   /mnt         a folder shared with this machine, written by both
#   devices      KVM, FUSE, TUN, cgroup v2, Landlock, user namespaces; no network but loopback
#
# Environment: LAB_TIMEOUT seconds (3600), LAB_MEMORY MiB (6144, or 3/4 of what is free), LAB_CPUS (all), LAB_KEEP=1 keeps
# the shared folder also on success. HOME, PATH, CARGO_*, RUST*, XDG_*, PVISOR_*, PROPTEST_* are passed on.
#
# Output is live. Exit status: the script's; 124 when the time is over; 125 when the lab itself failed. On any failure the
# shared folder is kept: console.log (the emulated kernel), output.log, and what the script put into /mnt.
#
# Needs Debian, and root where packages are missing. Downloads about 110 MB the first time, into
# $XDG_CACHE_HOME/pvisor-lab (~/.cache/pvisor-lab).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pvisor-lab
# Loaded in the lab, with what they depend on. What a kernel has built in needs no loading.
modules=(9p 9pnet_virtio overlay kvm-amd fuse tun)

say() { echo "lab: $*" >&2; }
fail() { say "$*"; exit 125; }

# provide PACKAGE: by apt, from backports where the machine's own packages hold newer parts of it already.
provide() {
    [ "$(id -u)" = 0 ] || fail "$1 is missing: install it, or run this as root"
    say "installing $1"
    apt-get update -qq >&2 || true
    local options=(install -y -qq --no-install-recommends)
    export DEBIAN_FRONTEND=noninteractive
    apt-get "${options[@]}" "$1" >/dev/null 2>&1 && return
    local release
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    say "the packages of $release conflict here, taking $1 from $release-backports"
    echo "deb http://deb.debian.org/debian $release-backports main" >/etc/apt/sources.list.d/pvisor-lab-backports.list
    apt-get update -qq >&2 || true
    apt-get "${options[@]}" -t "$release-backports" "$1" >&2 || fail "can't install $1"
}

# fetch_kernel: the newest kernel of the distribution with KVM and FUSE passthrough into $cache/kernel-<package>.
fetch_kernel() {
    local pattern='^linux-image-(6\.(9|[1-9][0-9])|[7-9])[0-9.]*\+deb[0-9]+(\+[0-9]+)?-amd64$' package work
    newest() { apt-cache search --names-only "$pattern" | cut -d' ' -f1 | sort -V | tail -1; }
    package=$(newest)
    if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
        apt-get update -qq >&2 || true
        package=$(newest)
    fi
    [ -n "$package" ] || fail "apt knows no package like linux-image-6.12...-amd64"
    say "fetching $package"
    work=$(mktemp -d "$cache/work.XXXXXX")
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2) || {
        [ "$(id -u)" = 0 ] && apt-get update -qq >&2 && (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$(newest)" >&2)
    } || fail "can't download $package"
    dpkg-deb -x "$work"/*.deb "$work/root"
    mv "$work/root" "$cache/kernel-$package"
    rm -rf "$work"
}

# add_module NAME: appends its file, after those it depends on, to the array `files`.
add_module() {
    local name=${1//-/_} file dependency
    [[ " $added " == *" $name "* ]] && return
    added+=" $name"
    file=$(find "$kernel/lib/modules" -name "$name.ko*" -o -name "${name//_/-}.ko*" | head -1)
    if [ -z "$file" ]; then
        grep -qE "/${name//_/[_-]}\.ko$" "$kernel"/lib/modules/*/modules.builtin || fail "the lab's kernel has no $name"
        return
    fi
    for dependency in $(unpack "$file" | tr '\0' '\n' | sed -n 's/^depends=//p' | tr ',' ' '); do
        add_module "$dependency"
    done
    files+=("$file")
}

unpack() { case $1 in *.xz) xz -dc "$1" ;; *.zst) zstd -dc "$1" ;; *.gz) gzip -dc "$1" ;; *) cat "$1" ;; esac; }

# make_initrd FILE: busybox, the modules in order, and the two scripts that bring the machine up.
make_initrd() {
    local root file number=0 name added='' files=()
    root=$(mktemp -d "$cache/work.XXXXXX")
    mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,rw,root}
    cp "$busybox" "$root/bin/busybox"
    for name in "${modules[@]}"; do add_module "$name"; done
    for file in "${files[@]}"; do
        name=$(basename "$file")
        unpack "$file" >"$root/modules/$(printf %02d $number)-${name%%.*}.ko"
        number=$((number + 1))
    done
    install -m 755 "$here/init" "$root/init"
    install -m 755 "$here/run" "$root/run"
    (cd "$root" && find . | sort | cpio -o -H newc --quiet | gzip -1) >"$1.tmp"
    mv "$1.tmp" "$1"
    rm -rf "$root"
}

# prepare: sets kernel, initrd; one at a time, since several labs may start at once.
prepare() {
    command -v qemu-system-x86_64 >/dev/null || provide qemu-system-x86
    # There is nothing to link it with in the first root.
    if ! command -v busybox >/dev/null || ldd "$(command -v busybox)" >/dev/null 2>&1; then provide busybox-static; fi
    busybox=$(command -v busybox)
    for tool in cpio xz:xz-utils setpriv:util-linux; do
        command -v "${tool%%:*}" >/dev/null || provide "${tool##*:}"
    done
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    flock 9
    rm -rf "$cache"/work.*
    # One that was fetched once will do: archives drop kernels, and a test must not change under one's hands.
    ls -d "$cache"/kernel-* >/dev/null 2>&1 || fetch_kernel
    kernel=$(ls -d "$cache"/kernel-* | sort -V | tail -1)
    local key
    key=$({ basename "$kernel"; echo "${modules[@]}"; cat "$0" "$here/init" "$here/run" "$busybox"; } | sha256sum | cut -c1-16)
    initrd=$cache/initrd-$key.gz
    [ -f "$initrd" ] || { rm -f "$cache"/initrd-*.gz; make_initrd "$initrd"; }
    exec 9>&-
}

# describe: what the lab's first script needs to know, in the shared folder.
describe() {
    local name path
    # Without the terminal's own settings: the lab has none.
    for name in $(compgen -e); do
        case $name in
        HOME | PATH | CARGO_* | RUST* | XDG_* | PVISOR_* | PROPTEST_*) printf 'export %s=%q\n' "$name" "${!name}" ;;
        esac
    done >"$shared/environment"
    printf 'cd %q\n' "$PWD" >>"$shared/environment"
    IFS=: read -ra show <<<"${LAB_SHOW:-}"
    for path in "$PWD" "$(cd "$here/../.." && pwd)" "${CARGO_TARGET_DIR:-}" "${CARGO_HOME:-}" "${XDG_CACHE_HOME:-}" \
        "${PVISOR_IMAGES:-}" "${show[@]}"; do
        case $path in /tmp/*) [ ! -d "$path" ] || realpath "$path" ;; esac
    done | sort -u >"$shared/show"
    if [ $# = 1 ]; then printf '%s\n' "$1"; else printf '%q ' "$@"; fi >"$shared/script"
}

free_memory() { awk '/^MemAvailable/ { m = int($2 / 1024 * 3 / 4); print m < 6144 ? m : 6144 }' /proc/meminfo; }

# emulate: starts QEMU in the background, `emulator` is its process. Killing this script, also by SIGKILL, takes it along:
# each of the two in between gets SIGKILL when the one above it is gone.
emulate() {
    local fs=local,security_model=none,multidevs=remap
    # At the end of its input QEMU would close the output too, so the input is one that never ends.
    mkfifo "$shared/input"
    exec 8<>"$shared/input"
    rm "$shared/input"
    # nohz, highres: QEMU 10.0 can lose an interrupt of a processor that runs a guest (the end of the guest changes
    # the set of pending interrupts without the lock). A clock that has to be wound up for each tick then stands still
    # for ever, and with it the processor; one that ticks by itself goes on at the next tick.
    setpriv --pdeathsig KILL timeout --kill-after 10 "${LAB_TIMEOUT:-3600}" \
        setpriv --pdeathsig KILL qemu-system-x86_64 \
        -machine q35 -accel tcg,thread=multi -cpu max -smp "${LAB_CPUS:-$(nproc)}" -m "${LAB_MEMORY:-$(free_memory)}" \
        -nodefaults -no-user-config -display none -no-reboot \
        -kernel "$kernel"/boot/vmlinuz-* -initrd "$initrd" \
        -append 'console=ttyS0 rdinit=/init reboot=t panic=-1 mitigations=off nohz=off highres=off quiet' \
        -serial "file:$shared/console.log" \
        -device virtio-serial-pci -chardev "stdio,id=out,signal=off,logfile=$shared/output.log" \
        -device virtserialport,chardev=out,name=out -device virtio-rng-pci \
        -fsdev "$fs,id=host,path=/,readonly=on" -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev "$fs,id=shared,path=$shared" -device virtio-9p-pci,fsdev=shared,mount_tag=shared \
        <&8 &
    emulator=$!
}

# is_up: waits until the machine runs its first script, which takes ten seconds; fails where that is not to come any more.
is_up() {
    local second
    for ((second = 0; second < 240; second++)); do
        [ ! -e "$shared/started" ] || return 0
        kill -0 "$emulator" 2>/dev/null || return 0
        sleep 1
    done
    return 1
}

# finish: ends what still runs, keeps or removes the shared folder; runs whatever ends this script.
finish() {
    local status=$?
    trap - EXIT
    if [ -n "$emulator" ] && kill "$emulator" 2>/dev/null; then wait "$emulator" 2>/dev/null || true; fi
    if [ "$status" = 0 ] && [ -z "${LAB_KEEP:-}" ]; then rm -rf "$shared"; elif [ -d "$shared" ]; then
        [ "$status" != 125 ] || tail -n 20 "$shared/console.log" >&2 2>/dev/null || true
        say "exit status $status; console.log, output.log and what the script left are in $shared"
    fi
    exit "$status"
}

[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2; exit 125; }
emulator='' shared=''
prepare
shared=$(mktemp -d "${TMPDIR:-/tmp}/pvisor-lab.XXXXXX")
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
describe "$@"
emulate
if ! is_up; then
    say 'the machine did not come up, once more'
    kill "$emulator" 2>/dev/null && wait "$emulator" 2>/dev/null || true
    emulate
fi
ended=0
wait "$emulator" || ended=$?
emulator=''
[ "$ended" != 124 ] || { say "the time limit of ${LAB_TIMEOUT:-3600} s is over"; exit 124; }
[ -s "$shared/status" ] || fail "the machine ended without the script's status (qemu: $ended)"
exit "$(<"$shared/status")"
