"""Processes as /proc has them, and how they stand still while a test looks. Standard library only."""
import contextlib
import ipaddress
import os
import pathlib
import signal
import sys
import time

STILL = 10  # seconds until all threads stand still


def open_files(pid):
    """Where the file descriptors of a process lead: paths, "socket:[INODE]", ..."""
    found = []
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    return found


def address(text):
    """The address of a line of /proc/net/tcp and tcp6, whose 32-bit words stand in this machine's order."""
    words = [bytes.fromhex(text[i:i + 8]) for i in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(word[::-1] if sys.byteorder == "little" else word for word in words))


def listening(pid):
    """(address, port) of the TCP sockets on which a process listens."""
    return sorted(((address(host), port) for state, host, port, _ in endpoints(pid) if state == "0A"), key=str)


def sockets(pid):
    """(state, own port, peer's port) of a process' TCP sockets."""
    return [(state, port, remote) for state, _, port, remote in endpoints(pid)]


def endpoints(pid):
    """(state, own address as the table has it, own port, peer's port) of a process' TCP sockets."""
    inodes = {file[len("socket:["):-1] for file in open_files(pid) if file.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                host, port = fields[1].rsplit(":", 1)
                found.append((fields[3], host, int(port, 16), int(fields[2].rsplit(":", 1)[1], 16)))
    return found


def listening_ports(pid):
    """The TCP ports on which a process listens."""
    return sorted({local for state, local, _ in sockets(pid) if state == "0A"})


def connected(pid, port):
    """Whether a process holds an established TCP connection to `port`."""
    return any(state == "01" and remote == port for state, _, remote in sockets(pid))


def stands_still(pid):
    """Every thread is stopped, or will be before it leaves the kernel."""
    for thread in pathlib.Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (thread / "stat").read_text().rsplit(")", 1)[1].split()[0] not in "TDZX":
                return False
    return True


@contextlib.contextmanager
def frozen(processes):
    """Those that live stand still inside, for as short as that takes: nothing changes while it is looked at."""
    living = [process for process in processes if process.poll() is None]
    try:
        for process in living:
            process.send_signal(signal.SIGSTOP)
        end = time.monotonic() + STILL
        while not all(stands_still(process.pid) for process in living):
            assert time.monotonic() < end, "expected processes that stand still, got: running threads"
        yield
    finally:
        for process in living:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
