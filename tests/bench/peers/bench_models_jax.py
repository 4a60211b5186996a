"""A model's training step in JAX: jit on one device, or on virtual devices with the batch sharded over them."""
import bench_common as common  # first: it starts the clock
import bench_models as models
import os

args = models.arguments(["jit", "sharded"])
devices = args.devices if args.mode == "sharded" else 1
flags = []
if devices > 1:
    flags.append(f"--xla_force_host_platform_device_count={devices}")
if args.threads == 1:
    flags.append("--xla_cpu_multi_thread_eigen=false")
os.environ["XLA_FLAGS"] = " ".join(flags)
os.environ["JAX_PLATFORMS"] = args.platform

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

CAUSAL = np.tril(np.ones((models.LENGTH, models.LENGTH), bool))


def dense(w, name, x):
    y = x @ w[name + ".kernel"]
    return y + w[name + ".bias"] if name + ".bias" in w else y


def layer_norm(w, name, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + models.NORM_EPSILON) * w[name + ".gamma"] + w[name + ".beta"]


def block(w, prefix, x, causal):
    size, t, width = x.shape
    each = width // models.HEADS
    qkv = dense(w, prefix + "attention.qkv", layer_norm(w, prefix + "ln1", x)).reshape(size, t, 3, models.HEADS, each)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    scores = (q @ k.swapaxes(-1, -2)) * each ** -0.5
    sums = jax.nn.softmax(jnp.where(CAUSAL, scores, -jnp.inf) if causal else scores) @ v
    x += dense(w, prefix + "attention.output", sums.transpose(0, 2, 1, 3).reshape(x.shape))
    up = jax.nn.gelu(dense(w, prefix + "mlp.up", layer_norm(w, prefix + "ln2", x)), approximate=True)
    return x + dense(w, prefix + "mlp.down", up)


def conv(x, kernel, stride=1):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def predict(w, moving, x):
    """Predictions, and the moving averages after them."""
    if args.model == "cnn":
        for name in ("conv_1", "conv_2"):
            x = jax.nn.relu(conv(x, w[name + ".kernel"]) + w[name + ".bias"])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return dense(w, "logits", jax.nn.relu(dense(w, "hidden", x.reshape(x.shape[0], -1)))), moving
    if args.model == "block":
        return block(w, "", x, causal=False), moving
    if args.model == "lm":
        x = w["token_embedding.embeddings"][x] + w["position_embedding.embeddings"]
        for i in range(models.BLOCKS):
            x = block(w, f"block{i}.", x, causal=True)
        return dense(w, "logits", layer_norm(w, "final_ln", x)), moving
    after = {}

    def conv_norm(name, x, stride=1):
        x = conv(x, w[name + ".kernel"], stride)
        mean = x.mean((0, 1, 2))
        variance = ((x - mean) ** 2).mean((0, 1, 2))
        after[name] = [models.MOMENTUM * kept + (1 - models.MOMENTUM) * now
                       for kept, now in zip(moving[name], (mean, variance))]
        return (x - mean) * (jax.lax.rsqrt(variance + models.NORM_EPSILON) * w[name + "_bn.gamma"]) + w[name + "_bn.beta"]

    x = jax.nn.relu(conv_norm("stem.conv", x))
    for name, stride in models.STAGES:
        y = conv_norm(name + ".conv2", jax.nn.relu(conv_norm(name + ".conv1", x, stride)))
        x = jax.nn.relu(y + (conv_norm(name + ".projection", x, stride) if name + ".projection.kernel" in w else x))
    return dense(w, "logits", x.mean((1, 2))), after


def loss_of(w, moving, x, y):
    out, moving = predict(w, moving, x)
    if args.model == "block":
        return jnp.mean((out - y) ** 2), moving
    return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), moving


if args.model == "resnet":
    optimizer = optax.sgd(models.SGD_RATE, models.MOMENTUM)
else:
    rate, epsilon, decay = models.ADAM[args.model]
    optimizer = optax.adamw(rate, eps=epsilon, weight_decay=decay)


def train_step(w, slots, moving, x, y):
    (loss, moving), gradients = jax.value_and_grad(loss_of, has_aux=True)(w, moving, x, y)
    updates, slots = optimizer.update(gradients, slots, w)
    return optax.apply_updates(w, updates), slots, moving, loss


mesh = Mesh(np.array(jax.devices()[:devices]), ("batch",))
replicated = NamedSharding(mesh, PartitionSpec())
sharded = NamedSharding(mesh, PartitionSpec("batch"))
start = models.weights(args.model)
w = jax.device_put({k: jnp.asarray(v) for k, v in start.items()}, replicated)
averages = {k[:-len("_bn.gamma")]: [np.zeros_like(v), np.ones_like(v)] for k, v in start.items() if k.endswith("_bn.gamma")}
state = [w, jax.device_put(optimizer.init(w), replicated), jax.device_put(averages, replicated)]
compiled = jax.jit(train_step, donate_argnums=(0, 1, 2))
batches = models.Batches(args.model, args.folder)


def put(k):
    return tuple(jax.device_put(part, sharded) for part in batches(k))


def step(batch):
    *state[:], loss = compiled(*state, *batch)
    if devices > 1:
        loss.block_until_ready()  # several steps at once starve the all-reduce of threads where cores are few
    return loss


common.measure(step, [put(k) for k in range(8)], args, f"jax {jax.__version__}", devices, lambda loss: loss.item(), put)
