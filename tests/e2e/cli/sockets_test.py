#!/usr/bin/env python3
"""Where the processes of a job listen, as the kernel's tables have it.   sockets_test.py BIN_FOLDER TESTDATA"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "support"))
from hosts import free_ports  # noqa: E402
from process_table import descendants, listening  # noqa: E402
from run_test import RunCase  # noqa: E402: it takes its arguments
from cli_case import BIN, TIMEOUT  # noqa: E402


def place(pid):
    """Its name ("worker-0") and its cluster; None for a process that is no replica."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    except OSError:
        return None
    config = re.search(r"(?:^|\0)TF_CONFIG=([^\0]*)", text)
    if not config:
        return None
    task = json.loads(config[1])["task"]
    return f"{task['type']}-{task['index']}", json.loads(config[1])["cluster"]


class Loopback(RunCase):
    """`meshtrain run`: nothing can be reached from elsewhere."""

    def look(self, child, replicas):
        """(address, port) by replica, and the ports that the job gave out."""
        found, given = {}, set()
        for pid in descendants(child.pid):
            known = place(pid)
            if known is None:
                continue
            name, cluster = known
            found.setdefault(name, set()).update(listening(pid))
            given.update(int(host.rsplit(":", 1)[1]) for hosts in cluster.values() for host in hosts)
        self.assertEqual(set(found), set(replicas))
        everything = set(listening(child.pid)).union(*found.values())
        for host, port in everything:
            self.assertTrue(host.is_loopback, f"{host} port {port}: expected an address of the loopback")
        return found, given

    def stop(self, child):
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=TIMEOUT)
        self.assertEqual(child.returncode, 143, err)

    def test_a_mesh_listens_on_the_loopback_alone(self):
        roles = lambda t: t.replace("worker: {replicas: 1}", "chief: {replicas: 1}, worker: {replicas: 3}")
        child = self.start(self.manifest(mesh="{batch: 4}", epochs=100000, every=1000000, edit=lambda t: roles(t).replace(
            "train: {epochs", "train: {validation: false, epochs")))
        self.wait_for_step(3)
        found, given = self.look(child, ["chief-0", "worker-0", "worker-1", "worker-2"])
        ports = {name: {port for _, port in sockets} for name, sockets in found.items()}
        self.assertTrue(given & ports["chief-0"], "the chief's rendezvous")
        for name in ports:
            self.assertTrue(ports[name] - given, f"{name}'s links for tensors, or its endpoints")
        self.stop(child)

    def test_parameter_servers_workers_and_evaluator_listen_on_the_loopback_alone(self):
        roles = ", ".join(f"{name}: {{replicas: {count}}}" for name, count in (("chief", 1), ("worker", 2), ("ps", 2), ("evaluator", 1)))
        child = self.start(self.manifest(mesh="", epochs=100000, every=1000000, edit=lambda t: t.replace("    mesh: \n", "").replace(
            "replicaSpecs: {worker: {replicas: 1}}", "strategy: ParameterServer\n  replicaSpecs: {%s}" % roles)))
        self.wait_for_step(3)
        found, given = self.look(child, ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1", "evaluator-0"])
        for name in ("worker-0", "worker-1", "ps-0", "ps-1"):
            self.assertTrue(given & {port for _, port in found[name]}, f"{name}'s service")
        self.stop(child)


class Everywhere(RunCase):
    """In a cluster, where peers have names: on all addresses, IPv6's and IPv4's."""

    def start_worker(self, cluster, task, edit):
        manifest = self.manifest(mesh="", batch=20, edit=edit)
        config = {"cluster": cluster, "task": task}
        child = subprocess.Popen(
            [BIN / "meshtrain-worker", "-f", manifest, "--output", str(self.folder / "out"), "--metrics-address", "127.0.0.1:0"],
            env={"PATH": os.environ["PATH"], "TF_CONFIG": json.dumps(config), "MESHTRAIN_JOB": "test/sockets"},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        self.addCleanup(child.stderr.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        return child

    def expect_everywhere(self, child, ports):
        """Listens at `ports` more than at the loopback: at each can be called by either family."""
        everywhere = lambda: {port for host, port in listening(child.pid) if host.is_unspecified}
        self.wait_for("sockets", lambda: child.poll() is not None or len(everywhere()) >= ports)
        self.assertIsNone(child.poll())
        for port in everywhere():
            socket.create_connection(("127.0.0.1", port), TIMEOUT).close()
            if socket.has_ipv6 and Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text():
                socket.create_connection(("::1", port), TIMEOUT).close()

    def test_a_mesh(self):
        port, = free_ports(1)
        child = self.start_worker({"worker": [f"sockets-worker-0.test:{port}", "sockets-worker-1.test:2222"]},
                                  {"type": "worker", "index": 0},
                                  lambda t: t.replace("    mesh: \n", "    mesh: {batch: 2}\n"))
        self.expect_everywhere(child, 2)

    def test_parameter_servers_and_workers(self):
        servers = lambda t: t.replace("    mesh: \n", "").replace(
            "  replicaSpecs: {worker", f"  strategy: ParameterServer\n  replicaSpecs: {{chief: {{replicas: 1}}, ps: {{replicas: 1}}, worker").replace(
            "checkpoint: {", f"checkpoint: {{path: {self.folder}/saved, ")
        for kind in ("ps", "worker"):
            port, = free_ports(1)
            child = self.start_worker({"chief": ["sockets-chief-0.test:2222"], "worker": [f"sockets-worker-0.test:{port}"],
                                       "ps": [f"sockets-ps-0.test:{port}"]}, {"type": kind, "index": 0}, servers)
            self.expect_everywhere(child, 1)


if __name__ == "__main__":
    os.environ.pop("TF_CONFIG", None)
    unittest.main(verbosity=2, defaultTest=["Loopback", "Everywhere"])
