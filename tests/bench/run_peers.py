#!/usr/bin/env python3
"""Runs our MLP benchmark and the peers' one after another on this machine, and prints one table with the ratios.

    python3 tests/bench/run_peers.py --ours build/bench/bin/mlp_bench --tf PY --torch PY --jax PY \
        [--meshtrain build/release/bin/meshtrain --job deploy/examples/mnist-mlp.yaml] \
        [--worker build/release/bin/meshtrain-worker] [--out peers.json] [--check]

All run in turn, --rounds times, since a machine's speed changes with what its neighbours do. That only ever takes time:
what is compared is the least that each took in any round, and the table shows the median of the rounds' medians too. A run during which other processes used more than
--noise cores is repeated, up to --retries times, and the quietest one is kept. A peer that aborts, hangs or is not installed is reported
and its ratio waived. What our benchmark must print is in README.md beside this file.

Exit status: 0; 1 when our own benchmark or job failed; with --check also 1 when a ratio that could be measured misses its target,
or a peer whose Python was given did not run (eight of its devices apart, which not every machine starts).
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# name of the row, virtual environment, script, mode
PEERS = [
    ("tf plain", "tf", "bench_tf.py", "plain"),
    ("tf xla", "tf", "bench_tf.py", "xla"),
    ("tf dtensor x8", "tf", "bench_tf.py", "dtensor"),
    ("torch eager", "torch", "bench_torch.py", "eager"),
    ("torch compile", "torch", "bench_torch.py", "compile"),
    ("jax jit", "jax", "bench_jax.py", "jit"),
    ("jax x8", "jax", "bench_jax.py", "sharded"),
]
NOT_ASKED_FOR = "not installed"
ONE_DEVICE = ("tf plain", "tf xla", "torch eager", "torch compile", "jax jit")
# The lines our benchmark must print.
OURS = ("one_device", "virtual8", "isolated8", "products", "optimizer", "plan")
# glibc's own libraries: on every machine, not ours to carry.
GLIBC = ("libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "ld-linux")


def busy_seconds():
    """CPU seconds that the whole machine has spent working."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def run(command, timeout, env=None, cwd=None):
    """Runs to the end; returns {"ok", "stdout", "error", "peak_mib", "others_cores"}.

    The peak is the process's own, from the kernel; `others_cores` is what other processes did meanwhile.
    """
    environment = dict(os.environ, **(env or {}), PEER_SPAWN=repr(time.time()))
    busy, begin = busy_seconds(), time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
                                     cwd=cwd)
        except OSError as error:
            return {"ok": False, "stdout": "", "error": str(error), "peak_mib": 0, "others_cores": 0}
        # wait4 and not Popen.wait: it alone gives this child's peak memory.
        timed_out = threading.Event()

        def stop():
            timed_out.set()
            child.kill()

        timer = threading.Timer(timeout, stop)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        stdout, stderr = out.read(), err.read()
    others = (busy_seconds() - busy - usage.ru_utime - usage.ru_stime) / max(1e-3, time.time() - begin)
    result = {"ok": child.returncode == 0, "stdout": stdout, "error": "", "peak_mib": round(usage.ru_maxrss / 1024, 1),
              "others_cores": round(max(0.0, others), 2)}
    if timed_out.is_set():
        result["error"] = f"no end after {timeout:.0f} s"
    elif child.returncode:
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        last = [line for line in stderr.splitlines() if line.strip()][-1:]
        result["error"] = f"{how}: {last[0][:160]}" if last else how
    return result


def quietest(command, args, env=None, cwd=None):
    """The run with the least work of others meanwhile. A failed run is tried again too: JAX's abort is a race."""
    best = None
    for _ in range(1 + args.retries):
        result = run(command, args.timeout, env, cwd)
        if best is None or (result["ok"], -result["others_cores"]) > (best["ok"], -best["others_cores"]):
            best = result
        if best["ok"] and best["others_cores"] <= args.noise:
            break
    return best


def json_lines(text):
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            found.append(json.loads(line))
    return found


def measure_ours(args):
    result = quietest([args.ours], args)
    rows = {row["name"]: row for row in json_lines(result["stdout"])} if result["ok"] else {}
    for row in rows.values():
        row["others_cores"] = result["others_cores"]
    if not result["ok"]:
        print(f"run_peers: {args.ours}: {result['error']}", file=sys.stderr)
    missing = [name for name in OURS if name not in rows]
    if result["ok"] and missing:
        print(f"run_peers: {args.ours}: expected a line for each of {', '.join(OURS)}; missing: {', '.join(missing)}",
              file=sys.stderr)
    return rows, result["ok"] and not missing


def measure_peers(args, peers, more, what=""):
    """A row for each of `peers`; `more`: arguments of their scripts, `what`: in front of what is said meanwhile."""
    rows = {}
    for name, kind, script, mode in peers:
        python = getattr(args, kind)
        if not python:
            rows[name] = {"error": NOT_ASKED_FOR}
            continue
        command = [python, str(HERE / "peers" / script), "--mode", mode, *more,
                   "--threads", str(args.threads), "--reps", str(args.reps)]
        env = {"OMP_NUM_THREADS": str(args.threads), "PYTHONDONTWRITEBYTECODE": "1"}
        result = quietest(command, args, env)
        rows[name] = json_lines(result["stdout"])[-1] if result["ok"] else {"error": result["error"]}
        rows[name].update(peak_mib=result["peak_mib"], others_cores=result["others_cores"])
        print(f"{what}{name}: {rows[name].get('step_ms_median', rows[name].get('error'))}", file=sys.stderr, flush=True)
    return rows


