"""The catalogue's losses in Keras: of each example, of the batch, and the gradient of the predictions."""
import keras
import numpy as np
import tensorflow as tf

from exchange import FLOATS, Case, program_of

KERAS = {
    "sparse_categorical_crossentropy": keras.losses.SparseCategoricalCrossentropy,
    "categorical_crossentropy": keras.losses.CategoricalCrossentropy,
    "binary_crossentropy": keras.losses.BinaryCrossentropy,
    "mean_squared_error": keras.losses.MeanSquaredError,
    "mean_absolute_error": keras.losses.MeanAbsoluteError,
    "mse": keras.losses.MeanSquaredError,
    "mae": keras.losses.MeanAbsoluteError,
}
ROWS = dict.fromkeys(KERAS)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


def sigmoid(x):
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)


def classes_of(draw, from_logits, dims):
    """Predictions of classes [N, ..., C], some of them as far out as they may be."""
    logits = draw.normal(*dims, scale=draw.among([1, 3, 30] if from_logits else [1, 3]))
    if from_logits:
        return logits
    shares = softmax(logits)
    if draw.chance():  # certain of one class: what is 0 or 1 is cut
        rows = shares.reshape(-1, dims[-1])
        rows[0] = np.eye(dims[-1], dtype=np.float32)[draw.integer(0, dims[-1] - 1)]
    return shares


def probabilities_of(draw, from_logits, dims):
    logits = draw.normal(*dims, scale=draw.among([1, 3, 30] if from_logits else [1, 3]))
    if from_logits:
        return logits
    shares = sigmoid(logits)
    if draw.chance():
        shares.reshape(-1)[:2] = [0, 1][:shares.size]
    return shares


def inputs(draw, row, from_logits):
    """Predictions and labels of one batch."""
    batch = draw.integer(3, 6)
    middle = [draw.integer(2, 4) for _ in range(draw.integer(0, 1))]
    if row in ("sparse_categorical_crossentropy", "categorical_crossentropy"):
        dims = [batch, *middle, draw.integer(2, 6)]
        predictions = classes_of(draw, from_logits, dims)
        numbers = draw.random.randint(0, dims[-1], dims[:-1])
        if row.startswith("sparse"):
            return predictions, numbers.astype(draw.among([np.int32, np.int64, np.uint8]))
        labels = np.eye(dims[-1], dtype=np.float32)[numbers]
        if draw.chance():  # shares that add up to 1 exactly: Keras' gradient takes their sum for 1
            rest = np.floor(16 * softmax(draw.normal(*dims))) / 64
            labels = labels * (1 - rest.sum(-1, keepdims=True)) + rest
        return predictions, labels.astype(np.float32)
    dims = draw.among([[batch, 1], [batch, *middle, draw.integer(2, 5)]])
    if row == "binary_crossentropy":
        predictions = probabilities_of(draw, from_logits, dims)
        labels = draw.random.rand(*dims)
        labels = (labels > 0.5).astype(draw.among([np.float32, np.int32, np.uint8])) if draw.chance() else labels
    else:
        predictions, labels = draw.normal(*dims), draw.normal(*dims)
        if draw.chance():  # some that are right
            labels.reshape(-1)[:2] = predictions.reshape(-1)[:2]
    if labels.dtype == np.float64:
        labels = labels.astype(np.float32)
    if len(dims) == 2 and dims[-1] == 1 and draw.chance():
        labels = labels[:, 0]
    return predictions, labels


def keras_numbers(loss, x, y):
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        each = loss.call(tf.constant(y), given)
        value = loss(tf.constant(y), given)
    return {"each": np.asarray(each), "value": np.asarray(value), "loss": np.mean(np.asarray(each)),
            "grad/x": np.asarray(tape.gradient(value, given))}


def draw_cases(draw):
    reduction = draw.option("reduction", ["sum", "mean"])
    from_logits = draw.option("from_logits", [True, False]) if "crossentropy" in draw.row else None
    arguments = {} if from_logits is None else {"from_logits": from_logits}
    if reduction:
        arguments["reduction"] = {"sum": "sum", "mean": "sum_over_batch_size"}[reduction]
    predictions, labels = inputs(draw, draw.row, bool(from_logits))
    for dtype in ("f32", "f64"):
        keras.config.set_floatx({"f32": "float32", "f64": "float64"}[dtype])
        x = predictions.astype(FLOATS[dtype])
        y = labels.astype(FLOATS[dtype]) if labels.dtype.kind == "f" else labels
        want = keras_numbers(KERAS[draw.row](**arguments), x, y)
        want = {name: np.asarray(array, FLOATS[dtype]) for name, array in want.items()}
        for mesh in (None, {"batch": 2}):
            loss = {draw.row: draw.options} if draw.options else draw.row
            program = program_of(x.shape[0], [{"activation": {"activation": "linear"}}], loss, mesh=mesh)
            yield Case("loss", draw.row, draw.options, program, {"x": x, "y": y}, want, dtype, draw.seed)
    keras.config.set_floatx("float32")
