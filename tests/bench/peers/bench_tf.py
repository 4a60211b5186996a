"""The MLP's training step in TensorFlow: tf.function, XLA, or DTensor on virtual devices with the batch sharded."""
import bench_common as common  # first: it starts the clock
import os

args = common.arguments(["plain", "xla", "dtensor"])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(args.threads)
tf.config.threading.set_inter_op_parallelism_threads(args.threads)
devices = args.devices if args.mode == "dtensor" else 1
if args.mode == "dtensor":
    from tensorflow.experimental import dtensor
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * devices)
    mesh = dtensor.create_mesh([("batch", devices)], devices=[f"CPU:{i}" for i in range(devices)])

    def variable(value):
        layout = dtensor.Layout.replicated(mesh, np.ndim(value))
        return dtensor.DVariable(dtensor.copy_to_mesh(tf.constant(value), layout))

    def pack(value):
        layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=value.ndim)
        return dtensor.pack(tf.split(tf.constant(value), devices), layout)
else:
    variable, pack = tf.Variable, tf.constant

start = common.params()
params = {k: variable(v) for k, v in start.items()}
first = {k: variable(np.zeros_like(v)) for k, v in start.items()}
second = {k: variable(np.zeros_like(v)) for k, v in start.items()}
count = variable(np.float32(0))


def train_step(x, y):
    with tf.GradientTape() as tape:
        z = x
        for i in range(3):
            z = z @ params[f"w{i}"] + params[f"b{i}"]
            z = tf.nn.relu(z) if i < 2 else z
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=z))
    gradients = tape.gradient(loss, params)
    count.assign_add(1.0)
    correct_first, correct_second = 1.0 - tf.pow(0.9, count), 1.0 - tf.pow(0.999, count)
    for k in params:
        # Values first, assigns last: DTensor gives a slot that is read back after its assign as it was before.
        m = 0.9 * first[k] + 0.1 * gradients[k]
        v = 0.999 * second[k] + 0.001 * tf.square(gradients[k])
        first[k].assign(m)
        second[k].assign(v)
        params[k].assign_sub(1e-3 * ((m / correct_first) / (tf.sqrt(v / correct_second) + 1e-7)))
    return loss


data = [(pack(x), pack(y)) for x, y in common.batches(args.batch)]
compiled = tf.function(train_step, jit_compile=args.mode == "xla")
common.measure(lambda batch: compiled(*batch), data, args, f"tf {tf.__version__}", devices, lambda loss: loss.numpy())
