"""The catalogue's layers in Keras: drawn options, weights and inputs; results, gradients, and what training changes."""
import keras
import numpy as np
import tensorflow as tf

from exchange import FLOATS, Case, program_of, widen
from rows import TYPES

ACTIVATIONS = ["linear", "relu", "gelu", "sigmoid", "tanh", "softmax", "gelu_tanh", "silu", "elu",
               "leaky_relu", "softplus"]


def gelu(approximate):
    """Keras'; of f64 its formula, in which TensorFlow rounds the constants to f32."""
    def of(x):
        if x.dtype != tf.float64:
            return keras.activations.gelu(x, approximate=approximate)
        if approximate:
            return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + tf.math.erf(x / np.sqrt(2)))
    return of


def leaky_relu(x):
    """Keras'; of f64 its formula, for TensorFlow rounds the slope to f32."""
    return tf.where(x > 0, x, 0.2 * x) if x.dtype == tf.float64 else keras.activations.leaky_relu(x)


def activation_of(word):
    if word in ("gelu", "gelu_tanh"):
        return gelu(word == "gelu_tanh")
    return leaky_relu if word == "leaky_relu" else word


class Drawn:
    """One configuration. `layer(dtype)` makes Keras' layer; the other fields say what goes in."""

    def __init__(self, layer, x, training=True, model=None, replicated=False, rules=None):
        self.layer, self.x, self.training = layer, x, training
        self.model = model  # of the manifest, where it is more than the row
        self.replicated = replicated  # no weight is split
        self.rules = rules  # which are, where not any can be


def with_kernel(draw):
    """Keras' arguments for the options that every layer with a kernel has."""
    arguments = {}
    word = draw.option("activation", ACTIVATIONS)
    if word is not None:
        arguments["activation"] = activation_of(word)
    use_bias = draw.option("use_bias", [False, True])
    if use_bias is not None:
        arguments["use_bias"] = use_bias
    for weight in ("kernel", "bias") if use_bias is not False else ("kernel",):
        arguments.update(regularizer(draw, f"{weight}_regularizer"))
    return arguments


def regularizer(draw, name):
    value = draw.option(name, [{"l1": 0.125}, {"l2": 0.25}, {"l1": 0.0625, "l2": 0.5}])
    return {} if value is None else {name: keras.regularizers.L1L2(l1=value.get("l1", 0), l2=value.get("l2", 0))}


def dense(draw):
    units = draw.option("units", [1, 2, 3, 4, 6], always=True)
    arguments = with_kernel(draw)
    dims = [draw.integer(3, 5)] + [draw.integer(2, 4) for _ in range(draw.integer(0, 2))] + [draw.integer(1, 6)]
    return Drawn(lambda dtype: keras.layers.Dense(units, dtype=dtype, **arguments), draw.normal(*dims))


def of_each(draw, spatial, most, equal=False):
    """One number for all spatial dimensions, or one for each."""
    if equal or draw.chance():
        return [draw.integer(1, most)]
    return [draw.integer(1, most) for _ in range(spatial)]


def spread(sizes, spatial):
    return sizes * spatial if len(sizes) == 1 else sizes


def windows(draw, spatial, equal_strides=False):
    """Kernel size, strides or dilation (Keras takes one of the two), padding, and an input that holds a window."""
    kernel = draw.option("kernel_size", [of_each(draw, spatial, 3)], always=True)
    arguments = {"kernel_size": spread(kernel, spatial)}
    which = draw.among(["strides", "dilation_rate", ""])
    if which:
        arguments[which] = spread(draw.option(which, [of_each(draw, spatial, 3, equal=equal_strides)], always=True), spatial)
    padding = draw.option("padding", ["same", "valid"])
    if padding:
        arguments["padding"] = padding
    reach = [(size - 1) * step + 1 for size, step in
             zip(arguments["kernel_size"], arguments.get("dilation_rate", [1] * spatial))]
    return arguments, [least + draw.integer(0, 4 if spatial < 3 else 2) for least in reach]


