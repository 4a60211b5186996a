"""A model's training step in TensorFlow: tf.function, plain or compiled by XLA, with TensorFlow's fused optimizers."""
import bench_common as common  # first: it starts the clock
import bench_models as models
import os

args = models.arguments(["plain", "xla"])
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(args.threads)
tf.config.threading.set_inter_op_parallelism_threads(args.threads)
start = models.weights(args.model)
w = {k: tf.Variable(v) for k, v in start.items()}
slots = [{k: tf.Variable(np.zeros_like(v)) for k, v in start.items()} for _ in range(2 if args.model in models.ADAM else 1)]
moving = {k: (tf.Variable(np.zeros_like(v)), tf.Variable(np.ones_like(v))) for k, v in start.items() if k.endswith("_bn.gamma")}
count = tf.Variable(np.float32(0))
HIDDEN = tf.constant(np.triu(np.full((models.LENGTH, models.LENGTH), -1e9, np.float32), 1))


def dense(name, x):
    y = x @ w[name + ".kernel"]
    return y + w[name + ".bias"] if name + ".bias" in w else y


def layer_norm(name, x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + models.NORM_EPSILON) * w[name + ".gamma"] + w[name + ".beta"]


def block(prefix, x, size, causal):
    """x [size * T, D], one row for each position."""
    t, heads, width = models.LENGTH, models.HEADS, models.WIDTH
    qkv = tf.reshape(dense(prefix + "attention.qkv", layer_norm(prefix + "ln1", x)), [size, t, 3, heads, width // heads])
    q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))
    scores = tf.matmul(q, k, transpose_b=True) * (width // heads) ** -0.5
    sums = tf.matmul(tf.nn.softmax(scores + HIDDEN if causal else scores), v)
    x += dense(prefix + "attention.output", tf.reshape(tf.transpose(sums, [0, 2, 1, 3]), [size * t, width]))
    up = tf.nn.gelu(dense(prefix + "mlp.up", layer_norm(prefix + "ln2", x)), approximate=True)
    return x + dense(prefix + "mlp.down", up)


def conv_norm(name, x, stride=1):
    gamma = w[name + "_bn.gamma"]
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=tf.nn.conv2d(x, w[name + ".kernel"], stride, "SAME"), scale=gamma, offset=w[name + "_bn.beta"],
        mean=tf.zeros([0]), variance=tf.zeros([0]), epsilon=models.NORM_EPSILON, is_training=True)
    for kept, now in zip(moving[name + "_bn.gamma"], (mean, variance)):
        kept.assign(models.MOMENTUM * kept + (1 - models.MOMENTUM) * now)
    return y


def predict(x):
    if args.model == "cnn":
        for name in ("conv_1", "conv_2"):
            x = tf.nn.relu(tf.nn.conv2d(x, w[name + ".kernel"], 1, "SAME") + w[name + ".bias"])
            x = tf.nn.max_pool2d(x, 2, 2, "VALID")
        return dense("logits", tf.nn.relu(dense("hidden", tf.reshape(x, [args.batch, -1]))))
    if args.model == "block":
        return tf.reshape(block("", tf.reshape(x, [-1, models.WIDTH]), args.batch, causal=False), x.shape)
    if args.model == "lm":
        x = tf.gather(w["token_embedding.embeddings"], x) + w["position_embedding.embeddings"]
        x = tf.reshape(x, [-1, models.WIDTH])
        for i in range(models.BLOCKS):
            x = block(f"block{i}.", x, args.batch, causal=True)
        return dense("logits", layer_norm("final_ln", x))
    x = tf.nn.relu(conv_norm("stem.conv", x))
    for name, stride in models.STAGES:
        y = conv_norm(name + ".conv2", tf.nn.relu(conv_norm(name + ".conv1", x, stride)))
        x = tf.nn.relu(y + (conv_norm(name + ".projection", x, stride) if name + ".projection.kernel" in w else x))
    return dense("logits", tf.reduce_mean(x, [1, 2]))


def train_step(x, y):
    with tf.GradientTape() as tape:
        out = predict(x)
        if args.model == "block":
            loss = tf.reduce_mean(tf.square(out - y))
        else:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(y, [-1]), logits=out))
    gradients = {k: tf.convert_to_tensor(g) for k, g in tape.gradient(loss, w).items()}
    count.assign_add(1.0)
    if args.model == "resnet":
        for k, g in gradients.items():
            tf.raw_ops.ResourceApplyMomentum(var=w[k].handle, accum=slots[0][k].handle, lr=models.SGD_RATE, grad=g,
                                             momentum=models.MOMENTUM)
        return loss
    rate, epsilon, decay = models.ADAM[args.model]
    first, second = tf.pow(0.9, count), tf.pow(0.999, count)
    for k, g in gradients.items():
        if decay:
            w[k].assign(w[k] * (1 - rate * decay))
        # It adds epsilon before the correction of the second moment.
        tf.raw_ops.ResourceApplyAdam(var=w[k].handle, m=slots[0][k].handle, v=slots[1][k].handle, beta1_power=first,
                                     beta2_power=second, lr=rate, beta1=0.9, beta2=0.999,
                                     epsilon=epsilon * tf.sqrt(1 - second), grad=g)
    return loss


batches = models.Batches(args.model, args.folder)
compiled = tf.function(train_step, jit_compile=args.mode == "xla")
common.measure(lambda batch: compiled(*batch), [tuple(map(tf.constant, batches(k))) for k in range(8)], args,
               f"tf {tf.__version__}", 1, lambda loss: loss.numpy(),
               lambda k: tuple(map(tf.constant, batches(k))))
