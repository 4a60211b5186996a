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

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from hosts import Hosts, skip_without_namespaces  # noqa: E402

PODS_OF = sys.argv[1]
TRAIN = str(pathlib.Path(__file__).with_name("train.py"))
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


class TensorFlowTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tensorflow-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hosts = Hosts("mf", "10.79.0").__enter__()
        self.processes = {}
        self.addCleanup(self.remove)

    def remove(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for index in self.hosts.added:
            shutil.rmtree(f"/etc/netns/{self.hosts.name(index)}", ignore_errors=True)
        self.hosts.__exit__()

    def pods(self, strategy, **counts):
        manifest = self.folder / "job.yaml"
        manifest.write_text(JOB.format(strategy=strategy, replicas="".join(
            REPLICA.format(role=role, count=count) for role, count in counts.items())))
        return json.loads(subprocess.run([PODS_OF, manifest], check=True, capture_output=True, text=True).stdout)

    def start(self, pods, mode):
        names = "127.0.0.1 localhost\n" + "".join(
            f"{self.hosts.address(i)} {pod['name']}.tf.ml.svc\n" for i, pod in enumerate(pods))
        for index in range(len(pods)):
            self.hosts.add(index)
            folder = pathlib.Path("/etc/netns") / self.hosts.name(index)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(names)
        for index, pod in enumerate(pods):
            environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
            environment["TF_CONFIG"] = pod["tf_config"]
            environment["GRPC_FAIL_FAST"] = "use_caller"
            environment["CUDA_VISIBLE_DEVICES"] = ""
            with open(self.folder / pod["name"], "w") as log:
                self.processes[pod["name"]] = subprocess.Popen(
                    self.hosts.prefix(index) + [sys.executable, TRAIN, mode], env=environment, stdout=log, stderr=log)

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
        self.start(pods, "MultiWorkerMirrored")
        results = [self.result(pod["name"]) for pod in pods]
        for result in results:
            self.assertEqual(result["replicas"], 3)
            self.assertEqual(result["weights"], results[0]["weights"])
            self.assertLess(result["loss"][-1], 0.1 * result["loss"][0])

    # Strategies of one process: alone it has no TF_CONFIG; beside an evaluator it is a chief that TensorFlow reads.
    def train_here(self, strategy, name, replicas):
        self.assertEqual([pod["tf_config"] for pod in self.pods(strategy, worker=1)], [None])
        pods = self.pods(strategy, chief=1, evaluator=1)
        self.start(pods, strategy)
        chief, evaluator = self.result("tf-chief-0"), self.result("tf-evaluator-0")
        self.assertEqual((chief["strategy"], chief["replicas"]), (name, replicas))
        self.assertEqual((chief["task"], chief["cluster"]), ("chief", ["chief"]))
        self.assertLess(chief["loss"][-1], 0.1 * chief["loss"][0])
        self.assertEqual((evaluator["task"], evaluator["cluster"]), ("evaluator", ["chief", "evaluator"]))

    def test_default(self):
        self.train_here("Default", "_DefaultDistributionStrategy", 1)

    def test_one_device(self):
        self.train_here("OneDevice", "OneDeviceStrategy", 1)

    def test_mirrored(self):
        self.train_here("Mirrored", "MirroredStrategy", 2)

    def test_central_storage(self):
        self.train_here("CentralStorage", "CentralStorageStrategy", 2)

    def test_parameter_server_with_an_evaluator(self):
        pods = self.pods("ParameterServer", chief=1, worker=2, ps=1, evaluator=1)
        self.start(pods, "ParameterServer")
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
    skip_without_namespaces("mf")
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)


if __name__ == "__main__":
    main()