def conv(spatial):
    def draw_conv(draw):
        arguments, sizes = windows(draw, spatial)
        groups = draw.option("groups", [2, 1, 3]) or 1
        filters = draw.option("filters", [groups, 2 * groups], always=True)
        channels = groups * draw.integer(1, 2)
        if groups > 1:
            arguments["groups"] = groups
        arguments.update(with_kernel(draw))
        kind = [keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D][spatial - 1]
        return Drawn(lambda dtype: kind(filters, dtype=dtype, **arguments),
                     draw.normal(draw.integer(2, 4), *sizes, channels))
    return draw_conv


def conv_transpose(spatial):
    def draw_conv(draw):
        arguments, sizes = windows(draw, spatial)
        filters = draw.option("filters", [1, 2, 4], always=True)
        arguments.update(with_kernel(draw))
        kind = [keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose][spatial - 1]
        return Drawn(lambda dtype: kind(filters, dtype=dtype, **arguments),
                     draw.normal(draw.integer(2, 4), *sizes, draw.integer(1, 4)))
    return draw_conv


def depthwise(spatial):
    def draw_conv(draw):
        # TensorFlow's kernel has the same stride in both dimensions.
        arguments, sizes = windows(draw, spatial, equal_strides=True)
        multiplier = draw.option("depth_multiplier", [2, 1, 3])
        if multiplier:
            arguments["depth_multiplier"] = multiplier
        arguments.update(with_kernel(draw))
        for weight in ("kernel_regularizer",):
            if weight in arguments:
                arguments["depthwise_regularizer"] = arguments.pop(weight)
        kind = [keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D][spatial - 1]
        return Drawn(lambda dtype: kind(dtype=dtype, **arguments),
                     draw.normal(draw.integer(2, 4), *sizes, draw.among([1, 2, 4])))
    return draw_conv


def pooling(kind, spatial):
    def draw_pooling(draw):
        pool = draw.option("pool_size", [of_each(draw, spatial, 3)], always=True)
        arguments = {"pool_size": spread(pool, spatial)}
        strides = draw.option("strides", [of_each(draw, spatial, 3)])
        if strides:
            arguments["strides"] = spread(strides, spatial)
        padding = draw.option("padding", ["same", "valid"])
        if padding:
            arguments["padding"] = padding
        sizes = [size + draw.integer(0, 4 if spatial < 3 else 2) for size in arguments["pool_size"]]
        x = draw.normal(draw.integer(2, 4), *sizes, draw.integer(1, 3))
        # Windows with the same number twice; TensorFlow's kernel for volumes alone gives each of them the whole gradient.
        if draw.chance(0.3) and (kind, spatial) != ("Max", 3):
            x = np.round(x)
        layer = getattr(keras.layers, f"{kind}Pooling{spatial}D")
        return Drawn(lambda dtype: layer(dtype=dtype, **arguments), x)
    return draw_pooling


def global_pooling(kind, spatial):
    def draw_pooling(draw):
        keep = draw.option("keep_dims", [True, False])
        arguments = {} if keep is None else {"keepdims": keep}
        x = draw.normal(draw.integer(2, 4), *[draw.integer(1, 4) for _ in range(spatial)], draw.integer(1, 3))
        if draw.chance(0.3):
            x = np.round(x)
        layer = getattr(keras.layers, f"Global{kind}Pooling{spatial}D")
        return Drawn(lambda dtype: layer(dtype=dtype, **arguments), x)
    return draw_pooling


def with_center_and_scale(draw):
    arguments = {}
    epsilon = draw.option("epsilon", [1e-5, 0.01, 0.5])
    if epsilon is not None:
        arguments["epsilon"] = epsilon
    for flag, weight in (("center", "beta"), ("scale", "gamma")):
        value = draw.option(flag, [False, True])
        if value is not None:
            arguments[flag] = value
        if value is not False:
            arguments.update(regularizer(draw, f"{weight}_regularizer"))
    return arguments


