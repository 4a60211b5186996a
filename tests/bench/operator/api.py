"""A small client of the API server: kept-alive connections per thread, and watches that note when they saw what."""
import http.client
import json
import re
import ssl
import subprocess
import threading
import time
from urllib.parse import urlparse


class Api:
    def __init__(self):
        config = json.loads(subprocess.check_output(["kubectl", "config", "view", "--raw", "-o", "json"]))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server, self.ca = cluster["server"], cluster["certificate-authority"]
        self.tls = ssl.create_default_context(cafile=self.ca)
        self.tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self.address = urlparse(self.server)
        self.local = threading.local()

    def connect(self, timeout):
        return http.client.HTTPSConnection(self.address.hostname, self.address.port, context=self.tls, timeout=timeout)

    def call(self, method, path, body=None, content_type="application/json", ok=(200, 201, 202), timeout=60):
        """The answer as JSON; raises where the status is not one of `ok`. A connection that broke is tried once more."""
        data = None if body is None else json.dumps(body)
        for attempt in (1, 2):
            try:
                if getattr(self.local, "connection", None) is None:
                    self.local.connection = self.connect(timeout)
                elif self.local.connection.sock:
                    self.local.connection.sock.settimeout(timeout)
                self.local.connection.request(method, path, data, {"Content-Type": content_type})
                answer = self.local.connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                self.local.connection = None
                if attempt == 2:
                    raise
        if answer.status not in ok:
            raise RuntimeError(f"{method} {path}: expected one of {ok}, got: {answer.status} {text[:300]!r}")
        return json.loads(text) if text else {}

    def patch(self, path, body, ok=(200,)):
        return self.call("PATCH", path, body, "application/merge-patch+json", ok)

    def writes(self, resources):
        """Requests that created or changed one of `resources`, from all clients since the server started."""
        connection = self.connect(60)
        connection.request("GET", "/metrics")
        total = 0
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith("apiserver_request_total{") and re.search(r'verb="(POST|PUT|PATCH)"', line) and \
                    re.search(r'resource="([^"]*)"', line.replace("subresource", "")).group(1) in resources:
                total += float(line.rsplit(" ", 1)[1])
        return total

    def token(self, namespace, account):
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return self.call("POST", path, {"spec": {"expirationSeconds": 36000}})["status"]["token"]


class World:
    """What one client sees of one namespace: per job (a pod's owner) when each pod was first seen and first ran, and
    per job when each condition was first true, and when its status changed. Ends with the process. Without `phases` it asks for the metadata of pods
    alone, so that a pod's size costs it nothing."""
    METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

    def __init__(self, api, namespace, jobs_path, phases):
        self.api, self.changed = api, threading.Condition()
        self.created, self.running, self.pods, self.gone, self.conditions, self.jobs = {}, {}, {}, set(), {}, {}
        self.writes = {}
        for path, accept, handle in (
                (f"/api/v1/namespaces/{namespace}/pods", "application/json" if phases else self.METADATA, self.on_pod),
                (jobs_path, "application/json", self.on_job)):
            version = api.call("GET", path + "?limit=1")["metadata"]["resourceVersion"]
            threading.Thread(target=self.watch, args=(path, accept, version, handle), daemon=True).start()

    def watch(self, path, accept, version, handle):
        while True:
            try:
                connection = self.api.connect(3600)
                connection.request("GET", f"{path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}",
                                   headers={"Accept": accept})
                stream = connection.getresponse()
                while line := stream.readline():
                    event = json.loads(line)
                    seen = event["object"]
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"watch of {path}: {seen}")
                    version = seen["metadata"].get("resourceVersion", version)
                    if event["type"] != "BOOKMARK":
                        with self.changed:
                            handle(event["type"], seen, time.monotonic())
                            self.changed.notify_all()
            except (http.client.HTTPException, OSError, ValueError):
                time.sleep(0.1)

    def on_pod(self, kind, pod, when):
        uid = pod["metadata"]["uid"]
        job = next((o["name"] for o in pod["metadata"].get("ownerReferences", [])), None)
        if kind == "DELETED":
            self.gone.add(uid)
            self.pods.get(job, {}).pop(uid, None)
            return
        self.created.setdefault(job, {}).setdefault(uid, when)
        self.pods.setdefault(job, {})[uid] = pod["metadata"]["name"]
        if pod.get("status", {}).get("phase") == "Running":
            self.running.setdefault(job, {}).setdefault(uid, when)

    def on_job(self, kind, job, when):
        name = job["metadata"]["name"]
        if kind == "DELETED":
            self.jobs.pop(name, None)
            return
        if job.get("status", {}) != self.jobs.get(name, {}).get("status", {}):
            self.writes.setdefault(name, []).append(when)
        self.jobs[name] = job
        for condition in job.get("status", {}).get("conditions", []):
            if condition["status"] == "True":
                self.conditions.setdefault(condition["type"], {}).setdefault(name, when)

    def wait(self, reached, what, seconds):
        end = time.monotonic() + seconds
        with self.changed:
            while not reached():
                left = end - time.monotonic()
                if left <= 0:
                    raise RuntimeError(f"expected {what} within {seconds} s, got: nothing")
                self.changed.wait(min(left, 1))
