"""Real TensorFlow under the TF_CONFIG that the operator generates, each replica in a network namespace of its own, since
TensorFlow's servers bind the wildcard address. Names resolve by a hosts file, as a headless Service's would.

Needs root and iproute2; skipped (77) where namespaces cannot be made or this Python has no TensorFlow.
Usage: tensorflow_test.py PODS_OF
"""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PODS_OF = sys.argv[1]
TRAIN = str(pathlib.Path(__file__).with_name("train.py"))
NAME = f"mf{os.getpid() % 100000}"
DEADLINE = 300

JOB = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: tf, namespace: ml}}
spec:
  strategy: {strategy}
  replicaSpecs:
{replicas}
"""
REPLICA = "    {role}: {{replicas: {count}, template: {{spec: {{containers: [{{name: tensorflow, image: tf}}]}}}}}}\n"


def ip(*command, check=True):
    return subprocess.run(["ip", *command], check=check, capture_output=True, text=True)


class TensorFlowTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tensorflow-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hosts = []
        self.processes = {}
        self.addCleanup(self.remove)

    def remove(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for host in self.hosts:
            ip("netns", "del", host, check=False)
            shutil.rmtree(f"/etc/netns/{host}", ignore_errors=True)

    def pods(self, strategy, **counts):
        manifest = self.folder / "job.yaml"
        manifest.write_text(JOB.format(strategy=strategy, replicas="".join(
            REPLICA.format(role=role, count=count) for role, count in counts.items())))
        return json.loads(subprocess.run([PODS_OF, manifest], check=True, capture_output=True, text=True).stdout)

    def start(self, pods, mode):
        switch = f"{NAME}-sw"
        self.hosts.append(switch)
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        names = "127.0.0.1 localhost\n" + "".join(f"10.79.0.{i + 1} {pod['name']}.tf.ml.svc\n" for i, pod in enumerate(pods))
        for index, pod in enumerate(pods):
            host = f"{NAME}-{index}"
            self.hosts.append(host)
            ip("netns", "add", host)
            ip("-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{index}", "master", "br0", "up")
            ip("-n", host, "address", "add", f"10.79.0.{index + 1}/24", "dev", "eth0")
            ip("-n", host, "link", "set", "eth0", "up")
            ip("-n", host, "link", "set", "lo", "up")
            folder = pathlib.Path("/etc/netns") / host
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(names)
        for index, pod in enumerate(pods):
            environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
            environment["TF_CONFIG"] = pod["tf_config"]
            environment["GRPC_FAIL_FAST"] = "use_caller"
            environment["CUDA_VISIBLE_DEVICES"] = ""
            with open(self.folder / pod["name"], "w") as log:
                self.processes[pod["name"]] = subprocess.Popen(
                    ["ip", "netns", "exec", f"{NAME}-{index}", sys.executable, TRAIN, mode], env=environment, stdout=log,
                    stderr=log)

    def result(self, name):
        text = (self.folder / name).read_text()
        try:
            code = self.processes[name].wait(timeout=DEADLINE)
            text = (self.folder / name).read_text()
        except subprocess.TimeoutExpired:
            self.fail(f"{name} hangs: {text[-2000:]}")
        self.assertEqual(code, 0, text[-2000:])
        return json.loads([line for line in text.splitlines() if line.startswith("{")][-1])

    def test_multi_worker_mirrored(self):
        pods = self.pods("MultiWorkerMirrored", chief=1, worker=2)
        self.start(pods, "mirrored")
        results = [self.result(pod["name"]) for pod in pods]
        for result in results:
            self.assertEqual(result["replicas"], 3)
            self.assertEqual(result["weights"], results[0]["weights"])
            self.assertLess(result["loss"][-1], 0.1 * result["loss"][0])

    def test_parameter_server_with_an_evaluator(self):
        pods = self.pods("ParameterServer", chief=1, worker=2, ps=1, evaluator=1)
        self.start(pods, "parameter-server")
        result = self.result("tf-chief-0")
        self.assertLess(result["last"], 0.1 * result["first"])
        evaluator = self.result("tf-evaluator-0")
        self.assertIn("evaluator", evaluator["cluster"])
        for pod in pods:
            listed = json.loads(pod["tf_config"])["cluster"]
            self.assertEqual("evaluator" in listed, pod["role"] == "evaluator", pod)


def main():
    if importlib.util.find_spec("tensorflow") is None:
        print("skipped: this Python has no TensorFlow")
        sys.exit(77)
    probe = f"{NAME}-probe"
    try:
        ip("netns", "add", probe)
        ip("netns", "del", probe)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: network namespaces cannot be made here: {error}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)


if __name__ == "__main__":
    main()