def descendants(pid):
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as children:
                for child in children.read().split():
                    found += [int(child), *descendants(int(child))]
    except OSError:
        pass  # it has ended
    return found


def peak_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) for line in status if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def step_ms(seconds, whole, window=2.0):
    """[milliseconds of a step]: the least mean over two seconds of steps, as long as a repetition of the peers with their
    data is, and a step's share of the rest of the `whole` time from the first step's end: checkpoints, model, report."""
    seconds, means, begin, total = seconds[1:], [], 0, 0.0
    for end, step in enumerate(seconds, 1):
        total += step
        while total - seconds[begin] >= window:
            total -= seconds[begin]
            begin += 1
        if total >= window or end == len(seconds) and not means:
            means.append(total / (end - begin))
    return [(min(means) + max(0.0, whole - sum(seconds)) / len(seconds)) * 1e3] if seconds else []


def measure_job(args, cwd=None):
    """The real job, three times: seconds from spawn to the first line of metrics.jsonl (median), milliseconds a step
    (least; step_ms), and peak memory of its largest
    process and of all its processes together, in which what they share counts for each (largest).

    Reading the data is part of it, which the peers' figures spare.
    """
    seconds, steps, largest, together = [], [], [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder) / "out" / "metrics.jsonl"
            first, peaks = [], {}
            begin = time.time()
            ended = threading.Event()

            def watch_memory():
                # Seldom: the kernel keeps each peak, and on two cores a watcher takes time from what is timed.
                while not ended.wait(0.1):
                    for pid in descendants(os.getpid()):
                        peaks[pid] = max(peaks.get(pid, 0), peak_kib(pid))

            def watch():
                while not first and time.time() - begin < args.timeout:
                    if metrics.exists() and metrics.stat().st_size > 0:
                        first.append(time.time() - begin)
                    time.sleep(0.001)

            watchers = [threading.Thread(target=watch), threading.Thread(target=watch_memory)]
            for watcher in watchers:
                watcher.start()
            result = run([args.meshtrain, "run", "-f", args.job, "--output", str(metrics.parent)], args.timeout, cwd=cwd)
            if not result["ok"]:
                first.append(None)
            ended.set()
            for watcher in watchers:
                watcher.join()
            if result["ok"] and first:
                rows = [json.loads(line) for line in metrics.read_text().splitlines() if '"loss"' in line]
                steps += step_ms([row["seconds"] for row in rows], time.time() - begin - first[0])
        if not result["ok"]:
            return {"error": result["error"]}
        seconds += first[:1]
        largest.append(result["peak_mib"])
        together.append(round(sum(peaks.values()) / 1024, 1))
    figures = {"peak_mib": max(largest), "all_processes_mib": max(together)}
    if seconds:
        figures["first_step_s"] = round(statistics.median(seconds), 4)
    if steps:
        figures["step_ms"] = round(min(steps), 4)
    return figures


def stripped_mib(program):
    """The program and every library it loads but glibc's, stripped."""
    files = [program]
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        path = line.split("=>")[-1].split("(")[0].strip()
        if path.startswith("/") and not any(Path(path).name.startswith(name) for name in GLIBC):
            files.append(path)
    total = 0
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            copy = shutil.copy(os.path.realpath(file), folder)
            os.chmod(copy, 0o600)
            subprocess.run(["strip", "--strip-unneeded", copy], check=True)
            total += os.path.getsize(copy)
            os.remove(copy)
    return round(total / 2**20, 1)


def over_rounds(rounds):
    """One row for each name, from the rounds in which it ran: medians of medians, the least times, the highest peak."""
    combine = {"step_ms_median": statistics.median, "spawn_to_first_step_s": statistics.median, "with_data_ms": min,
               "step_ms_min": min, "peak_mib": max, "others_cores": max}
    rows = {}
    for name in dict.fromkeys(name for one in rounds for name in one):
        ran = [one[name] for one in rounds if name in one and "step_ms_median" in one[name]]
        if not ran:
            rows[name] = next(one[name] for one in rounds if name in one)
            continue
        rows[name] = dict(ran[0], rounds=[row["step_ms_median"] for row in ran])
        rows[name].update({key: how([row[key] for row in ran if key in row]) for key, how in combine.items()
                           if any(key in row for row in ran)})
    return rows


def least(rows, name):
    return rows.get(name, {}).get("step_ms_min")