def spread_numbers(draw, *dims):
    """Numbers whose mean is not large beside their deviation: what is left of their difference has its rounding."""
    return draw.normal(*dims, scale=draw.among([1, 2]), shift=draw.among([-1, 0, 1]))


def batch_normalization(draw):
    arguments = with_center_and_scale(draw)
    dims = [draw.integer(4, 6)] + [draw.integer(2, 3) for _ in range(draw.integer(0, 3))] + [draw.integer(1, 4)]
    axis = draw.option("axis", [1, -1])
    if axis is not None:
        arguments["axis"] = axis
    momentum = draw.option("momentum", [0.5, 0.9, 0.0])
    if momentum is not None:
        arguments["momentum"] = momentum
    return Drawn(lambda dtype: keras.layers.BatchNormalization(dtype=dtype, **arguments), spread_numbers(draw, *dims),
                 training=draw.number % 3 != 2)


def axes(draw, arguments, last_only=False):
    """An example's dimensions, and which of them are normalised together."""
    dims = [draw.integer(3, 5)] + [draw.integer(3, 4) for _ in range(draw.integer(1, 3))] + [draw.integer(3, 6)]
    choices = [[-1]] + ([[-2, -1]] if len(dims) > 2 else [])
    if not last_only:
        choices += ([[1]] if len(dims) > 2 else []) + ([[1, 3]] if len(dims) == 4 else [])
    axis = draw.option("axis", choices)
    if axis is not None:
        arguments["axis"] = axis
    return dims


def layer_normalization(draw):
    arguments = with_center_and_scale(draw)
    dims = axes(draw, arguments)
    return Drawn(lambda dtype: keras.layers.LayerNormalization(dtype=dtype, **arguments), spread_numbers(draw, *dims))


def group_normalization(draw):
    groups = draw.option("groups", [2, 1, 3, -1], always=True)
    arguments = with_center_and_scale(draw)
    # Some numbers in each group: two that happen to be near each other leave no more than their rounding.
    between = [draw.integer(3, 4) for _ in range(draw.integer(0 if groups in (1, 2) else 1, 2))]
    dims = [draw.integer(3, 5)] + between + [6]
    return Drawn(lambda dtype: keras.layers.GroupNormalization(groups=groups, dtype=dtype, **arguments),
                 spread_numbers(draw, *dims))


def rms_normalization(draw):
    arguments = {}
    # Keras takes others too, and then fails: its scale does not broadcast.
    dims = axes(draw, arguments, last_only=True)
    epsilon = draw.option("epsilon", [1e-3, 0.5])
    if epsilon is not None:
        arguments["epsilon"] = epsilon
    return Drawn(lambda dtype: keras.layers.RMSNormalization(dtype=dtype, **arguments), spread_numbers(draw, *dims))


