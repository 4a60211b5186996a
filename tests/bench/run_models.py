#!/usr/bin/env python3
"""Times the training steps of four models, ours and the peers', in turns on this machine, and prints tables with ratios.

    python3 tests/bench/run_models.py --ours build/bench/bin/model_bench --meshtrain build/bench/bin/meshtrain \
        --tf PY --torch PY --jax PY [--models cnn,block,lm,resnet] [--out models.json] [--check]

What the models are is said in peers/bench_models.py; what our benchmark prints, and the targets, in README.md beside this
file. Runs are repeated, and what each took at least is compared, as in run_peers.py.

Exit status: 0; 1 when our own benchmark or job failed; with --check also 1 when a ratio that could be measured misses its
target, or a peer whose Python was given did not run.
"""
import argparse
import array
import json
import os
import random
import re
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import run_peers
from run_peers import cell, json_lines, least, quietest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PEERS = [
    ("tf plain", "tf", "bench_models_tf.py", "plain"),
    ("tf xla", "tf", "bench_models_tf.py", "xla"),
    ("torch eager", "torch", "bench_models_torch.py", "eager"),
    ("torch compile", "torch", "bench_models_torch.py", "compile"),
    ("jax jit", "jax", "bench_models_jax.py", "jit"),
    ("jax x8", "jax", "bench_models_jax.py", "sharded"),
]
OURS = ("one_device", "virtual8", "products")
STEPS = {"cnn": 300, "block": 60, "lm": 40, "resnet": 60}  # of the job with its data


def npy(path, kind, shape, values):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    head += b" " * (-(11 + len(head)) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + values.tobytes())


def write_data(folder, names):
    """Eight batches of the models that have no data of their own, and the sets of the two examples."""
    chance = random.Random(0)
    if "cnn" in names:
        pixels = array.array("f", (chance.random() if chance.random() < 0.2 else 0 for _ in range(8 * 128 * 784)))
        npy(folder / "cnn-x.npy", "<f4", (8 * 128, 28, 28, 1), pixels)
        npy(folder / "cnn-y.npy", "<i4", (8 * 128,), array.array("i", (chance.randrange(10) for _ in range(8 * 128))))
    if "block" in names:
        for part in "xy":
            npy(folder / f"block-{part}.npy", "<f4", (8 * 16, 128, 256),
                array.array("f", (chance.gauss(0, 1) for _ in range(8 * 16 * 128 * 256))))
    for name, script in (("lm", "make-text"), ("resnet", "make-images")):
        if name in names:
            subprocess.run([ROOT / "scripts" / script, "--out", folder / "data"], check=True, stdout=subprocess.DEVNULL)


def without(text, begin, end):
    return text[:text.index(begin)] + text[text.index(end):]


def take_of(text, steps):
    return f"        take: {steps * int(re.search(r'^      batch: ([0-9]+)$', text, re.MULTILINE)[1])}\n"


def manifest(name, epochs, steps):
    """The job on one device, for `epochs` over its first `steps` batches."""
    if name in ("cnn", "block"):
        text = (HERE / "jobs" / f"{name}.yaml").read_text()
        return text.replace("epochs: 1", f"epochs: {epochs}")
    if name == "lm":
        text = (ROOT / "deploy" / "examples" / "charlm.yaml").read_text()
        text = without(text, "    layout:\n", "    loss:")
        text = text[:text.index("    generate: ")].replace("mesh: {batch: 4, model: 2}", "mesh: {batch: 1}")
        rate = text[text.index("learning_rate: "):text.index("        weight_decay:")]
        text = text.replace(rate, "learning_rate: 0.0003\n").replace("epochs: 2", f"epochs: {epochs}")
        text = without(text, "      test:\n", "      shuffle:")
        return text.replace("          validation_split: 0.05\n", take_of(text, steps))
    text = (ROOT / "deploy" / "examples" / "resnet.yaml").read_text()
    text = text.replace("mesh: {batch: 2, h: 2, w: 2}", "mesh: {batch: 1}").replace("epochs: 3", f"epochs: {epochs}")
    text = without(text, "    layout:\n", "    loss:")
    text = without(text, "      test:\n", "      map:")
    return text.replace("train-labels32.idx.gz}\n", "train-labels32.idx.gz}\n" + take_of(text, steps))


