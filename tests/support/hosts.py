"""Several hosts on one machine: network namespaces on one bridge. Also free ports of the loopback. Standard library only.

Namespaces need root and iproute2; rules and rates inside them nftables.
"""
import os
import random
import socket
import subprocess
import sys


CLAIMS = []  # of ports, until this process ends


def free_ports(count):
    """Ports of 127.0.0.1 that nobody listens on, all different. Below those that the kernel gives away, and claimed as
    `meshtrain run` claims its own (operator/local/ports.cc), so that no test beside this one takes them meanwhile."""
    ports = []
    for _ in range(1000):
        if len(ports) == count:
            return ports
        port = random.randrange(10000, 32768)
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0meshtrain-port-{port}")
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        CLAIMS.append(claim)
        ports.append(port)
    raise RuntimeError(f"expected {count} free ports, got: {len(ports)} in 1000 tries")


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Hosts:
    """Hosts 0, 1, ... with the addresses NETWORK.1, NETWORK.2, ...; a context manager that removes them."""

    def __init__(self, tag, network, count=0):
        self.tag = f"{tag}{os.getpid() % 100000}"  # an interface's name holds 15 characters
        self.network = network
        self.count = count
        self.added = []

    def __enter__(self):
        switch = self.name("sw")
        self.added.append("sw")
        try:
            run("ip", "netns", "add", switch)
            run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", switch, "link", "set", "br0", "up")
            for index in range(self.count):
                self.add(index)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for index in reversed(self.added):
            run("ip", "netns", "del", self.name(index), check=False)
        self.added.clear()

    def name(self, index):
        return f"{self.tag}-{index}"

    def address(self, index):
        return f"{self.network}.{index + 1}"

    def add(self, index, address=True):
        """A host more; without an address it is given one later."""
        host, switch = self.name(index), self.name("sw")
        self.added.append(index)
        run("ip", "netns", "add", host)
        run("ip", "-n", host, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", switch)
        run("ip", "-n", switch, "link", "set", f"port{index}", "master", "br0", "up")
        if address:
            self.give(index, self.address(index))
        run("ip", "-n", host, "link", "set", "eth0", "up")
        run("ip", "-n", host, "link", "set", "lo", "up")

    def remove(self, index):
        self.added.remove(index)
        run("ip", "netns", "del", self.name(index), check=False)

    def give(self, index, address):
        run("ip", "-n", self.name(index), "address", "add", f"{address}/24", "dev", "eth0")

    def take(self, index, address):
        run("ip", "-n", self.name(index), "address", "del", f"{address}/24", "dev", "eth0")

    def forget_neighbours(self, index):
        run("ip", "-n", self.name(index), "neigh", "flush", "all")

    def prefix(self, index):
        """What a command line begins with that runs on this host."""
        return ["ip", "netns", "exec", self.name(index)]

    def inside(self, index, *command, check=True):
        return run(*self.prefix(index), *command, check=check)

    def shape(self, index, rate, burst, latency, both=False):
        """Limits what the host sends, and with `both` also what it receives."""
        places = [(self.name(index), "eth0")] + ([(self.name("sw"), f"port{index}")] if both else [])
        for place, device in places:
            run("ip", "netns", "exec", place, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst",
                burst, "latency", latency)


def skip_without_namespaces(tag):
    """Leaves with 77, "skipped" for ctest, where namespaces or nftables cannot be had."""
    try:
        with Hosts(tag, "10.76.0", 1) as hosts:
            hosts.inside(0, "nft", "list", "ruleset")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: network namespaces cannot be made here: {getattr(error, 'stderr', '') or error}")
        sys.exit(77)