def multi_head_attention(draw):
    heads = draw.option("num_heads", [1, 2, 4, 6], always=True)
    key_dim = draw.option("key_dim", [1, 2, 3, 5])
    served = draw.option("num_key_value_heads", [n for n in (2, 1, 3, 4) if heads % n == 0])
    features = heads * draw.integer(1, 2) if key_dim is None else draw.integer(2, 6)
    size = key_dim or features // heads
    causal = draw.option("use_causal_mask", [True, False])
    arguments = {}
    use_bias = draw.option("use_bias", [False, True])
    if use_bias is not None:
        arguments["use_bias"] = use_bias
    for weight in ("kernel", "bias") if use_bias is not False else ("kernel",):
        arguments.update(regularizer(draw, f"{weight}_regularizer"))
    training = True
    if draw.option("dropout", [0.25]) is not None:
        arguments["dropout"] = 0.25
        training = False  # the draws differ

    class OfItself(keras.layers.Layer):
        def __init__(self, dtype):
            super().__init__(dtype=dtype)
            self.inner = (keras.layers.MultiHeadAttention(heads, size, dtype=dtype, **arguments) if served is None else
                          keras.layers.GroupQueryAttention(size, heads, served, dtype=dtype, **arguments))
            widen(self.inner)

        def build(self, shape):
            self.inner.build(shape, shape)

        def call(self, x, training=None):
            mask = keras.ops.greater(keras.ops.mean(x, axis=-1), 0)[:, None, :] if masked else None
            return self.inner(x, x, attention_mask=mask, use_causal_mask=bool(causal), training=training)

    rules = None
    if (served or heads) % 2 == 0:
        rules = {"query.kernel": 1, "key.kernel": 1, "value.kernel": 1, "output.kernel": 0,
                 "query.bias": 0, "key.bias": 0, "value.bias": 0}
    x = draw.normal(draw.integer(2, 4), draw.integer(1, 5), features)
    masked, model = draw.chance(0.4), None
    if masked:  # by what follows from x: a position is seen where its mean is above 0, as the first is
        x[:, 0] = np.abs(x[:, 0])
        mask = [{"permute": {"dims": [2, 1]}}, "global_average_pooling_1d", {"activation": {"name": "mask", "activation": "relu"}}]
        model = {"layers": mask + [{"multi_head_attention": {"name": "it", "inputs": ["x", "mask"], **draw.options}}]}
    return Drawn(OfItself, x, training=training, rules=rules, replicated=rules is None, model=model)


def embedding(draw):
    rows = draw.option("input_dim", [2, 5, 8], always=True)
    size = draw.option("output_dim", [1, 3, 4], always=True)
    draw.option("dtype", ["f32"])  # another one with the other type, below
    arguments = regularizer(draw, "embeddings_regularizer")
    dims = [draw.integer(3, 5)] + [draw.integer(1, 4) for _ in range(draw.integer(0, 2))]
    ids = draw.random.randint(0, rows, dims).astype(draw.among([np.int32, np.int64, np.uint8]))
    return Drawn(lambda dtype: keras.layers.Embedding(rows, size, dtype=dtype, **arguments), ids)


def activation(draw):
    word = draw.option("activation", ACTIVATIONS, always=True)
    x = draw.normal(draw.integer(3, 5), draw.integer(1, 4), draw.integer(2, 6), scale=draw.among([1, 4]))
    x[0, 0, 0] = 0
    return Drawn(lambda dtype: keras.layers.Activation(activation_of(word), dtype=dtype), x)


def dropout(draw):
    rate = draw.option("rate", [0, 0.25, 0.5], always=True)
    draw.option("seed", [9])
    return Drawn(lambda dtype: keras.layers.Dropout(rate, dtype=dtype), draw.normal(4, 3), training=rate == 0)


def flatten(draw):
    dims = [draw.integer(2, 5)] + [draw.integer(1, 4) for _ in range(draw.integer(1, 3))]
    return Drawn(lambda dtype: keras.layers.Flatten(dtype=dtype), draw.normal(*dims))


def reshape(draw):
    dims = draw.option("dims", [[2, 6], [-1], [3, -1], [2, 3, 2], [-1, 4]], always=True)
    return Drawn(lambda dtype: keras.layers.Reshape(dims, dtype=dtype), draw.normal(draw.integer(2, 5), 4, 3))


class Joined(keras.layers.Layer):
    """x, tanh(x) and sigmoid(x) through a layer of several inputs."""

    def __init__(self, join, count, dtype):
        super().__init__(dtype=dtype)
        self.join, self.count = join, count

    def build(self, shape):
        pass

    def call(self, x):
        return self.join([x, keras.ops.tanh(x), keras.ops.sigmoid(x)][:self.count])


