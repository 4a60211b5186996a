"""table.py RESULTS: the table of both operators' figures, with the targets; ends with 1 where one was missed."""
import json
import sys


def get(results, *path):
    for part in path:
        if not isinstance(results, dict) or part not in results:
            return None
        results = results[part]
    return results


def main():
    results = json.load(open(sys.argv[1]))
    ours, peer, options = results.get("meshtrain", {}), results.get("training-operator", {}), results["options"]
    jobs, many, big = options["jobs"], options["many"], options["big"]
    # Name, path, digits, target: at most so much, or a share of the peer's figure.
    rows = [
        (f"{jobs} jobs: last of {3 * jobs} pods created, s", ("burst", "wall_s"), 2, ("peer", 1)),
        ("  jobs a second", ("burst", "jobs_per_s"), 1, None),
        ("  CPU of the operator, s", ("burst", "cpu_s"), 2, ("peer", 1 / 3)),
        ("  peak memory so far, MiB", ("burst", "peak_mib"), 1, None),
        ("one job: first pod, p50, ms", ("first_pod_ms", "p50"), 1, None),
        ("  p90", ("first_pod_ms", "p90"), 1, None),
        ("one job: all 3 pods, p50, ms", ("all_pods_ms", "p50"), 1, ("peer", 0.8)),
        ("  p90", ("all_pods_ms", "p90"), 1, ("peer", 0.8)),
        ("resident when idle, MiB", ("idle_mib",), 1, ("most", 15)),
        (f"resident with {many} jobs, {3 * many} pods, MiB", ("many", "rss_mib"), 1, ("most", 50)),
        ("  peak", ("many", "peak_mib"), 1, None),
        (f"  the jobs created, s", ("many", "wall_s"), 1, None),
        ("each pod of a big job, KiB", ("kib_per_pod",), 2, ("most", 2)),
        ("creations and updates per job, to its success", ("writes_per_job",), 2, ("most", 9)),
        ("  all requests per job", ("calls_per_job",), 2, None),
        ("requests in 10 s without news", ("unchanged_calls",), 0, ("most", 0)),
        (f"writes of a new process over {many} jobs", ("restart_writes",), 0, ("most", 0)),
        (f"a 1-pod job beside one of {big} pods: its pod, s", ("small_beside_big_s",), 3, ("most", 1)),
        (f"  beside one of {big} pods that come to run", ("small_beside_restless_s",), 3, ("most", 1)),
        ("  resident then, MiB", ("big", "rss_mib"), 1, ("most", 100)),
        ("  peak", ("big", "peak_mib"), 1, ("most", 100)),
        (f"{many} jobs that tell how far they are: CPU, cores", ("reporting", "cores"), 3, ("most", 0.2)),
        ("  writes of a status in 60 s, the most of a job", ("reporting", "most_writes"), 0, ("most", 13)),
        ("  the fewest", ("reporting", "least_writes"), 0, None),
        ("  of all, a second", ("reporting", "writes_per_s"), 1, None),
        ("  resident then, MiB", ("reporting", "rss_mib"), 1, None),
        (f"1000 fake nodes: {many} jobs Running, s", ("nodes", "running_s"), 1, None),
        ("  statuses that are wrong", ("nodes", "wrong_statuses"), 0, ("most", 0)),
        ("  CPU of the operator, s", ("nodes", "cpu_s"), 2, None),
        ("  peak memory, MiB", ("nodes", "peak_mib"), 1, None),
    ]
    print(f"{'':52} {'ours':>9} {'peer':>9}  target")
    missed = 0
    for name, path, digits, target in rows:
        mine, theirs = get(ours, *path), get(peer, *path)
        if mine is None and (options.get("only_big") or options.get("only_reporting")):
            continue
        show = ["-" if v is None else f"{v:.{digits}f}" for v in (mine, theirs)]
        verdict = ""
        if target and mine is not None:
            limit = target[1] if target[0] == "most" else None if theirs is None else target[1] * theirs
            if limit is not None:
                good = round(mine, 6) <= limit
                missed += not good
                verdict = f"<= {limit:.{max(digits, 1)}f}" + ("" if good else "  missed")
        print(f"{name:52} {show[0]:>9} {show[1]:>9}  {verdict}")
    print(f"load of the machine after each: {get(ours, 'load')}, {get(peer, 'load')}")
    return 1 if missed else 0


sys.exit(main())
