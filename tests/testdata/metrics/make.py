#!/usr/bin/env python3
"""Keras' numbers for its metrics, which tests/runtime/train/sums_test.cc compares ours with.
   make.py    with Keras 3, writes keras.txt: a line for each array, its name, how many numbers, the numbers
Batches of 1, 7, 64 and 128 examples: probabilities `p` with labels `y` of 0 or 1, and logits of four classes with the
class numbers `k`. Keras works in f32, and so do the numbers to about 1e-7."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
import numpy as np  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))
SIZES = [1, 7, 64, 128]
random = np.random.RandomState(5)
count = sum(SIZES)
y = (random.rand(count) < 0.35).astype(np.int32)
p = np.clip(0.3 * y + 0.25 + 0.3 * random.randn(count), 0, 1).astype(np.float32)
# Halfway between thresholds, so that f32 puts none on the other side; some are 0 or 1.
p = np.where((p > 0) & (p < 1), (np.floor(p * 199) + 0.5) / 199, p).astype(np.float32)
k = random.randint(0, 4, count).astype(np.int32)
logits = (random.randn(count, 4) + 1.5 * np.eye(4)[k]).astype(np.float32)
shares = np.exp(logits.astype(np.float64))
shares = (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32)
one_hot = np.eye(4, dtype=np.float32)[k]

m = keras.metrics
CASES = {
    "precision": (m.Precision(), y, p),
    "precision_30": (m.Precision(thresholds=0.3), y, p),
    "recall": (m.Recall(), y, p),
    "recall_30": (m.Recall(thresholds=0.3), y, p),
    "auc": (m.AUC(), y, p),
    "auc_21": (m.AUC(num_thresholds=21), y, p),
    "pr_auc": (m.AUC(curve="PR"), y, p),
    "precision_of_2": (m.Precision(class_id=2, top_k=1), one_hot, shares),
    "recall_of_2": (m.Recall(class_id=2, top_k=1), one_hot, shares),
    "recall_of_2_30": (m.Recall(class_id=2, thresholds=0.3), one_hot, shares),
    "auc_of_2": (m.AUC(), one_hot[:, 2], shares[:, 2]),
    "top_2": (m.SparseTopKCategoricalAccuracy(k=2), k, logits),
    "cross_entropy": (m.SparseCategoricalCrossentropy(from_logits=True), k, logits),
}

with open(os.path.join(FOLDER, "keras.txt"), "w") as out:
    def save(name, array):
        numbers = np.asarray(array, np.float64).ravel()
        out.write(" ".join([name, str(len(numbers))] + [repr(float(v)) for v in numbers]) + "\n")

    save("sizes", SIZES)
    save("y", y)
    save("p", p)
    save("k", k)
    save("logits", logits)
    for name, (metric, labels, predictions) in CASES.items():
        at = 0
        for size in SIZES:
            metric.update_state(labels[at:at + size], predictions[at:at + size])
            at += size
        save(name, metric.result())
    save("perplexity", np.exp(CASES["cross_entropy"][0].result()))
