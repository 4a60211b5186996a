"""What the tests here share: the program that makes and reads our files."""
import os
import subprocess


def samples(*arguments):
    """Runs samples.cc's program; returns what it printed."""
    done = subprocess.run([os.environ["MT_SAMPLES"], *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout
