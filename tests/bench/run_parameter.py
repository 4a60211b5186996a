#!/usr/bin/env python3
"""Parameter servers: our steps per second and TensorFlow's, in turn on this machine, one table with the ratios.

    python3 tests/bench/run_parameter.py --ours build/bench/bin/parameter_bench --tf PYTHON [--seconds 5] [--repeat 3] [--check]

The jobs (tests/bench/parameter_bench.cc, tests/bench/peers/bench_tf_parameter.py) are the same on both sides: `guide`, which
is all overhead, and `mlp`, which is mostly matrix products. Medians of the repetitions are compared. Ours runs three times:
without a log, as TensorFlow; with the log that makes a push outlive its server; and with the log and two steps in flight on
each worker.

Exit status: 0; 1 when ours failed; with --check also 1 when `guide` is less than 5 times as fast as TensorFlow's, or TensorFlow
was given and did not run."""
import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT = 400
TARGET = 5
JOBS = {"guide": 1, "mlp": 2}  # parameter servers
OURS = (("ours, no log", "none", 1), ("ours", "log", 1), ("ours, 2 in flight", "log", 2))
LINE = re.compile(r"(\d+) steps/s\s+(\d+) pulls\+pushes/s\s+([\d.]+) MB/s")


def ours(binary, job, servers, folder, window, seconds):
    log = "none" if folder == "none" else folder
    run = subprocess.run([binary, job, f"servers={servers}", "workers=2", f"window={window}", f"log={log}",
                          f"seconds={seconds}"], capture_output=True, text=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    found = LINE.search(run.stdout)
    if run.returncode != 0 or not found:
        raise SystemExit(f"run_parameter: {binary} left with {run.returncode}: {run.stderr[-500:]}{run.stdout[-500:]}")
    return [float(found[1]), float(found[2]), float(found[3])]


def tensorflow(python, job, servers, seconds):
    try:
        run = subprocess.run([python, str(HERE / "peers" / "bench_tf_parameter.py"), job, "--servers", str(servers),
                              "--workers", "2", "--seconds", str(seconds)], capture_output=True, text=True,
                             timeout=TIMEOUT, stdin=subprocess.DEVNULL)
        if run.returncode != 0:
            return None, run.stderr[-300:]
        result = json.loads(run.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
        return None, str(error)
    return [result["steps_per_second"], result["transfers_per_second"], result["bytes_per_second"] * 1e-6], ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", required=True)
    parser.add_argument("--tf")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    status = 0
    print(f"{'job':<6} {'':<18} {'steps/s':>9} {'pulls+pushes/s':>15} {'MB/s':>9} {'against TensorFlow':>19}")
    for job, servers in JOBS.items():
        runs = {"tensorflow": []} | {name: [] for name, _, _ in OURS}
        for _ in range(args.repeat):
            if args.tf:
                figures, error = tensorflow(args.tf, job, servers, args.seconds)
                if figures:
                    runs["tensorflow"].append(figures)
                else:
                    print(f"{job:<6} tensorflow failed: {error}", file=sys.stderr)
                    status = 1 if args.check else status
            for name, log, window in OURS:
                with tempfile.TemporaryDirectory() as folder:
                    runs[name].append(ours(args.ours, job, servers, folder if log == "log" else log, window, args.seconds))
        medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in runs.items() if rows}
        base = medians.get("tensorflow")
        for name, (steps, transfers, megabytes) in medians.items():
            ratio = f"{steps / base[0]:.1f} x" if base and name != "tensorflow" else ""
            print(f"{job:<6} {name:<18} {steps:>9.0f} {transfers:>15.0f} {megabytes:>9.1f} {ratio:>19}", flush=True)
        if args.check and job == "guide" and base and medians["ours"][0] < TARGET * base[0]:
            print(f"guide: expected at least {TARGET} times TensorFlow's steps, got: {medians['ours'][0] / base[0]:.1f}",
                  file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
