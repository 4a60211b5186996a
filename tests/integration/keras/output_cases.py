"""Models of two outputs in Keras, each with a loss, a weight and a metric: the figures of a training step and the weights
behind it, which with plain descent at rate 1 are what they were less the gradient."""
import keras
import numpy as np

from exchange import FLOATS, Case

REDUCTIONS = {"mean": "sum_over_batch_size", "sum": "sum"}
# Of the second output: the loss, whether it takes from_logits, a metric of ours and Keras'.
SECOND = {
    "binary_crossentropy": ("binary_accuracy", lambda: keras.metrics.BinaryAccuracy(name="binary_accuracy", threshold=0.0)),
    "mean_squared_error": ("mean_absolute_error", lambda: keras.metrics.MeanAbsoluteError(name="mean_absolute_error")),
}
KERAS = {"binary_crossentropy": keras.losses.BinaryCrossentropy, "mean_squared_error": keras.losses.MeanSquaredError}


def draw_cases(draw):
    batch, features, hidden, classes = draw.integer(3, 7), draw.integer(2, 4), draw.integer(2, 5), draw.integer(2, 5)
    loss = draw.among(list(SECOND))
    logits = {"from_logits": True} if loss == "binary_crossentropy" else {}
    reductions = [draw.among(list(REDUCTIONS)) if draw.chance() else "mean" for _ in range(2)]
    weights = [draw.among([1.0, 0.25, 3.0]), draw.among([1.0, 0.5, 2.0])]
    l2 = draw.among([0.0, 0.125])
    metric, keras_metric = SECOND[loss]
    given = {"component/x": draw.normal(batch, features),
             "component/y": draw.random.randint(0, classes, [batch]).astype(np.int32),
             "component/odd": (draw.random.rand(batch) < 0.5).astype(np.float32)}
    shapes = {"trunk.kernel": (features, hidden), "trunk.bias": (hidden,), "digit.kernel": (hidden, classes),
              "digit.bias": (classes,), "parity.kernel": (hidden, 1), "parity.bias": (1,)}
    given |= {f"state/{path}": draw.normal(*shape) for path, shape in shapes.items()}
    trunk = {"name": "trunk", "units": hidden, "activation": "tanh", "inputs": "x"}
    if l2:
        trunk["kernel_regularizer"] = {"l2": l2}
    outputs = [{"layer": "digit", "weight": weights[0], "metrics": ["accuracy"],
                "loss": {"sparse_categorical_crossentropy": {"from_logits": True, "reduction": reductions[0]}}},
               {"layer": "parity", "labels": "odd", "weight": weights[1], "metrics": [metric],
                "loss": {loss: logits | {"reduction": reductions[1]}}}]
    for dtype in ("f32", "f64"):
        floats = {"f32": "float32", "f64": "float64"}[dtype]
        keras.config.set_floatx(floats)
        numbers = {name: array.astype(FLOATS[dtype]) if array.dtype.kind == "f" else array
                   for name, array in given.items()}
        x = keras.Input((features,), dtype=floats)
        layer = keras.layers.Dense(hidden, activation="tanh", name="trunk", dtype=floats,
                                   kernel_regularizer=keras.regularizers.L2(l2) if l2 else None)
        between = layer(x)
        model = keras.Model(x, {"digit": keras.layers.Dense(classes, name="digit", dtype=floats)(between),
                                "parity": keras.layers.Dense(1, name="parity", dtype=floats)(between)})
        for path in shapes:
            name, variable = path.split(".")
            getattr(model.get_layer(name), variable).assign(numbers[f"state/{path}"])
        model.compile(optimizer=keras.optimizers.SGD(1.0),
                      loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True,
                                                                                reduction=REDUCTIONS[reductions[0]]),
                            "parity": KERAS[loss](reduction=REDUCTIONS[reductions[1]], **logits)},
                      loss_weights={"digit": weights[0], "parity": weights[1]},
                      metrics={"digit": ["accuracy"], "parity": [keras_metric()]})
        figures = model.train_on_batch(numbers["component/x"], {"digit": numbers["component/y"],
                                                                "parity": numbers["component/odd"][:, None]},
                                       return_dict=True)
        want = {}
        for name, figure in figures.items():
            # Keras reports the sum where a loss is one, ours the mean; ours reports accuracies in f32.
            summed = name == "loss" and "sum" in reductions or name in [
                f"{output}_loss" for output, reduction in zip(("digit", "parity"), reductions) if reduction == "sum"]
            if not summed and not (dtype == "f64" and name.endswith(("accuracy", "error"))):
                want[name] = np.asarray(figure, FLOATS[dtype])
        for path in shapes:
            name, variable = path.split(".")
            want[f"state/{path}"] = np.asarray(getattr(model.get_layer(name), variable))
        for mesh in (None, {"batch": 2}, {"batch": 2, "model": 2}):
            program = {"data": {"train": {"npy": {"images": "x", "labels": "y", "more": {"odd": "odd"}}}, "batch": batch},
                       "model": {"layers": [{"dense": trunk}, {"dense": {"name": "digit", "units": classes}},
                                            {"dense": {"name": "parity", "units": 1, "inputs": "trunk"}}]},
                       "outputs": outputs, "optimizer": {"sgd": {"learning_rate": 1}}}
            if mesh:
                program["mesh"] = mesh
                program["data"]["uneven"] = True
            if mesh and "model" in mesh:
                program["layout"] = {"rules": [{"match": "trunk.kernel", "spec": ["unsharded", "model"]},
                                               {"match": "digit.kernel", "spec": ["model", "unsharded"]}]}
            yield Case("outputs", "outputs", {"losses": loss, "reductions": reductions, "weights": weights, "l2": l2},
                       program, numbers, want, dtype, draw.seed)
    keras.config.set_floatx("float32")
