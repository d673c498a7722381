"""What the benches share: timing in turns, programs that are unpacked and not installed, the machine, the report."""

import argparse
import fcntl
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def quiet(*command, **more):
    """Runs a command whose output nobody wants, unless it fails."""
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        sys.exit(f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{said}")


def timed(work):
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def remove(directory):
    """Removes a directory that may not be there. What can't be removed is said here, and not by what comes next."""
    if os.path.lexists(directory):
        shutil.rmtree(directory)


def tool(kept, name, package):
    """A program of Debian's archive, unpacked and not installed."""
    found = kept / "tools/usr/bin" / name
    if not found.exists():
        (kept / "tools").mkdir(parents=True, exist_ok=True)
        quiet("apt-get", "download", package, cwd=kept / "tools")
        for archive in (kept / "tools").glob(f"{package}_*.deb"):
            quiet("dpkg", "-x", str(archive), str(kept / "tools"))
    return str(found)


def in_turns(rounds, reference, ours):
    """Times of both, in turns; the first round only warms up."""
    times = ([], [])
    for i in range(rounds + 1):
        both = [reference, ours]
        order = (0, 1) if i % 2 else (1, 0)
        measured = {at: both[at]() for at in order}
        if i:
            times[0].append(measured[0])
            times[1].append(measured[1])
    return times


class Worker:
    """A process that does jobs, in one environment for all of them."""

    def __init__(self, command, cwd, **more):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=cwd, stdin=pipe, stdout=pipe, text=True, **more)

    def work(self, job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"a worker ended in the middle of {job['row']}")
        return int(answer)

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def answer(one):
    """The worker's side: `one` does a job and returns nanoseconds."""
    for line in sys.stdin:
        print(one(json.loads(line)), flush=True)


def ratio(times):
    return statistics.median(ours / reference for reference, ours in zip(*times))


def say(row, times):
    reference, ours = (statistics.median(t) / 1e6 for t in times)
    print(f"  {row:12} reference {reference:9.2f} ms   pvisor {ours:9.2f} ms   {ratio(times):5.2f} x",
          file=sys.stderr, flush=True)


def arguments(description, rows):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", default=",".join(rows))
    parser.add_argument("--json")
    parser.add_argument("--pvisor", default=str(ROOT / "target/release/pvisor"))
    parser.add_argument("--dir", default=str(ROOT / "target/bench"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.only.split(",")) - set(rows)
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(rows)}")
    return args


def place(args, name):
    """An empty directory of this bench's own, in what is kept between benches."""
    kept = Path(args.dir)
    kept.mkdir(parents=True, exist_ok=True)
    # Two at once would remove each other's files. Held to the end of the process.
    lock = os.open(kept / f"{name}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another bench is at work in {kept / name}: wait for it, or name another --dir")
    base = kept / name
    remove(base)
    base.mkdir()
    # Runs of the bench are no runs of the person's.
    os.environ["PVISOR_RUN_HOME"] = str(base / "runs")
    return kept, base


def machine(base, pvisor, *more):
    """Where it was measured. `more`: names of further things to tell, each with the command that tells it."""
    def told(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().split("\n")[0]
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    about = {
        "kernel": platform.release(), "cpu": cpu[0] if cpu else "unknown", "cpus": os.cpu_count(),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "filesystem": told("stat", "-f", "-c", "%T", str(base)), "user": os.geteuid(),
        "load": os.getloadavg()[0], "pvisor": told(pvisor, "--version"),
    }
    about.update({name: told(*command) for name, command in more})
    print("  ".join(f"{key} {value}" for key, value in about.items()), file=sys.stderr)
    return about


def report(args, about, rows, times):
    """The table, and the same as JSON. `rows`: by name, the most that a ratio may be and what the row is."""
    result = {"machine": about, "rounds": args.rounds, "rows": {}}
    print(f"{'work':62} {'reference':>10} {'pvisor':>10} {'ratio':>6} {'most':>5}")
    for row, measured in times.items():
        most, title = rows[row]
        r, p = (statistics.median(t) / 1e6 for t in measured)
        found = ratio(measured)
        print(f"{title:62} {r:7.1f} ms {p:7.1f} ms {found:6.2f} {most:5.1f}{'' if found <= most else '  missed'}")
        reference, ours = measured
        result["rows"][row] = {"ratio": round(found, 3), "most": most, "reference_ns": reference, "pvisor_ns": ours}
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
