"""The MLP's training step in JAX: jit on one device, or on virtual devices with the batch sharded over them."""
import bench_common as common  # first: it starts the clock
import os

args = common.arguments(["jit", "sharded"])
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


def loss_of(params, x, y):
    for i in range(3):
        x = x @ params[f"w{i}"] + params[f"b{i}"]
        x = jax.nn.relu(x) if i < 2 else x
    return optax.softmax_cross_entropy_with_integer_labels(x, y).mean()


adam = optax.adam(1e-3, eps=1e-7)


def train_step(params, slots, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    updates, slots = adam.update(gradients, slots, params)
    return optax.apply_updates(params, updates), slots, loss


mesh = Mesh(np.array(jax.devices()[:devices]), ("batch",))
replicated = NamedSharding(mesh, PartitionSpec())
sharded = NamedSharding(mesh, PartitionSpec("batch"))
state = {"params": jax.device_put({k: jnp.asarray(v) for k, v in common.params().items()}, replicated)}
state["slots"] = jax.device_put(adam.init(state["params"]), replicated)
compiled = jax.jit(train_step, donate_argnums=(0, 1))
data = [(jax.device_put(x, sharded), jax.device_put(y.astype(np.int32), sharded)) for x, y in common.batches(args.batch)]


def step(batch):
    state["params"], state["slots"], loss = compiled(state["params"], state["slots"], *batch)
    return loss


common.measure(step, data, args, f"jax {jax.__version__}", devices, lambda loss: loss.item())
