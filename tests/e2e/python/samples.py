"""What the tests here share: the program that makes and reads our files, and a job that leaves them."""
import os
import pathlib
import subprocess

import numpy as np


def samples(*arguments):
    """Runs samples.cc's program; returns what it printed."""
    done = subprocess.run([os.environ["MT_SAMPLES"], *map(str, arguments)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    return done.stdout


JOB = """
apiVersion: meshtrain.dev/v1
kind: TrainingJob
metadata: {{name: read-by-others}}
spec:
  replicaSpecs: {{worker: {{replicas: 2}}}}
  checkpoint: {{everySteps: 3}}
  program:
    seed: 3
    mesh: {{batch: 2, model: 2}}
    data:
      train: {{idx: {{images: {folder}/images, labels: {folder}/labels}}}}
      test: {{idx: {{images: {folder}/images, labels: {folder}/labels}}, take: 40}}
      map: [{{scale: 0.00392156862745098}}]
      batch: 20
    model:
      - flatten
      - dense: {{name: hidden, units: 12, activation: relu}}
      - dense: {{name: logits, units: 10}}
    loss: {{sparse_categorical_crossentropy: {{from_logits: true}}}}
    optimizer: {{adam: {{learning_rate: 0.01}}}}
    metrics: [accuracy]
    layout: {{rules: [{{match: hidden.kernel, spec: [unsharded, model]}}, {{match: logits.kernel, spec: [model, unsharded]}}]}}
    train: {{epochs: 2}}
"""
JOB_STEPS = [5, 10]  # ends of its epochs


def write_idx(path, values):
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes())


def job(folder):
    """Trains JOB in two processes. Its images (uint8), its labels, its output folder and what it printed."""
    folder = pathlib.Path(folder)
    labels = np.arange(100, dtype=np.uint8) % 10
    images = np.random.default_rng(5).integers(0, 120, (100, 10, 10), dtype=np.uint8)
    images[np.arange(100), labels] += 100  # class k lights row k
    write_idx(folder / "images", images)
    write_idx(folder / "labels", labels)
    (folder / "job.yaml").write_text(JOB.format(folder=folder))
    command = [os.environ["MT_MESHTRAIN"], "run", "-f", folder / "job.yaml", "--output", folder / "out", "--isolated"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr}")
    return images, labels, folder / "out", done.stdout
