"""What every peer's benchmark of the four models shares: their weights and their batches. numpy alone.

cnn     28x28 images, two 3x3 convolutions (16, 32 filters) each behind a max pool of 2, dense 128 and 10; Adam
block   [16, 128, 256] numbers, one transformer block, its norms before its parts, four heads; mean squared error; Adam
lm      the language model of deploy/examples/charlm.yaml, with AdamW at a constant rate
resnet  the network of deploy/examples/resnet.yaml, with SGD and momentum

Weights are those of tests/testdata/{charlm,resnet}/golden.json, or drawn; batches lie in a folder that run_models.py has
filled, and follow each other as the files have them.
"""
import argparse
import gzip
import json
from pathlib import Path

import numpy as np

TESTDATA = Path(__file__).resolve().parents[2] / "testdata"
MODELS = ("cnn", "block", "lm", "resnet")
BATCH = {"cnn": 128, "block": 16, "lm": 16, "resnet": 64}
WIDTH, HEADS, LENGTH, BLOCKS = 256, 4, 128, 4
NORM_EPSILON = 1e-5
MOMENTUM, SGD_RATE = 0.9, 0.1
# rate, epsilon, weight decay
ADAM = {"cnn": (1e-3, 1e-7, 0.0), "block": (1e-3, 1e-7, 0.0), "lm": (3e-4, 1e-8, 0.01)}
# input, output, stride of each block of the resnet, by name
STAGES = [(f"stage{s}.block{b}", 2 if s > 0 and b == 0 else 1) for s in range(3) for b in range(2)]


def arguments(modes):
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="the data")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--devices", type=int, default=8, help="virtual devices, in the modes that have them")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--platform", default="cpu", help="of JAX: cpu or cuda")
    args = parser.parse_args()
    args.batch = BATCH[args.model]
    return args


def glorot(*shape):
    fans = int(np.prod(shape[:-2], dtype=int)) * (shape[-2] + shape[-1])
    limit = np.sqrt(6 / fans)
    return np.random.RandomState(sum(shape)).uniform(-limit, limit, shape).astype(np.float32)


def golden_weights(folder, first_seed):
    made = {}
    for i, tensor in enumerate(json.loads((TESTDATA / folder / "golden.json").read_text())["tensors"]):
        if tensor["init"] == "normal":
            value = np.random.RandomState(first_seed + i).randn(*tensor["shape"]) * tensor["scale"]
        else:
            value = np.full(tensor["shape"], {"zeros": 0, "ones": 1}.get(tensor["init"], tensor.get("scale")))
        made[tensor["name"]] = value.astype(np.float32)
    return made


def with_one_projection(weights):
    """Query, key and value as one product of three times the width, which is what a peer's user would write."""
    made = {}
    for name, value in weights.items():
        if ".query." in name or name.startswith("query."):
            parts = [weights[name.replace("query", part)] for part in ("query", "key", "value")]
            made[name.replace("query", "qkv")] = np.concatenate(parts, -1)
        elif "attention.key." not in name and "attention.value." not in name:
            made[name] = value
    return made


def weights(model):
    """By name; kernels are [in, out] and [height, width, in, out]."""
    if model == "lm":
        return with_one_projection(golden_weights("charlm", 1000))
    if model == "resnet":
        return golden_weights("resnet", 2000)
    if model == "cnn":
        made = {"conv_1.kernel": glorot(3, 3, 1, 16), "conv_2.kernel": glorot(3, 3, 16, 32),
                "hidden.kernel": glorot(1568, 128), "logits.kernel": glorot(128, 10)}
        return made | {k.replace("kernel", "bias"): np.zeros(v.shape[-1], np.float32) for k, v in made.items()}
    made = {"mlp.up.kernel": glorot(WIDTH, 4 * WIDTH), "mlp.down.kernel": glorot(4 * WIDTH, WIDTH)}
    made |= {k.replace("kernel", "bias"): np.zeros(v.shape[-1], np.float32) for k, v in made.items()}
    made |= {f"attention.{part}.kernel": glorot(WIDTH, WIDTH) for part in ("query", "key", "value", "output")}
    for norm in ("ln1", "ln2"):
        made |= {f"{norm}.gamma": np.ones(WIDTH, np.float32), f"{norm}.beta": np.zeros(WIDTH, np.float32)}
    return with_one_projection(made)


def read_idx(path):
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


class Batches:
    """self(k): batch number k on the host, as (x, y); the first follows the last."""

    def __init__(self, model, folder):
        self.model, size = model, BATCH[model]
        if model == "lm":
            characters = np.frombuffer((folder / "data" / "text.txt").read_bytes(), np.uint8).astype(np.int32)
            self.ids = np.where(characters == 10, 95, characters - 32)
            self.count = (len(self.ids) - 1) // LENGTH // size
            return
        if model == "resnet":
            self.x = read_idx(folder / "data" / "train-images32.idx.gz")
            self.y = read_idx(folder / "data" / "train-labels32.idx.gz").astype(np.int32)
        else:
            self.x, self.y = (np.load(folder / f"{model}-{part}.npy") for part in "xy")
        self.count = len(self.x) // size

    def __call__(self, k):
        k, size = k % self.count, BATCH[self.model]
        if self.model == "lm":
            begin = np.arange(k * size, (k + 1) * size)[:, None] * LENGTH
            return self.ids[begin + np.arange(LENGTH)], self.ids[begin + np.arange(1, LENGTH + 1)]
        x, y = self.x[k * size:(k + 1) * size], self.y[k * size:(k + 1) * size]
        return ((x.astype(np.float32) - 128) / 64 if self.model == "resnet" else x), y