def joined(draw, row, join, most=3):
    count = draw.integer(2, most)
    layers = [{"activation": {"name": name, "activation": name, "inputs": ["x"]}} for name in ("tanh", "sigmoid")]
    inputs = ["x", "tanh", "sigmoid"][:count]
    model = {"layers": layers[:count - 1] + [{row: {"name": "it", "inputs": inputs, **draw.options}}]}
    x = draw.normal(draw.integer(2, 5), draw.integer(1, 3), draw.integer(1, 4))
    return Drawn(lambda dtype: Joined(join(dtype), count, dtype), x, model=model)


def merged(row, layer, most=3):
    return lambda draw: joined(draw, row, lambda dtype: layer(dtype=dtype), most)


def permute(draw):
    dims = draw.option("dims", [[1, 2, 3], [2, 1, 3], [3, 1, 2], [3, 2, 1]], always=True)
    return Drawn(lambda dtype: keras.layers.Permute(dims, dtype=dtype), draw.normal(draw.integer(2, 5), 4, 3, 2))


def repeat_vector(draw):
    n = draw.option("n", [1, 2, 5], always=True)
    return Drawn(lambda dtype: keras.layers.RepeatVector(n, dtype=dtype), draw.normal(draw.integer(2, 5), 4))


def concatenate(draw):
    axis = draw.option("axis", [1, -1, 2, -2])
    return joined(draw, "concatenate",
                  lambda dtype: keras.layers.Concatenate(dtype=dtype, **({} if axis is None else {"axis": axis})))


ROWS = {
    "dense": dense, "activation": activation, "dropout": dropout, "flatten": flatten, "reshape": reshape,
    "permute": permute, "repeat_vector": repeat_vector,
    "add": merged("add", keras.layers.Add), "subtract": merged("subtract", keras.layers.Subtract, most=2),
    "multiply": merged("multiply", keras.layers.Multiply), "average": merged("average", keras.layers.Average),
    "maximum": merged("maximum", keras.layers.Maximum), "minimum": merged("minimum", keras.layers.Minimum),
    "concatenate": concatenate, "embedding": embedding, "multi_head_attention": multi_head_attention,
    "batch_normalization": batch_normalization, "layer_normalization": layer_normalization,
    "group_normalization": group_normalization, "rms_normalization": rms_normalization,
    "depthwise_conv_1d": depthwise(1), "depthwise_conv_2d": depthwise(2),
}
for n in (1, 2, 3):
    ROWS[f"conv_{n}d"] = conv(n)
    ROWS[f"conv_{n}d_transpose"] = conv_transpose(n)
    for word, name in (("max", "Max"), ("average", "Average")):
        ROWS[f"{word}_pooling_{n}d"] = pooling(name, n)
        ROWS[f"global_{word}_pooling_{n}d"] = global_pooling(name, n)


def path_of(variable):
    """Ours of Keras' name for a weight."""
    parts = variable.path.split("/")[1:]
    if parts[0] not in ("kernel", "bias", "gamma", "beta", "scale", "embeddings", "moving_mean", "moving_variance"):
        parts = parts[-2:]  # of attention
    return "it." + ".".join(parts).replace("attention_output", "output")


def compute(layer, x, pull, training):
    variables = [weight.value for weight in layer.trainable_weights]

    def step():
        given = tf.constant(x)
        with tf.GradientTape() as tape:
            if x.dtype.kind == "f":
                tape.watch(given)
            y = layer(given, training=training)
            objective = tf.reduce_sum(y * tf.constant(pull)) + sum(layer.losses)
        wanted = ([given] if x.dtype.kind == "f" else []) + variables
        return y, [tf.convert_to_tensor(g) for g in
                   tape.gradient(objective, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)]

    try:
        y, gradients = step()
    except tf.errors.OpError:  # TensorFlow's kernels for the CPU lack some gradients, groups and types, which XLA has
        y, gradients = tf.function(step, jit_compile=True)()
    return np.asarray(y), [np.asarray(g) for g in gradients]


