#!/usr/bin/env python3
"""Eighteen seeded faults, each of which random programs must find.

  mutants_test.py check ROOT            every patch still applies; nothing is built
  mutants_test.py run ROOT WORK [ARG..] copies the tree to WORK, builds it there (ARGs go to CMake), and for each
                                        patch: applies it, builds anew what it touches, runs random programs until
                                        one fails, 6,000 at most, and takes the patch back. MT_MUTANT=NAME: that
                                        one only.

A patch opens with a sentence that says what is wrong in it. One that no longer applies fails in both: write it anew
for the code as it is now.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import time

# As many as a core that nobody else uses runs in some six minutes: window_positions, of which one program in a thousand
# shows anything, wants 2,084; fuse_rows 208, bucket_attributes 189. Counted in programs, so that the result does not
# depend on what else the machine does.
PROGRAMS = 6000
LIMIT_S = 1800
FOLDER = "tests/contract/mutants"
TEST = "random_programs_test"


def patches(root):
    found = sorted(glob.glob(os.path.join(root, FOLDER, "*.patch")))
    if len(found) < 18:
        sys.exit(f"mutants: expected at least 18 patches in {FOLDER}, got: {len(found)}")
    return found


def name_of(path):
    return os.path.splitext(os.path.basename(path))[0]


def applies(tree, path, *more):
    """The error, or nothing."""
    # No fuzz: what has moved may still be right, what has changed may mean something else.
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--batch", *more, "-i", path], cwd=tree, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout if done.returncode != 0 else ""


def check(root):
    failed = 0
    for path in patches(root):
        with open(path, encoding="utf-8") as file:
            why = file.readline().strip()
        if not why or why.startswith("---"):
            print(f"{name_of(path)}: expected a first line that says what is wrong, got: {why!r}")
            failed += 1
        error = applies(root, path, "--dry-run", "--forward")
        if error:
            print(f"{name_of(path)}: no longer applies\n{error}")
            failed += 1
    return failed


def copy_tree(root, work):
    """The sources alone. Files that are as before keep their times, so that a second run builds little."""
    tree = os.path.join(work, "tree")
    os.makedirs(tree, exist_ok=True)
    fresh = set()
    for top in ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "cmake", "cli", "deploy", "helm", "operator", "proto",
                "runtime", "scripts", "tests", "worker"):
        source = os.path.join(root, top)
        files = [source] if os.path.isfile(source) else [
            os.path.join(folder, file) for folder, _, names in os.walk(source) for file in names]
        for file in files:
            relative = os.path.relpath(file, root)
            to = os.path.join(tree, relative)
            fresh.add(relative)
            with open(file, "rb") as new:
                content = new.read()
            if os.path.exists(to):
                with open(to, "rb") as old:
                    if old.read() == content:
                        continue
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(file, to)
    for folder, below, names in os.walk(tree):
        if folder == tree and "build" in below:
            below.remove("build")
        for file in names:
            path = os.path.join(folder, file)
            if os.path.relpath(path, tree) not in fresh:
                os.remove(path)
    return tree


def build(build_folder):
    done = subprocess.run(["cmake", "--build", build_folder, "-j2", "--target", TEST], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"mutants: the copy does not build\n{done.stdout[-4000:]}")


def run_programs(build_folder, **limits):
    """(found, text): what the first failing program said."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MT_")}
    environment.update(MT_RANDOM_AS_DRAWN="1", MT_RANDOM_FAILURES="1", **limits)
    try:
        done = subprocess.run([os.path.join(build_folder, "tests", TEST),
                               "--gtest_filter=RandomProgramsTest.GiveWhatTheInterpreterGives"],
                              env=environment, text=True, errors="replace", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return False, "did not end"
    if done.returncode != 0 and "MT_TEST_SEED=" not in done.stdout and done.returncode > 0:
        sys.exit(f"mutants: the random programs left with {done.returncode} and named none of them\n{done.stdout[-4000:]}")
    return done.returncode != 0, done.stdout


def described(text):
    lines = [line for line in text.splitlines() if "MT_TEST_SEED=" in line]
    return lines[0][:300] if lines else text[-300:]


def run(root, work, arguments):
    failed = check(root)
    only = os.environ.get("MT_MUTANT")
    if only and only not in map(name_of, patches(root)):
        sys.exit(f"mutants: MT_MUTANT: expected one of {', '.join(map(name_of, patches(root)))}, got: {only}")
    tree = copy_tree(root, work)
    folder = os.path.join(tree, "build", "dev")  # where a checkout has it: compiler caches know the paths
    done = subprocess.run(["cmake", "-S", tree, "-B", folder, "-G", "Ninja", *arguments], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"mutants: the copy cannot be configured\n{done.stdout[-4000:]}")
    build(folder)
    found, text = run_programs(folder, MT_RANDOM_PROGRAMS="200")
    if found:
        sys.exit(f"mutants: the tree fails as it is: {described(text)}")
    for path in patches(root):
        name = name_of(path)
        if only and name != only:
            continue
        error = applies(tree, path, "--forward")
        if error:
            continue  # named by check()
        try:
            build(folder)
            begin = time.monotonic()
            found, text = run_programs(folder, MT_RANDOM_PROGRAMS=str(PROGRAMS))
            seconds = time.monotonic() - begin
        finally:
            left = applies(tree, path, "--reverse")
        if left:
            sys.exit(f"mutants: {name} cannot be taken back\n{left}")
        # Where a fault ends the process, only the seed is known: the first one is 1.
        after = re.search(r"\(program (\d+)\)|while running MT_TEST_SEED=(\d+)", text)
        if found:
            print(f"{name}: found after {after.group(1) or after.group(2) if after else 'a number of'} programs, {seconds:.0f} s: "
                  f"{described(text)}", flush=True)
        else:
            print(f"{name}: not found in {PROGRAMS} programs, {seconds:.0f} s\n{text[-400:]}", flush=True)
            failed += 1
    return failed


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "check":
        sys.exit(1 if check(sys.argv[2]) else 0)
    if len(sys.argv) >= 4 and sys.argv[1] == "run":
        sys.exit(1 if run(sys.argv[2], sys.argv[3], sys.argv[4:]) else 0)
    sys.exit(__doc__)
