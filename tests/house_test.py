#!/usr/bin/env python3
"""The size of the house, and its rules of size.

    house_test.py ROOT       prints lines, folders, the largest files and how many of our headers stand behind
                             runtime/meshtrain.h, then what breaks a rule; exits with 1 where something does

A folder holds at most 25 sources, unless it is a catalogue, in which every file is one more entry of the same kind. A
file has at most 500 lines, unless one of its first 20 lines says why it has more, behind the word Long and a colon.
"""
import os
import re
import subprocess
import sys

SOURCES = ('.cc', '.h', '.cu', '.py', '.sh', '.js', '.cmake', '.proto')
TOPS = ('cli', 'cmake', 'deploy', 'helm', 'operator', 'proto', 'runtime', 'scripts', 'tests', 'worker')
MOST_IN_FOLDER = 25
MOST_LINES = 500
# Folder: what each of its files is.
CATALOGUES = {
    'runtime/data/sources': 'a source',
    'runtime/manifest/catalogue/layers': 'the entry of a layer',
    'runtime/nn/layers': 'a layer',
    'runtime/program/ops': 'a family of operations',
    'runtime/train/losses': 'a loss',
    'runtime/train/metrics': 'a metric',
    'runtime/train/optimizers': 'an optimizer',
}
LARGEST = 8


def sources(root):
    """(path below root, lines) of every source; scripts without an ending too."""
    for top in TOPS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = sorted(f for f in folders if f not in ('testdata', '__pycache__', 'node_modules'))
            for name in sorted(files):
                path = os.path.join(folder, name)
                short = os.path.relpath(path, root)
                if not name.endswith(SOURCES) and not (top == 'scripts' and '.' not in name):
                    continue
                with open(path, encoding='utf-8') as file:
                    yield short, file.readlines()


def headers_behind(root, header):
    """Our headers that a program reaches which includes `header`."""
    seen, todo = set(), [header]
    while todo:
        now = todo.pop()
        if now in seen or not os.path.exists(os.path.join(root, now)):
            continue
        seen.add(now)
        with open(os.path.join(root, now), encoding='utf-8') as file:
            todo += re.findall(r'^#include "([^"]+)"', file.read(), re.M)
    return seen


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else '.'
    lines, per_folder, counted, broken = {}, {}, {}, []
    for path, text in sources(root):
        lines[path] = len(text)
        folder = os.path.dirname(path)
        kind = 'tests' if path.startswith('tests/') else 'sources'
        counted[kind] = counted.get(kind, 0) + len(text)
        if path.endswith(SOURCES):
            per_folder[folder] = per_folder.get(folder, 0) + 1
        says_why = any(re.search(r'\bLong: \S', line) for line in text[:20])
        if len(text) > MOST_LINES and not says_why:
            broken.append(f'{path}: expected at most {MOST_LINES} lines, or "Long: ..." with the reason at its top, '
                          f'got: {len(text)}')
        if len(text) <= MOST_LINES and says_why:
            broken.append(f'{path}: it says why it is long, but has {len(text)} lines')
    for folder, count in per_folder.items():
        if count > MOST_IN_FOLDER and folder not in CATALOGUES:
            broken.append(f'{folder}: expected at most {MOST_IN_FOLDER} sources in a folder, got: {count}')
    for folder in CATALOGUES:
        if folder not in per_folder:
            broken.append(f'{folder}: expected the folder that is named as a catalogue, got: none')
    if len(lines) < 500:
        broken.append(f'{root}: expected at least 500 sources, got: {len(lines)}')

    print(f'{len(lines)} files in {len({os.path.dirname(p) for p in lines})} folders: '
          f'{counted.get("sources", 0):,} lines of sources, {counted.get("tests", 0):,} of tests')
    most = sorted(per_folder.items(), key=lambda item: -item[1])[:LARGEST]
    print('largest folders: ' + ', '.join(f'{folder} {count}' for folder, count in most))
    long = sorted(lines.items(), key=lambda item: -item[1])[:LARGEST]
    print('largest files:   ' + ', '.join(f'{path} {count}' for path, count in long))
    face = headers_behind(root, 'runtime/meshtrain.h')
    print(f'headers behind runtime/meshtrain.h: {len(face)}')
    for line in sorted(broken):
        print(line)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
