"""Processes as /proc has them, and how they stand still while a test looks. Standard library only."""
import contextlib
import ipaddress
import os
import pathlib
import signal
import sys
import time

STILL = 10  # seconds until all threads stand still
SLICE = 1_000_000  # nanoseconds on a core
SLICE_WAIT = 0.5  # seconds: who has not run by then waits for something else


class Running:
    """A process that somebody else started, with the face of a subprocess.Popen."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        """None while it lives."""
        try:
            state = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return 0
        return 0 if state in "ZX" else None

    def send_signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def descendants(pid):
    """Of a process, whichever session they are in."""
    found = []
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended
            for child in thread.read_text().split():
                found += [int(child)] + descendants(int(child))
    return found


def program_below(pid, name):
    """The descendant of a process that runs the program `name`; None while there is none."""
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(f"/proc/{child}/exe")) == name:
                return Running(child)
    return None


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


def stop(processes):
    """Returns when they stand still (SIGSTOP), or have ended."""
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    end = time.monotonic() + STILL
    while not all(process.poll() is not None or stands_still(process.pid) for process in processes):
        assert time.monotonic() < end, "expected processes that stand still, got: running threads"


@contextlib.contextmanager
def frozen(processes):
    """Those that live stand still inside, for as short as that takes: nothing changes while it is looked at."""
    living = [process for process in processes if process.poll() is None]
    try:
        stop(living)
        yield
    finally:
        for process in living:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)


def time_on_cores(pid):
    """Of a process' threads, in nanoseconds."""
    total = 0
    for thread in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(thread.read_text().split()[0])
    return total


def run_a_slice(process):
    """Lets a process that stands still go on, for about a millisecond of its own time. One of the clock's would end, where the
    cores are busy, before the process has run at all."""
    before, end = time_on_cores(process.pid), time.monotonic() + SLICE_WAIT
    process.send_signal(signal.SIGCONT)
    while process.poll() is None and time_on_cores(process.pid) < before + SLICE and time.monotonic() < end:
        time.sleep(0.0005)
