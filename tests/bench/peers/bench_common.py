"""What every peer's benchmark of the MLP shares: sizes, seeded data, starting weights, the timing loop, the JSON line.

The job: 784 -> 700 relu -> 500 relu -> 10, mean sparse softmax cross-entropy, Adam(1e-3, eps 1e-7), float32. Every peer
starts from the same weights and sees the same batches, so their losses can be compared too.
"""
import argparse
import json
import os
import sys
import time

STARTED = time.time()

import numpy as np  # noqa: E402: counts as start-up

SIZES = [(784, 700), (700, 500), (500, 10)]


def arguments(modes):
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--devices", type=int, default=8, help="virtual devices, in the modes that have them")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--platform", default="cpu", help="of JAX: cpu or cuda")
    return parser.parse_args()


def batches(batch, count=8):
    random = np.random.RandomState(0)
    made = []
    for _ in range(count):
        x = random.rand(batch, 784) * (random.rand(batch, 784) < 0.2)
        made.append((x.astype(np.float32), random.randint(0, 10, batch).astype(np.int64)))
    return made


def params():
    made = {}
    for i, (rows, columns) in enumerate(SIZES):
        limit = np.sqrt(6 / (rows + columns))
        random = np.random.RandomState(rows * 7 + columns)
        made[f"w{i}"] = random.uniform(-limit, limit, (rows, columns)).astype(np.float32)
        made[f"b{i}"] = np.zeros(columns, np.float32)
    return made


def measure(step, data, args, peer, devices, sync, put=None):
    """Times `step(batch) -> loss handle` and prints one JSON line; `sync(handle) -> float` waits for the result.

    Each repetition runs about 0.6 s of steps and waits once at its end. With `put(k) -> batch number k` also three runs of
    about 2 s in which each step's batch is made and moved first: `with_data_ms`, the least of them.
    """
    out = {"name": f"{peer} {args.mode}", "batch": args.batch, "threads": args.threads, "devices": devices}
    out["loss0"] = float(sync(step(data[0])))
    spawned = float(os.environ.get("PEER_SPAWN", STARTED))
    out["spawn_to_first_step_s"] = round(time.time() - spawned, 3)

    def run(steps):
        start = time.perf_counter()
        for k in range(steps):
            loss = step(data[k % len(data)])
        loss = float(sync(loss))
        return (time.perf_counter() - start) / steps, loss

    run(3)
    steps = max(4, int(0.6 / run(4)[0]))
    times = []
    for _ in range(args.reps):
        seconds, loss = run(steps)
        times.append(seconds * 1e3)
    times.sort()
    out.update(steps_per_rep=steps, reps=args.reps, last_loss=loss, step_ms_min=round(times[0], 4),
               step_ms_median=round(times[len(times) // 2], 4), step_ms_max=round(times[-1], 4))
    if put:
        steps = max(10, int(2e3 / times[0]))
        with_data = []
        for repetition in range(3):
            start = time.perf_counter()
            for k in range(steps):
                loss = step(put(len(data) + repetition * steps + k))
            sync(loss)
            with_data.append((time.perf_counter() - start) / steps * 1e3)
        out["with_data_ms"] = round(min(with_data), 4)
    print(json.dumps(out))
    sys.stdout.flush()
