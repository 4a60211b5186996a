"""The two operators as processes under their own ServiceAccounts, and what can be read of them."""
import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import time
import urllib.request

POD = {"spec": {"terminationGracePeriodSeconds": 0, "containers": [
    {"name": "tensorflow", "image": "localhost/none:1", "command": ["sleep", "3600"]}]}}


def kubectl(*arguments, text=None):
    done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"kubectl {arguments}: {done.stderr}")
    return done.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(reached, what, seconds):
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise RuntimeError(f"expected {what} within {seconds} s, got: nothing")
        time.sleep(0.05)


class Operator:
    """One operator process; subclasses say what it is and how its jobs look."""

    def __init__(self, api, folder):
        self.api, self.folder, self.process = api, folder, None
        self.metrics = free_port()

    def jobs_path(self, namespace):
        return f"/apis/{self.group}/v1/namespaces/{namespace}/{self.plural}"

    def kubeconfig(self, namespace, account):
        path = os.path.join(self.folder, f"{self.name}.kubeconfig")
        user = {"token": self.api.token(namespace, account)}
        cluster = {"server": self.api.server, "certificate-authority": self.api.ca}
        with open(path, "w") as f:
            json.dump({"apiVersion": "v1", "kind": "Config", "current-context": "c",
                       "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}],
                       "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}, f)
        return path

    def spawn(self, command, environment):
        self.log = os.path.join(self.folder, f"{self.name}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)

    def logged(self, text):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended: {open(self.log).read()[-2000:]}")
        return re.search(text, open(self.log).read())

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def usage(self):
        """cpu seconds so far, resident and peak MiB."""
        status = dict(line.split(":", 1) for line in open(f"/proc/{self.process.pid}/status"))
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return {"cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
                "rss": int(status["VmRSS"].split()[0]) / 1024, "peak": int(status["VmHWM"].split()[0]) / 1024}

    def calls(self):
        """Requests by method, from client-go's counter, which both have. Renewals of the lease are among the PUTs."""
        out = {}
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30).read().decode()
        for line in page.splitlines():
            if line.startswith("rest_client_requests_total{"):
                method = re.search(r'method="([A-Z]+)"', line).group(1)
                out[method] = out.get(method, 0) + float(line.rsplit(" ", 1)[1])
        return out


class Meshtrain(Operator):
    name, group, plural = "meshtrain", "meshtrain.dev", "trainingjobs"

    def __init__(self, api, folder, binary):
        super().__init__(api, folder)
        self.binary = binary
        kubectl("apply", "--server-side", "-k", "deploy/base")
        kubectl("wait", "--for=condition=Established", "crd/trainingjobs.meshtrain.dev", "--timeout=30s")

    @contextlib.contextmanager
    def without_admission(self):
        """Without the policy that asks whether a job's creator may create pods, as the peer is without its webhook."""
        kubectl("delete", "validatingadmissionpolicybinding", "meshtrain-pods")
        time.sleep(3)  # the API server watches its policies
        yield
        kubectl("apply", "--server-side", "-k", "deploy/base")
        time.sleep(3)

    def start(self):
        self.spawn([self.binary, "--kubeconfig", self.kubeconfig("meshtrain-system", "meshtrain"),
                    "--metrics-address", f"127.0.0.1:{self.metrics}", "--leader-elect-namespace", "meshtrain-system",
                    "--leader-elect-name", "meshtrain"], {})
        wait_until(lambda: self.logged("watching"), "the operator to watch", 60)

    def reporting_job(self, name, port):
        """Of one worker, which is asked at this port how far it is."""
        job = self.job(name, 1, chief=False)
        container = POD["spec"]["containers"][0] | {"ports": [{"name": "meshtrain-http", "containerPort": port}]}
        job["spec"]["replicaSpecs"]["worker"]["template"] = {"spec": POD["spec"] | {"containers": [container]}}
        return job

    def job(self, name, workers, chief=True):
        roles = {"worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": POD}}
        if chief:
            roles["chief"] = {"replicas": 1, "restartPolicy": "OnFailure", "template": POD}
        return {"apiVersion": "meshtrain.dev/v1", "kind": "TrainingJob", "metadata": {"name": name},
                "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "replicaSpecs": roles}}


class TrainingOperator(Operator):
    """Kubeflow's, with its client's limits lifted (at its defaults, 20 requests a second, 200 jobs take it two
    minutes). Its validating webhook is kept out of the way, which only helps it."""
    name, group, plural = "training-operator", "kubeflow.org", "tfjobs"
    CERTIFICATES = "/tmp/k8s-webhook-server/serving-certs"  # where it waits for what a kubelet would mount

    def __init__(self, api, folder, prefix):
        super().__init__(api, folder)
        self.binary = os.path.join(prefix, "bin", "training-operator")
        text = kubectl("kustomize", os.path.join(prefix, "manifests", "overlays", "standalone"))
        text = kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", text=text)
        kept, at, decoder = [], 0, json.JSONDecoder()
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            item, at = decoder.raw_decode(text, at)
            for one in item["items"] if item["kind"] == "List" else [item]:
                if one["kind"] == "Deployment":
                    continue
                if one["kind"] == "ValidatingWebhookConfiguration":
                    for hook in one["webhooks"]:
                        hook["namespaceSelector"] = {"matchLabels": {"no-such-label": "x"}}
                kept.append(one)
        subprocess.run(["kubectl", "create", "namespace", "kubeflow"], capture_output=True, timeout=60)
        kubectl("apply", "--server-side", "--force-conflicts", "-f", "-",
                text=json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}))
        kubectl("wait", "--for=condition=Established", "crd/tfjobs.kubeflow.org", "--timeout=30s")

    def start(self):
        health = free_port()
        self.spawn([self.binary, f"--metrics-bind-address=127.0.0.1:{self.metrics}",
                    f"--health-probe-bind-address=127.0.0.1:{health}", f"--webhook-server-port={free_port()}",
                    "--enable-scheme=tfjob", "--kube-api-qps=1000", "--kube-api-burst=2000", "--controller-threads=8"],
                   {"KUBECONFIG": self.kubeconfig("kubeflow", "training-operator"), "MY_POD_NAMESPACE": "kubeflow"})
        secret = {}

        def filled():
            self.logged("")
            got = self.api.call("GET", "/api/v1/namespaces/kubeflow/secrets/training-operator-webhook-cert",
                                ok=(200, 404))
            secret.update(got.get("data") or {})
            return "tls.crt" in secret
        wait_until(filled, "the peer's certificate", 60)
        os.makedirs(self.CERTIFICATES, exist_ok=True)
        for key, value in secret.items():
            with open(os.path.join(self.CERTIFICATES, key), "wb") as f:
                f.write(base64.b64decode(value))
        wait_until(lambda: self.logged('"worker count"|Starting workers'), "the peer to start its workers", 90)

    def job(self, name, workers, chief=True):
        roles = {"Worker": {"replicas": workers, "restartPolicy": "OnFailure", "template": POD}}
        if chief:
            roles["Chief"] = {"replicas": 1, "restartPolicy": "OnFailure", "template": POD}
        return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": name},
                "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "tfReplicaSpecs": roles}}
