"""All-reduce among processes of one host: ours, Gloo's algorithms, rings of raw connections, and the cipher of sealed
links by itself, in turn, one table.

    run_collectives.py --ours build/bench/bin/collective_bench [--gloo build/bench/bin/collective_gloo_bench]
        [--processes 4] [--rounds 5] [--out FILE] [--check]

Every round runs each once; medians of the rounds' medians are compared. Without Gloo (Debian: libgloo-dev) its ratios are
waived. With --check the exit status is 1 when a ratio that could be measured misses its target. Standard library only.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

LARGE, SMALL = 16 << 20, 1 << 10
OURS = ("shared", "shared_copy", "tcp", "sealed")
ALONE = ("raw_ring", "raw_ring_reno", "encrypt")  # what moving, or sealing, the bytes takes by itself
GLOO = ("gloo_ring", "gloo_bcube", "gloo_hd", "gloo_chunked")
SECONDS = 120  # of one run


def measure(options):
    """{(name, bytes): median microseconds}"""
    seen = {}
    for _ in range(options.rounds):
        for size in (LARGE, SMALL):
            for program, names in ((options.ours, OURS + (ALONE if size == LARGE else ())), (options.gloo, GLOO)):
                for name in names if program else ():
                    done = subprocess.run([program, name, str(size), str(options.processes)], capture_output=True, text=True,
                                          timeout=SECONDS)
                    if done.returncode != 0:
                        raise SystemExit(f"{program} {name} {size}: left with {done.returncode}: {done.stderr[-500:]}")
                    seen.setdefault((name, size), []).append(json.loads(done.stdout.splitlines()[-1])["median_us"])
    return {key: statistics.median(values) for key, values in seen.items()}


def ratios(times):
    """(what, ratio, target): each is at least its target where met; None where it cannot be measured."""
    best = {size: min((times[n, size] for n in GLOO if (n, size) in times), default=None) for size in (LARGE, SMALL)}

    def over(size, name):
        return best[size] / times[name, size] if best[size] else None
    return [("16 MB through shared memory, of Gloo's best speed", over(LARGE, "shared"), 4),
            ("16 MB over loopback TCP, of Gloo's best speed", over(LARGE, "tcp"), 1),
            ("16 MB over loopback TCP, of a raw ring's speed", times["raw_ring", LARGE] / times["tcp", LARGE], 0.8),
            ("16 MB over loopback TCP, of a raw ring's under Reno",
             times["raw_ring_reno", LARGE] / times["tcp", LARGE], 0.8),
            # What is sealed need not take more than 1.2 times as long as sealing it does.
            ("16 MB over sealed links, of the speed of sealing the same bytes alone",
             times["encrypt", LARGE] / times["sealed", LARGE], 1 / 1.2),
            ("1 kB through shared memory, Gloo's best time over ours", over(SMALL, "shared"), 1),
            ("1 kB over loopback TCP, Gloo's best time over ours", over(SMALL, "tcp"), 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True)
    parser.add_argument("--gloo")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.gloo and not os.path.exists(options.gloo):
        print(f"{options.gloo} is not there (libgloo-dev was missing when it would have been built): no comparison with Gloo")
        options.gloo = None
    load = os.getloadavg()[0]
    times = measure(options)
    for (name, size), median in sorted(times.items(), key=lambda item: (-item[0][1], item[1])):
        print(f"{name:<14}{size:>10} bytes  {median:>10.1f} us")
    missed = False
    for what, ratio, target in ratios(times):
        missed = missed or (ratio is not None and ratio < target)
        verdict = "waived" if ratio is None else f"{ratio:.2f} x, wanted {target:.3g}{'' if ratio >= target else ': MISSED'}"
        print(f"{what:<72}{verdict}")
    print(f"{options.processes} processes, load when it began: {load:.1f}")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps({f"{n} {s}": t for (n, s), t in times.items()}, indent=1))
    sys.exit(1 if options.check and missed else 0)


if __name__ == "__main__":
    main()