def ratios(ours, peers, job, size):
    """[(what, figure or None, "at most" | "at least", target, note)]"""
    def divide(a, b):
        return a / b if a and b else None

    one, eight = least(ours, "one_device"), least(ours, "virtual8")
    alone = [least(ours, "products"), least(ours, "optimizer")]
    fastest = min((least(peers, name), name) for name in ONE_DEVICE if least(peers, name)) \
        if any(least(peers, name) for name in ONE_DEVICE) else (None, "none ran")

    def why(name):
        return peers.get(name, {}).get("error", "")

    return [
        ("one device / (products + optimizer, alone)", divide(one, sum(alone) if all(alone) else None), "at most", 1.3, ""),
        ("8 virtual devices / one device", divide(eight, one), "at most", 1.5, ""),
        ("8 isolated devices / one device", divide(least(ours, "isolated8"), one), "", None, "reported only"),
        ("TensorFlow DTensor x8 / 8 virtual devices", divide(least(peers, "tf dtensor x8"), eight), "at least", 10,
         why("tf dtensor x8")),
        ("JAX x8 / 8 virtual devices", divide(least(peers, "jax x8"), eight), "at least", 4, why("jax x8")),
        ("fastest peer on one device / one device", divide(fastest[0], one), "at least", 1, fastest[1]),
        ("planning, ms", least(ours, "plan"), "at most", 20, ""),
        ("the job, spawn to first step, s", job.get("first_step_s"), "at most", 0.150, job.get("error", "")),
        ("the job, peak memory of all its processes, MiB", job.get("all_processes_mib"), "at most", 120e6 / 2**20,
         job.get("error", "")),
        ("the job, peak memory of the largest, MiB", job.get("peak_mib"), "", None, "reported only"),
        ("worker and its libraries, stripped, MiB", size, "at most", 80e6 / 2**20, ""),
    ]


def cell(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def print_tables(what, ours, peers, results, job=None):
    print(f"\n| {what} | min ms | median ms | with data, ms | spawn to first step, s | peak MiB | others' cores | |")
    print("|---|---|---|---|---|---|---|---|")
    ours = [(f"meshtrain {k}", v) for k, v in ours.items()]
    if job:
        ours.append(("meshtrain run", {"with_data_ms": job.get("step_ms"), "spawn_to_first_step_s": job.get("first_step_s"),
                                       "peak_mib": job.get("peak_mib")}))
    for name, row in ours + list(peers.items()):
        print(f"| {name} | {cell(row.get('step_ms_min'), 3)} | {cell(row.get('step_ms_median'), 3)} "
              f"| {cell(row.get('with_data_ms'), 3)} "
              f"| {cell(row.get('spawn_to_first_step_s'), 3)} | {cell(row.get('peak_mib'), 0)} "
              f"| {cell(row.get('others_cores'))} | {row.get('error', '')} |")
    print("\n| ratio or figure | measured | target | |")
    print("|---|---|---|---|")
    missed = []
    for what, figure, sense, target, note in results:
        if target is None:
            verdict = ""
        elif figure is None:
            verdict = "waived" if note and "x8" in what else "not measured"
        else:
            good = figure <= target if sense == "at most" else figure >= target
            verdict = "met" if good else "MISSED"
            if not good:
                missed.append(what)
        goal = "" if target is None else f"{sense} {target:.4g}"
        print(f"| {what} | {cell(figure, 3)} | {goal} | {' '.join(x for x in (verdict, note and f'({note})') if x)} |")
    # Without its figure a comparison says nothing. (Several processes of some peers do not start on every machine: waived.)
    return missed + [f"{name} was not measured" for name, row in peers.items()
                     if row.get("error", NOT_ASKED_FOR) != NOT_ASKED_FOR and "x8" not in name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", help="our benchmark (mlp_bench)")
    for kind in ("tf", "torch", "jax"):
        parser.add_argument(f"--{kind}", help=f"Python that has {kind}")
    parser.add_argument("--meshtrain", help="the command line, for start-up and memory of the real job")
    parser.add_argument("--job", default="deploy/examples/mnist-mlp.yaml")
    parser.add_argument("--worker", help="the worker, for its size")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=0.25)
    parser.add_argument("--retries", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=180)
    parser.add_argument("--out", help="all rows and ratios as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a measured ratio misses its target, or a peer was named that could not be measured")
    args = parser.parse_args()
    # Ours takes every core that it is given, as the peers are told to take so many.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])

    ours, peers, good = [], [], True
    for _ in range(args.rounds):
        rows, complete = measure_ours(args) if args.ours else ({}, True)
        good = good and complete
        ours.append(rows)
        peers.append(measure_peers(args, PEERS, ["--batch", "128"]))
    ours, peers = over_rounds(ours), over_rounds(peers)
    job = measure_job(args) if args.meshtrain else {}
    size = stripped_mib(args.worker) if args.worker else None
    results = ratios(ours, peers, job, size)
    missed = print_tables("step of the MLP, batch 128", ours, peers, results)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"ours": ours, "peers": peers, "job": job, "worker_mib": size,
                       "ratios": [{"what": r[0], "figure": r[1], "target": r[3]} for r in results]}, file, indent=1)
    if job.get("error"):
        print(f"run_peers: {args.meshtrain} run -f {args.job}: {job['error']}", file=sys.stderr)
        good = False
    if missed:
        print(f"\nmissed: {'; '.join(missed)}")
    return 1 if not good or (args.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
