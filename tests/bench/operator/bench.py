"""Measures operators on a running API server and prints one table; `run` starts it."""
import argparse
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import threading
import time

from api import Api, World
from operators import Meshtrain, TrainingOperator, free_port

THREADS = 4


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def milliseconds(values):
    return {"p50": 1000 * quantile(values, 0.5), "p90": 1000 * quantile(values, 0.9)}


def difference(before, after):
    return {method: after[method] - before.get(method, 0) for method in after}


class Run:
    """One operator in one namespace of its own."""

    def __init__(self, api, operator, options, last):
        self.api, self.operator, self.options, self.last = api, operator, options, last
        self.namespace = f"b-{operator.name}"
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.base = f"/api/v1/namespaces/{self.namespace}"
        while "metadata" not in api.call("GET", f"{self.base}/serviceaccounts/default", ok=(200, 404)) or \
                api.call("GET", f"{self.base}/serviceaccounts/default", ok=(200, 404)).get("kind") != "ServiceAccount":
            time.sleep(0.1)
        self.jobs_path = operator.jobs_path(self.namespace)
        self.world = World(api, self.namespace, self.jobs_path, phases=bool(options.kwok))
        self.results = {}

    def create(self, name, workers=2, chief=True):
        self.api.call("POST", self.jobs_path, self.operator.job(name, workers, chief))
        return time.monotonic()

    def create_all(self, names):
        with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            return dict(zip(names, pool.map(self.create, names)))

    def all_created(self, names, pods=3, seconds=900):
        self.world.wait(lambda: all(len(self.world.created.get(name, ())) >= pods for name in names),
                        f"{pods} pods of each of {len(names)} jobs", seconds)

    def all_true(self, names, condition, seconds=900):
        self.world.wait(lambda: all(name in self.world.conditions.get(condition, {}) for name in names),
                        f"{condition} on {len(names)} jobs", seconds)

    def clear(self):
        """Leaves nothing of this namespace for what is measured next."""
        for path in (self.jobs_path, f"{self.base}/pods"):
            self.api.call("DELETE", path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0}, timeout=600)
        self.world.wait(lambda: not any(self.world.pods.values()) and not self.world.jobs, "an empty namespace", 900)
        for service in self.api.call("GET", f"{self.base}/services")["items"]:
            self.api.call("DELETE", f"{self.base}/services/{service['metadata']['name']}", ok=(200, 404))

    def single(self, name):
        """Seconds from before its creation to its first pod, and to its last."""
        start = time.monotonic()
        self.create(name)
        self.all_created([name])
        seen = sorted(self.world.created[name].values())
        return seen[0] - start, seen[-1] - start

    def burst(self):
        names = [f"burst-{i}" for i in range(self.options.jobs)]
        before = self.operator.usage()
        start = time.monotonic()
        born = self.create_all(names)
        self.all_created(names)
        last = max(max(self.world.created[name].values()) for name in names)
        time.sleep(2)  # statuses follow
        after = self.operator.usage()
        self.results["burst"] = {
            "wall_s": last - start, "jobs_per_s": len(names) / (last - start), "cpu_s": after["cpu"] - before["cpu"],
            "peak_mib": after["peak"],
            "first_pod_p50_s": quantile([min(self.world.created[n].values()) - born[n] for n in names], 0.5)}

    def whole_life(self):
        """Creations and updates from creation to success, as the API server counts them: of pods, Services and jobs,
        less our own."""
        names = [f"life-{i}" for i in range(20)]
        time.sleep(6)  # counts of the jobs before are written at most every 5 s
        writes, before = self.api.writes({"pods", "services", self.operator.plural}), self.operator.calls()
        self.create_all(names)
        self.all_created(names)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

        def set_status(pod, phase, state):
            self.api.patch(f"{self.base}/pods/{pod}/status", {"status": {
                "phase": phase, "startTime": now,
                "conditions": [{"type": "Ready", "status": "True" if phase == "Running" else "False"}],
                "containerStatuses": [{"name": "tensorflow", "image": "i", "imageID": "i", "restartCount": 0,
                                       "ready": phase == "Running", "state": state}]}})

        pods = {name: sorted(self.world.pods[name].values()) for name in names}
        for name in names:
            for pod in pods[name]:
                set_status(pod, "Running", {"running": {"startedAt": now}})
        self.all_true(names, "Running", 60)
        for name in names:
            set_status(pods[name][0], "Succeeded",  # the chief sorts first
                       {"running": None, "terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now}})
        self.all_true(names, "Succeeded", 60)
        time.sleep(2)
        calls = self.quiet(difference(before, self.operator.calls()))
        writes = self.api.writes({"pods", "services", self.operator.plural}) - writes
        self.results["writes_per_job"] = (writes - 5 * len(names)) / len(names)  # the job, 3 pods run, the chief ends
        self.results["calls_per_job"] = sum(calls.values()) / len(names)

    def quiet(self, calls):
        """Without the renewals of the lease, which are all that our operator uses PUT for."""
        if self.operator.name == "meshtrain":
            calls.pop("PUT", None)
        return calls

    def settle(self, seconds=300):
        """Until the operator has written nothing for six seconds: counts are written at most every five, and a thousand
        of them take a busy API server a while."""
        end, since, last = time.monotonic() + seconds, time.monotonic(), None
        while time.monotonic() - since < 6:
            calls = self.quiet(self.operator.calls())
            writes = sum(count for method, count in calls.items() if method != "GET")
            if writes != last:
                since, last = time.monotonic(), writes
            if time.monotonic() > end:
                raise RuntimeError(f"expected {self.operator.name} to come to rest within {seconds} s, got: still writing")
            time.sleep(0.5)

    def unchanged(self):
        """Requests over ten seconds in which nothing happens; watches that end and begin anew are GETs."""
        time.sleep(3)
        before = self.operator.calls()
        time.sleep(10)
        calls = self.quiet(difference(before, self.operator.calls()))
        self.results["unchanged_calls"] = sum(calls.values())

    def many(self):
        names = [f"many-{i}" for i in range(self.options.many)]
        start = time.monotonic()
        self.create_all(names)
        self.all_created(names)
        last = max(max(self.world.created[name].values()) for name in names)
        time.sleep(2)
        self.settle()
        usage = self.operator.usage()
        self.results["many"] = {"wall_s": last - start, "rss_mib": usage["rss"],
                                "peak_mib": usage["peak"]}

    def resync(self):
        """A new process looks at everything that is there: nothing is to be written. Events are among these writes."""
        self.operator.stop()
        self.operator.start()
        time.sleep(5)
        calls = self.quiet(self.operator.calls())
        self.results["restart_writes"] = sum(count for method, count in calls.items() if method != "GET")
        self.results["restart_rss_mib"] = self.operator.usage()["rss"]

    def big_beside_small(self):
        self.operator.stop()
        self.operator.start()
        self.create("warm", 50, chief=False)  # connections and threads are not counted as pods
        self.all_created(["warm"], 50)
        time.sleep(3)
        before = self.operator.usage()["rss"]
        self.create("big", self.options.big, chief=False)
        self.world.wait(lambda: len(self.world.created.get("big", ())) >= 20, "the big job to be under way", 120)
        self.results["small_beside_big_s"] = self.pod_of_small("small")
        self.all_created(["big"], self.options.big, 1800)
        time.sleep(3)
        after = self.operator.usage()["rss"]
        self.results["kib_per_pod"] = (after - before) * 1024 / self.options.big
        self.small_beside_restless()
        usage = self.operator.usage()
        self.results["big"] = {"rss_mib": usage["rss"], "peak_mib": usage["peak"]}

    def pod_of_small(self, name):
        """Seconds from before the creation of a 1-pod job until a GET finds its pod. Asked for, not watched: with large
        pods the server's watches run a second or two behind."""
        start = time.monotonic()
        self.create(name, 1, chief=False)
        while self.api.call("GET", f"{self.base}/pods/{name}-worker-0", ok=(200, 404))["kind"] != "Pod":
            time.sleep(0.005)
        return time.monotonic() - start

    def small_beside_restless(self):
        """The same while pods of the big job, which are all there, come to run one after another: each is a look at
        them all."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        running = {"status": {"phase": "Running", "startTime": now, "conditions": [{"type": "Ready", "status": "True"}]}}
        pods = iter(sorted(self.world.pods["big"].values()))
        over = threading.Event()

        def run_some():
            while not over.is_set() and (pod := next(pods, None)):
                self.api.patch(f"{self.base}/pods/{pod}/status", running)
        threads = [threading.Thread(target=run_some) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        self.results["small_beside_restless_s"] = max(self.pod_of_small(f"small-{i}") for i in range(10))
        over.set()
        for thread in threads:
            thread.join()

    def reporting(self):
        """Jobs that run and move on: what the operator takes to tell of them all."""
        leaders = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(__file__), "leaders.py")],
                                   stdout=subprocess.PIPE, text=True)
        try:
            port = int(leaders.stdout.readline())
            names = [f"tells-{i}" for i in range(self.options.many)]
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda name: self.api.call("POST", self.jobs_path, self.operator.reporting_job(name, port)), names))
                self.all_created(names, 1)
                now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                running = {"status": {"phase": "Running", "startTime": now, "podIP": "127.0.0.1",
                                      "podIPs": [{"ip": "127.0.0.1"}],
                                      "conditions": [{"type": "Ready", "status": "True"}]}}
                list(pool.map(lambda name: self.api.patch(f"{self.base}/pods/{name}-worker-0/status", running), names))
            self.world.wait(lambda: all(self.world.jobs[name].get("status", {}).get("progress", {}).get("step", 0) > 0 for name in names),
                            f"progress of {len(names)} jobs", 300)
            time.sleep(10)
            start, before = time.monotonic(), self.operator.usage()["cpu"]
            time.sleep(60)
            end, after = time.monotonic(), self.operator.usage()["cpu"]
            counts = [sum(start <= at <= end for at in self.world.writes[name]) for name in names]
            self.results["reporting"] = {
                "cores": (after - before) / (end - start), "most_writes": max(counts), "least_writes": min(counts),
                "writes_per_s": sum(counts) / (end - start), "rss_mib": self.operator.usage()["rss"]}
        finally:
            leaders.kill()
            leaders.wait()

    def on_api_server_alone(self):
        self.operator.start()
        if self.options.only_reporting:
            self.reporting()
            self.operator.stop()
            return
        if self.options.only_big:
            self.big_beside_small()
            self.operator.stop()
            return
        time.sleep(3)
        self.results["idle_mib"] = self.operator.usage()["rss"]
        for step in (self.burst, self.whole_life, self.unchanged):
            step()
        self.clear()
        self.many()
        self.resync()
        self.clear()
        if self.operator.name == "meshtrain":  # the peer asks nobody how far a job is
            self.reporting()
            self.clear()
        self.big_beside_small()
        self.operator.stop()
        if not self.last:  # else the API server ends
            self.clear()

    def on_nodes(self):
        self.operator.start()
        names = [f"many-{i}" for i in range(self.options.many)]
        start = time.monotonic()
        before = self.operator.usage()
        self.create_all(names)
        self.all_true(names, "Running")
        time.sleep(5)
        after = self.operator.usage()
        jobs = {job["metadata"]["name"]: job["status"] for job in self.api.call("GET", self.jobs_path)["items"]}
        wrong = 0
        for name in names:
            counts = {role.lower(): status.get("active", 0)
                      for role, status in jobs[name].get("replicaStatuses", {}).items()}
            true = {c["type"] for c in jobs[name]["conditions"] if c["status"] == "True"}
            wrong += counts != {"chief": 1, "worker": 2} or not {"Created", "Running"} <= true or \
                bool(true & {"Failed", "Succeeded", "Restarting", "Suspended"})
        self.results["nodes"] = {
            "running_s": max(self.world.conditions["Running"][name] for name in names) - start,
            "wrong_statuses": wrong, "cpu_s": after["cpu"] - before["cpu"], "peak_mib": after["peak"]}
        self.operator.stop()
        if not self.last:
            self.clear()


def take_turns(runs, jobs):
    """One job after another of each operator in turn, so that all meet the same moments of the machine. While one is
    at work the others stand still."""
    seconds = {run.namespace: [] for run in runs}
    try:
        for run in runs:
            run.operator.start()
        for i in range(jobs):
            for run in runs if i % 2 == 0 else reversed(runs):
                for other in runs:
                    other.operator.process.send_signal(signal.SIGCONT if other is run else signal.SIGSTOP)
                time.sleep(0.3)
                seconds[run.namespace].append(run.single(f"single-{i}"))
    finally:
        for run in runs:
            if run.operator.process and run.operator.process.poll() is None:
                run.operator.process.send_signal(signal.SIGCONT)
                run.operator.stop()
    for run in runs:
        first, last = zip(*seconds[run.namespace])
        run.results.update(first_pod_ms=milliseconds(first), all_pods_ms=milliseconds(last))
        run.clear()


def start_kwok(api, binary, folder, nodes):
    """KWOK and its fake nodes, all Ready."""
    log = open(os.path.join(folder, "kwok.log"), "w")
    process = subprocess.Popen(
        [binary, f"--kubeconfig={os.environ['KUBECONFIG']}", "--manage-all-nodes=false",
         "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--cidr=10.128.0.0/14",
         "--node-ip=127.0.0.1", "--node-port=0", f"--server-address=127.0.0.1:{free_port()}",
         "--node-lease-duration-seconds=300"], stdout=log, stderr=log)
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110"}

    def create(i):
        name = f"kwok-{i:04d}"
        api.call("POST", "/api/v1/nodes", {
            "metadata": {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"},
                         "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "status": {"capacity": capacity, "allocatable": capacity}})
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(nodes)))
    end = time.monotonic() + 300
    while True:
        items = api.call("GET", "/api/v1/nodes")["items"]
        ready = sum(any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions", []))
                    for n in items)
        if ready >= nodes:
            return process
        if time.monotonic() > end or process.poll() is not None:
            raise RuntimeError(f"expected {nodes} nodes Ready, got: {ready}")
        time.sleep(0.5)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="for logs and kubeconfigs")
    parser.add_argument("--results", required=True, help="JSON that grows with each part")
    parser.add_argument("--operator", required=True)
    parser.add_argument("--peer", help="prefix of training-operator")
    parser.add_argument("--kwok", help="the binary; then the part on fake nodes is measured, else the other")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--big", type=int, default=2000)
    parser.add_argument("--single", type=int, default=20)
    parser.add_argument("--only-big", action="store_true", help="nothing but the job of --big pods")
    parser.add_argument("--only-reporting", action="store_true", help="nothing but jobs that tell how far they are")
    options = parser.parse_args()
    api = Api()
    kwok = start_kwok(api, options.kwok, options.folder, 1000) if options.kwok else None
    results = json.load(open(options.results)) if os.path.exists(options.results) else {}
    operators = [Meshtrain(api, options.folder, options.operator)]
    if options.peer:
        operators.append(TrainingOperator(api, options.folder, options.peer))
    runs = [Run(api, operator, options, last=operator is operators[-1]) for operator in operators]
    try:
        if not kwok and not options.only_big and not options.only_reporting:
            with operators[0].without_admission():
                take_turns(runs, options.single)
        for one in runs:
            operator = one.operator
            try:
                one.on_nodes() if options.kwok else one.on_api_server_alone()
            finally:
                results.setdefault(operator.name, {}).update(one.results, load=os.getloadavg()[0])
                if operator.process and operator.process.poll() is None:
                    operator.stop()
    finally:
        if kwok:
            kwok.kill()
            kwok.wait()
        results["options"] = {name: getattr(options, name) for name in ("jobs", "many", "big", "single", "only_big", "only_reporting")}
        with open(options.results, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
