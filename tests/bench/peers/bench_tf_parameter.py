"""Steps per second of TensorFlow's ParameterServerStrategy: chief, workers and servers as processes over loopback.

    python bench_tf_parameter.py guide|mlp [--workers 2] [--servers 1] [--batch 128] [--seconds 5]

One line of JSON. The jobs are those of parameter_bench.cc: `guide` is Dense(1) on ([1.], [1.]) in batches of 5, changed by
the step itself, with a count beside it; `mlp` is 784-700-500-10 under Adam, its kernels cut in two."""
import argparse
import json
import os
import socket
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
CHIEF_TIMEOUT = 300


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def launch(args):
    ports = iter(free_ports(1 + args.workers + args.servers))
    address = lambda: f"127.0.0.1:{next(ports)}"
    cluster = {"chief": [address()], "worker": [address() for _ in range(args.workers)],
               "ps": [address() for _ in range(args.servers)]}

    def start(role, index, **pipes):
        environment = dict(os.environ, PARAMETER_ROLE=role,
                           TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}))
        return subprocess.Popen([sys.executable, *sys.argv], env=environment, stdin=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL if role != "chief" else None, **pipes)

    served = [start("worker", i) for i in range(args.workers)] + [start("ps", i) for i in range(args.servers)]
    try:
        chief = start("chief", 0, stdout=subprocess.PIPE, text=True)
        try:
            out, _ = chief.communicate(timeout=CHIEF_TIMEOUT)
        except subprocess.TimeoutExpired:
            chief.kill()
            chief.communicate()
            raise SystemExit("bench_tf_parameter: the chief did not end in time")
    finally:
        for process in served:
            process.kill()
            process.wait()
    if chief.returncode != 0:
        raise SystemExit(f"bench_tf_parameter: the chief left with {chief.returncode}")
    print(out.strip().splitlines()[-1])


def serve():
    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
                         protocol=resolver.rpc_layer or "grpc", start=True).join()


def parts_of(variables):
    return [part for v in variables for part in (v.variables if hasattr(v, "variables") else [v])]


def guide(tf, strategy):
    with strategy.scope():
        w = tf.Variable([[-0.3822425901889801]], dtype=tf.float32)
        b = tf.Variable([0.])
        count = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

    def replica(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, x @ w + b)) + 1e-4 * tf.reduce_sum(w * w)
        g = tape.gradient(loss, [w, b])
        w.assign_sub(.01 * g[0])
        b.assign_sub(.01 * g[1])
        count.assign_add(1)
        return loss

    data = lambda: tf.data.Dataset.from_tensors(([1.], [1.])).repeat().batch(5)
    return replica, data, [w, b], count


def mlp(tf, strategy, batch):
    import numpy as np
    import tf_keras
    random = np.random.default_rng(1)
    sizes = [784, 700, 500, 10]
    with strategy.scope():
        layers = []
        for i, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
            limit = (6 / (rows + columns)) ** 0.5
            layers.append((tf.Variable(tf.random.uniform([rows, columns], -limit, limit), name=f"w{i}"),
                           tf.Variable(tf.zeros([columns]), name=f"b{i}")))
        optimizer = tf_keras.optimizers.legacy.Adam(0.001)
    parts = parts_of([v for layer in layers for v in layer])

    def replica(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            h = x
            for i, (w, b) in enumerate(layers):
                h = tf.matmul(h, tf.convert_to_tensor(w)) + b
                if i + 1 < len(layers):
                    h = tf.nn.relu(h)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, h))
        optimizer.apply_gradients(zip(tape.gradient(loss, parts), parts))
        return loss

    x = random.random((10 * batch, 784), dtype=np.float32)
    y = random.integers(0, 10, 10 * batch).astype(np.int32)
    data = lambda: tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(batch).prefetch(2)
    return replica, data, parts, optimizer.iterations


def coordinate(args):
    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(min_shard_bytes=256 << 10, max_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    replica, data, variables, count = guide(tf, strategy) if args.job == "guide" else mlp(tf, strategy, args.batch)

    @tf.function
    def datasets():
        return strategy.distribute_datasets_from_function(lambda context: data())

    @tf.function
    def step(iterator):
        return strategy.reduce("SUM", strategy.run(replica, args=(next(iterator),)), axis=None)

    iterator = iter(coordinator.create_per_worker_dataset(datasets))
    for _ in range(10 * args.workers):  # traces, on every worker
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    before, begin, loss = int(count.read_value()), time.perf_counter(), None
    while time.perf_counter() - begin < args.seconds:
        loss = coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    seconds = time.perf_counter() - begin
    rate = (int(count.read_value()) - before) / seconds
    # A step reads every variable once, and writes a value of its size.
    bytes_per_step = 2 * sum(v.shape.num_elements() * v.dtype.size for v in parts_of(variables))
    print(json.dumps({"job": args.job, "workers": args.workers, "servers": args.servers, "tf": tf.__version__,
                      "steps_per_second": rate, "transfers_per_second": 2 * args.servers * rate,
                      "bytes_per_second": bytes_per_step * rate, "loss": float(loss.fetch())}), flush=True)
    os._exit(0)  # the coordinator's threads wait for servers that are killed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["guide", "mlp"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    role = os.environ.get("PARAMETER_ROLE")
    if role is None:
        launch(args)
    elif role == "chief":
        coordinate(args)
    else:
        serve()


if __name__ == "__main__":
    main()
