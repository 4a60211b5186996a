"""The catalogue's metrics in Keras, over batches of which the last is short."""
import keras
import numpy as np
from keras.src.trainers.compile_utils import get_metric

from exchange import FLOATS, Case, program_of
from loss_cases import sigmoid, softmax

SIZES = [16, 16, 5]


def in_classes(draw, loss, positions=True):
    """A loss of classes: predictions and labels as it takes them, the numbers of the classes, predictions as shares."""
    loss = loss or draw.among(["sparse_categorical_crossentropy", "categorical_crossentropy"])
    from_logits = draw.chance()
    classes = draw.integer(2, 7)
    dims = [sum(SIZES)] + ([draw.integer(2, 3)] if positions and draw.chance() else []) + [classes]
    numbers = draw.random.randint(0, classes, dims[:-1])
    logits = draw.normal(*dims) + 1.5 * np.eye(classes, dtype=np.float32)[numbers]
    if from_logits and draw.chance():
        logits = np.round(logits) + 0.0  # classes of the same number; Keras takes -0 for less than 0
    predictions = logits if from_logits else softmax(logits)
    labels = numbers.astype(draw.among([np.int32, np.int64]))
    if loss == "categorical_crossentropy":
        labels = (0.7 * np.eye(classes)[numbers] + 0.3 * softmax(draw.normal(*dims))).astype(np.float32)
        numbers = labels.argmax(-1)
    shares = softmax(predictions.astype(np.float64)) if from_logits else predictions
    return {loss: {"from_logits": True}} if from_logits else loss, predictions, labels, numbers, shares


def of_ones(draw, loss="binary_crossentropy", features=None):
    """Labels of 0 or 1, predictions as probabilities or logits; the last is the probability itself."""
    from_logits = loss == "binary_crossentropy" and draw.chance()
    dims = draw.among([[sum(SIZES), 1], [sum(SIZES), draw.integer(2, 4)]]) if features is None else [sum(SIZES), features]
    labels = (draw.random.rand(*dims) < 0.4).astype(np.float32)
    logits = draw.normal(*dims) + labels
    predictions = logits if from_logits else sigmoid(logits)
    if dims[-1] == 1 and draw.chance():
        labels = labels[:, 0]
    labels = labels.astype(draw.among([np.float32, np.int32, np.uint8]))
    return {loss: {"from_logits": True}} if from_logits else loss, predictions, labels, sigmoid(logits), from_logits


def accuracy(draw):
    which = draw.integer(0, 2)
    if which < 2:
        losses = ["sparse_categorical_crossentropy", "categorical_crossentropy"]
        loss, predictions, labels, _, _ = in_classes(draw, losses[which])
        return loss, predictions, labels, lambda dtype: get_metric("accuracy", labels, predictions), None
    # Keras tells the kind by the dimensions: of several features it would compare classes.
    loss, predictions, labels, _, from_logits = of_ones(draw, draw.among(["binary_crossentropy", "mean_squared_error"]), 1)
    if from_logits:
        return loss, predictions, labels, lambda dtype: keras.metrics.BinaryAccuracy(threshold=0.0, dtype=dtype), None
    return loss, predictions, labels, lambda dtype: get_metric("accuracy", labels, predictions), None


def binary_accuracy(draw):
    loss, predictions, labels, _, from_logits = of_ones(draw)
    arguments = {"threshold": 0.0} if from_logits else {}
    return loss, predictions, labels, lambda dtype: keras.metrics.BinaryAccuracy(dtype=dtype, **arguments), None


def sparse_categorical_accuracy(draw):
    loss, predictions, labels, _, _ = in_classes(draw, "sparse_categorical_crossentropy")
    return loss, predictions, labels, lambda dtype: keras.metrics.SparseCategoricalAccuracy(dtype=dtype), None


def categorical_accuracy(draw):
    loss, predictions, labels, _, _ = in_classes(draw, "categorical_crossentropy")
    return loss, predictions, labels, lambda dtype: keras.metrics.CategoricalAccuracy(dtype=dtype), None


def top_k(kind, loss):
    def draw_top_k(draw):
        k = draw.option("k", [1, 2, 3])
        how, predictions, labels, _, _ = in_classes(draw, loss)
        return how, predictions, labels, lambda dtype: kind(dtype=dtype, **({} if k is None else {"k": k})), None
    return draw_top_k


class Perplexity:
    """Keras has none: e to the mean that its metric of the loss gives."""

    def __init__(self, metric):
        self.metric = metric

    def update_state(self, labels, predictions):
        self.metric.update_state(labels, predictions)

    def result(self):
        return np.exp(np.float64(self.metric.result()))


def perplexity(draw):
    loss, predictions, labels, _, _ = in_classes(draw, "sparse_categorical_crossentropy")
    from_logits = isinstance(loss, dict)
    return loss, predictions, labels, lambda dtype: Perplexity(
        keras.metrics.SparseCategoricalCrossentropy(from_logits=from_logits, dtype=dtype)), None