def keras_numbers(drawn, draw, dtype):
    """What goes into the layer of this type, and what Keras says of it."""
    x = drawn.x.astype(FLOATS[dtype]) if drawn.x.dtype.kind == "f" else drawn.x
    layer = drawn.layer({"f32": "float32", "f64": "float64"}[dtype])
    layer.build(x.shape)
    random = np.random.RandomState(draw.random.get_state()[1][0])  # the same numbers in both types
    given = {"x": x}
    for weight in layer.weights:
        values = random.randn(*weight.shape).astype(np.float32)
        if "variance" in weight.path:
            values = 0.5 + values * values
        weight.assign(values)
        dims = ours_dims(weight)
        given["state/" + path_of(weight)] = values.astype(FLOATS[dtype]).reshape(dims)
    shape = layer.compute_output_spec(keras.KerasTensor(x.shape, x.dtype.name)).shape
    pull = random.randn(*shape).astype(np.float32).astype(FLOATS[dtype])
    given["y"] = pull
    y, gradients = compute(layer, x, pull, drawn.training)
    want = {"y": y}
    if x.dtype.kind == "f":
        want["grad/x"] = gradients.pop(0)
    for weight, gradient in zip(layer.trainable_weights, gradients):
        want["grad/" + path_of(weight)] = gradient.reshape(ours_dims(weight))
    if drawn.training:
        for weight in layer.weights:
            if not weight.trainable and "moving" in weight.path:
                want["state/" + path_of(weight)] = np.asarray(weight)
    return given, want


def ours_dims(weight):
    """Heads and their size are one dimension of ours."""
    dims = list(weight.shape)
    if "query/" in weight.path or "key/" in weight.path or "value/" in weight.path:
        return dims[:-2] + [dims[-2] * dims[-1]]
    if "attention_output/kernel" in weight.path:
        return [dims[0] * dims[1], dims[2]]
    return dims


def layout(drawn, draw, given):
    """A mesh, and what is split over it: the examples, perhaps a spatial dimension, perhaps weights."""
    mesh, said = {"batch": 2}, {}
    rank = drawn.x.ndim
    if "pooling" in draw.row or "conv" in draw.row:
        if draw.chance():
            mesh["height"] = 2
            said["inputs"] = {"x": ["batch", "height"] + ["unsharded"] * (rank - 2)}
    rules = []
    for name, array in given.items():
        path = name.removeprefix("state/it.")
        if path == name or drawn.replicated or array.ndim == 0:
            continue
        even = [d for d in range(array.ndim) if array.shape[d] % 2 == 0]
        if drawn.rules is not None:
            even = [drawn.rules[path]] if path in drawn.rules else []
        if not even or (drawn.rules is None and draw.chance(0.3)):
            continue
        split = draw.among(even)
        mesh["model"] = 2
        rules.append({"match": "it\\." + path.replace(".", "\\."),
                      "spec": ["model" if d == split else "unsharded" for d in range(array.ndim)]})
    if rules:
        said["rules"] = rules
    return mesh, said


def draw_cases(draw):
    drawn = ROWS[draw.row](draw)
    mesh = said = None
    for dtype in ("f32", "f64"):
        if dtype in TYPES.get(draw.row, {}):
            continue
        options = dict(draw.options)
        if draw.row == "embedding" and (dtype == "f64" or "dtype" in options):
            options["dtype"] = dtype
            draw.note("dtype", dtype)
        given, want = keras_numbers(drawn, draw, dtype)
        model = drawn.model or [{draw.row: {"name": "it", **options}}]
        if mesh is None:
            mesh, said = layout(drawn, draw, given)
        # A gradient may be the difference of what its neighbours are sums of.
        magnitude = max(float(np.abs(array).max(initial=0)) for array in [given["y"], *want.values()])
        for on, layouts in ((None, None), (mesh, said)):
            yield Case("layer", draw.row, options,
                       program_of(given["x"].shape[0], model, "mean_squared_error", mesh=on, layout=layouts),
                       given, want, dtype, draw.seed, training=drawn.training,
                       magnitude=magnitude)
