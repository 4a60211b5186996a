"""One replica of a TensorFlow job, told by TF_CONFIG who it is: what a TFJob's image runs. The last line printed is JSON."""
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 3 does not train under MultiWorkerMirroredStrategy
import numpy as np
import tensorflow as tf

WEIGHT = 3.0
rng = np.random.default_rng(5)
X = rng.normal(size=(512, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) * WEIGHT).astype("float32")


def report(**values):
    print(json.dumps(values), flush=True)


def fit(strategy, **more):
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
        model.compile(loss="mse", optimizer=tf.keras.optimizers.SGD(0.05))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(48).with_options(options)
    history = model.fit(data, epochs=4, verbose=0)
    report(strategy=type(strategy).__name__, replicas=strategy.num_replicas_in_sync, loss=history.history["loss"],
           weights=[float(v) for v in model.layers[0].kernel.numpy()[:, 0]], **more)


# Strategies of one process, over two CPUs where they take several.
CPUS = ["/cpu:0", "/cpu:1"]
LOCAL = {
    "Default": tf.distribute.get_strategy,
    "OneDevice": lambda: tf.distribute.OneDeviceStrategy(CPUS[0]),
    "Mirrored": lambda: tf.distribute.MirroredStrategy(CPUS),
    "CentralStorage": lambda: tf.distribute.experimental.CentralStorageStrategy(CPUS, CPUS[0]),
}


def train_here(kind, resolver):
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                               [tf.config.LogicalDeviceConfiguration()] * len(CPUS))
    fit(LOCAL[kind](), task=resolver.task_type, cluster=sorted(resolver.cluster_spec().as_dict()))


def serve(resolver):
    server = tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                                  protocol="grpc", start=True)
    report(serves=resolver.task_type)
    server.join()


def coordinate(resolver):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        w = tf.Variable(tf.zeros([4, 1]))
    x, y = tf.constant(X), tf.constant(Y)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.05 * tape.gradient(loss, w))
        return loss

    losses = [coordinator.schedule(step) for _ in range(60)]
    coordinator.join()
    report(first=float(losses[0].fetch()), last=float(losses[-1].fetch()), weights=[float(v) for v in w.numpy()[:, 0]])
    os._exit(0)  # a coordinator's threads outlive it


def main():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "evaluator":
        # Its own list, and nobody waits for it.
        report(cluster=sorted(resolver.cluster_spec().as_dict()), task=resolver.task_type)
    elif sys.argv[1] in LOCAL:
        train_here(sys.argv[1], resolver)
    elif sys.argv[1] == "MultiWorkerMirrored":
        fit(tf.distribute.MultiWorkerMirroredStrategy())
    elif resolver.task_type in ("worker", "ps"):
        serve(resolver)
    else:
        coordinate(resolver)


main()