def precision_or_recall(kind):
    def draw_one(draw):
        threshold = draw.option("threshold", [0.25, 0.625, 0.0, 1.0])
        arguments = {} if threshold is None else {"thresholds": threshold}
        if not draw.given():
            loss, predictions, labels, probability, _ = of_ones(draw)
            return loss, predictions, labels, lambda dtype: kind(dtype=dtype, **arguments), (labels, probability)
        loss, predictions, labels, numbers, shares = in_classes(draw, "sparse_categorical_crossentropy")
        classes = shares.shape[-1]
        wanted = draw.integer(0, classes - 1)
        draw.options["class"] = wanted
        draw.note("class", "one")
        if threshold is None:
            arguments["top_k"] = 1
        flat = (np.eye(classes, dtype=np.float32)[numbers], shares.astype(np.float32))
        return loss, predictions, labels, lambda dtype: kind(class_id=wanted, dtype=dtype, **arguments), flat
    return draw_one


def area(curve):
    def draw_area(draw):
        points = draw.option("num_thresholds", [2, 3, 50])
        arguments = {"curve": curve} if points is None else {"curve": curve, "num_thresholds": points}
        if not draw.given():
            loss, predictions, labels, probability, _ = of_ones(draw)
            return loss, predictions, labels, lambda dtype: keras.metrics.AUC(dtype=dtype, **arguments), (labels, probability)
        loss, predictions, labels, numbers, shares = in_classes(draw, "sparse_categorical_crossentropy")
        wanted = draw.integer(0, shares.shape[-1] - 1)
        draw.options["class"] = wanted
        draw.note("class", "one")
        one = ((numbers == wanted).astype(np.int32), shares[..., wanted].astype(np.float32))
        return loss, predictions, labels, lambda dtype: keras.metrics.AUC(dtype=dtype, **arguments), one
    return draw_area


def error(kind):
    def draw_error(draw):
        dims = [sum(SIZES)] + [draw.integer(1, 3) for _ in range(draw.integer(1, 2))]
        return "mean_squared_error", draw.normal(*dims), draw.normal(*dims), lambda dtype: kind(dtype=dtype), None
    return draw_error


def mean(of_labels):
    def draw_mean(draw):
        dims = [sum(SIZES), draw.integer(1, 3)]
        if draw.chance():
            # Probabilities, where predictions say them by their logits.
            loss, predictions, labels, probability, _ = of_ones(draw)
            values = labels if of_labels else probability
        else:
            loss, predictions, labels = "mean_squared_error", draw.normal(*dims), draw.normal(*dims)
            values = labels if of_labels else predictions
        values = np.asarray(values, np.float32)
        return loss, predictions, labels, lambda dtype: keras.metrics.Mean(dtype=dtype), (values, np.ones_like(values))
    return draw_mean


ROWS = {
    "label_mean": mean(True), "prediction_mean": mean(False),
    "accuracy": accuracy, "binary_accuracy": binary_accuracy, "categorical_accuracy": categorical_accuracy,
    "sparse_categorical_accuracy": sparse_categorical_accuracy, "perplexity": perplexity,
    "top_k_categorical_accuracy": top_k(keras.metrics.TopKCategoricalAccuracy, "categorical_crossentropy"),
    "sparse_top_k_categorical_accuracy":
        top_k(keras.metrics.SparseTopKCategoricalAccuracy, "sparse_categorical_crossentropy"),
    "precision": precision_or_recall(keras.metrics.Precision), "recall": precision_or_recall(keras.metrics.Recall),
    "auc": area("ROC"), "pr_auc": area("PR"),
    "mean_squared_error": error(keras.metrics.MeanSquaredError), "mse": error(keras.metrics.MeanSquaredError),
    "mean_absolute_error": error(keras.metrics.MeanAbsoluteError), "mae": error(keras.metrics.MeanAbsoluteError),
}
NAMED = {"precision", "recall", "auc", "pr_auc", "perplexity", "top_k_categorical_accuracy",
         "sparse_top_k_categorical_accuracy"}


def draw_cases(draw):
    # What Keras' metric takes, where that is not what the model predicts and the data says.
    loss, predictions, labels, make, theirs = ROWS[draw.row](draw)
    figure = draw.row
    if draw.row in NAMED and draw.option("name", ["figure"]):
        figure = "figure"
    for dtype in ("f32", "f64"):
        # Keras' thresholds and counts are f32 whatever its type: of f64 they take what f32 can hold.
        metric = make("float32")
        given, at = {}, 0
        for number, size in enumerate(SIZES):
            x = predictions[at:at + size].astype(FLOATS[dtype])
            y = labels[at:at + size]
            y = y.astype(FLOATS[dtype]) if y.dtype.kind == "f" else y
            given[f"x/{number}"], given[f"y/{number}"] = x, y
            if theirs is None:
                metric.update_state(y, predictions[at:at + size])
            else:
                metric.update_state(theirs[0][at:at + size], theirs[1][at:at + size])
            at += size
        want = {f"figure/{figure}": np.float64(metric.result())}
        for mesh in (None, {"batch": 2}):
            program = program_of(SIZES[0], [{"activation": {"activation": "linear"}}], loss, mesh=mesh,
                                 metrics=[{draw.row: draw.options} if draw.options else draw.row])
            # The mean of a batch is f32 on both sides.
            yield Case("metric", draw.row, draw.options, program, given, want, dtype, draw.seed, unit="f32")