def write_job(folder, name):
    """One pass of the sets that are long enough, else several: STEPS steps at least."""
    steps = STEPS[name]
    epochs = -(-steps // 8) if name in ("cnn", "block") else 1
    (folder / f"{name}.yaml").write_text(manifest(name, epochs, steps))


def measure_ours(args, folder, name):
    command = [args.ours, f"{name}.yaml", "0.6", str(args.reps)]
    result = quietest(command, args, cwd=folder)
    rows = {row["name"]: row for row in json_lines(result["stdout"])} if result["ok"] else {}
    for row in rows.values():
        row["others_cores"] = result["others_cores"]
    if not result["ok"]:
        print(f"run_models: {args.ours} {name}.yaml: {result['error']}", file=sys.stderr)
    return rows, all(mode in rows for mode in OURS)


def measure_job(args, folder, name):
    """The real job: milliseconds a step with its data, seconds from spawn to the first step, and its peak memory."""
    figures = run_peers.measure_job(argparse.Namespace(**{**vars(args), "job": f"{name}.yaml"}), cwd=folder)
    if figures.get("error"):
        print(f"run_models: {args.meshtrain} run -f {name}.yaml: {figures['error']}", file=sys.stderr)
    return figures


def over_jobs(jobs):
    combine = {"first_step_s": statistics.median, "step_ms": min, "peak_mib": max, "all_processes_mib": max}
    return {key: how([job[key] for job in jobs if key in job]) for key, how in combine.items()
            if any(key in job for job in jobs)}


def ratios(ours, peers, job):
    """[(what, figure or None, "at most" | "at least", target, note)]"""
    def divide(a, b):
        return a / b if a and b else None

    def best(figure):
        ran = [(row[figure], peer) for peer, row in peers.items() if row.get(figure)]
        return min(ran) if ran else (None, "none ran")

    one = least(ours, "one_device")
    step, with_data = best("step_ms_min"), best("with_data_ms")
    first, memory = best("spawn_to_first_step_s"), best("peak_mib")

    def against_either(name, peer, ours_takes):
        """The best peer takes 1.2 times as long, or ours at most 1.15 times its products alone: one of the two is enough."""
        of_limit = divide(ours_takes, least(ours, "products"))
        met = of_limit is not None and of_limit <= 1.15
        return [
            (f"best peer / {name}", divide(peer[0], ours_takes), "" if met else "at least", None if met else 1.2, peer[1]),
            (f"{name} / its products and convolutions alone", of_limit, "", None, "at most 1.15 would do too"),
        ]

    return [
        *against_either("one device", step, one),
        *against_either("our job with its data", with_data, job.get("step_ms")),
        ("8 virtual devices / one device", divide(least(ours, "virtual8"), one), "at most", 1.1, ""),
        ("spawn to first step: best peer / our job", divide(first[0], job.get("first_step_s")), "at least", 1, first[1]),
        ("peak memory: best peer / our job's largest process", divide(memory[0], job.get("peak_mib")), "at least", 1, memory[1]),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="our benchmark (model_bench)")
    parser.add_argument("--meshtrain", required=True, help="the command line, for the job with its data")
    for kind in ("tf", "torch", "jax"):
        parser.add_argument(f"--{kind}", help=f"Python that has {kind}")
    parser.add_argument("--models", default=",".join(STEPS), type=lambda text: text.split(","))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.25)
    parser.add_argument("--retries", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=400)
    parser.add_argument("--out", help="all rows and ratios as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a measured ratio misses its target, or a peer was named that could not be measured")
    args = parser.parse_args()
    for name in args.models:
        if name not in STEPS:
            parser.error(f"expected models of {', '.join(STEPS)}, got: {name}")
    args.ours, args.meshtrain = (str(Path(path).resolve()) for path in (args.ours, args.meshtrain))
    # Ours takes every core that it is given, as the peers are told to take so many.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.threads])

    good, missed, kept = True, [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, args.models)
        for model in args.models:
            write_job(folder, model)
            ours, peers, jobs = [], [], []
            for _ in range(args.rounds):
                rows, complete = measure_ours(args, folder, model)
                jobs.append(measure_job(args, folder, model))
                good = good and complete and not jobs[-1].get("error")
                ours.append(rows)
                peers.append(run_peers.measure_peers(args, PEERS, ["--model", model, "--folder", str(folder)], f"{model}, "))
            ours, peers = run_peers.over_rounds(ours), run_peers.over_rounds(peers)
            job = over_jobs(jobs) if good else {}
            results = ratios(ours, peers, job)
            missed += [f"{model}: {what}" for what in run_peers.print_tables(f"step of {model}", ours, peers, results, job)]
            kept[model] = {"ours": ours, "peers": peers, "job": job,
                           "ratios": [{"what": r[0], "figure": r[1], "target": r[3]} for r in results]}
    if args.out:
        Path(args.out).write_text(json.dumps(kept, indent=1))
    if missed:
        print("\nmissed: " + "; ".join(missed))
    return 0 if good and not (args.check and missed) else 1


if __name__ == "__main__":
    sys.exit(main())
