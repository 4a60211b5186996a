"""The catalogue's optimizers in Keras: the weights after each of several steps, of gradients that are given."""
import contextlib
import unittest.mock

import keras
import keras.src.optimizers.nadam
import numpy as np

from exchange import FLOATS, Case, program_of, widen

STEPS = 5
WEIGHTS = {"first.kernel": (4, 6), "first.bias": (6,), "second.kernel": (6, 2), "second.bias": (2,)}
MODEL = [{"dense": {"name": "first", "units": 6}}, {"dense": {"name": "second", "units": 2}}]


def schedule(draw):
    """A learning rate that follows from the step: of the manifest, and of Keras."""
    seen = {row: sum(draw.drawn.get((row, "boundaries" if row.startswith("piece") else "initial"), {}).values())
            for row in SCHEDULES}
    row = min(SCHEDULES, key=seen.get)
    kind, required, optional = SCHEDULES[row]
    said, arguments = {}, {}
    for ours, theirs, values in required + optional:
        # Of each kind the first has all options, the second none.
        if (ours, theirs, values) in optional and (seen[row] == 1 or (seen[row] > 1 and draw.chance())):
            continue
        said[ours] = arguments[theirs] = draw.among(values)
        draw.note(ours, said[ours], row)
    return {row: said}, kind(**arguments)


INITIAL = ("initial", "initial_learning_rate", [0.01, 0.125])
DECAY_STEPS = ("decay_steps", "decay_steps", [2, 3, 8])
DECAY = [INITIAL, DECAY_STEPS, ("decay_rate", "decay_rate", [0.5, 0.9])]
STAIRCASE = [("staircase", "staircase", [True, False])]
# Keras' kind, and (ours, Keras', values) of the options that it must have and of those that it may have.
SCHEDULES = {
    "constant": (lambda initial_learning_rate: initial_learning_rate, [INITIAL], []),
    "exponential_decay": (keras.optimizers.schedules.ExponentialDecay, DECAY, STAIRCASE),
    "inverse_time_decay": (keras.optimizers.schedules.InverseTimeDecay, DECAY, STAIRCASE),
    "polynomial_decay": (keras.optimizers.schedules.PolynomialDecay, [INITIAL, DECAY_STEPS],
                         [("end", "end_learning_rate", [0.001]), ("power", "power", [2, 0.5]), ("cycle", "cycle", [True])]),
    "cosine_decay": (keras.optimizers.schedules.CosineDecay, [INITIAL, DECAY_STEPS], [("alpha", "alpha", [0.25])]),
    "piecewise_constant_decay": (keras.optimizers.schedules.PiecewiseConstantDecay,
                                 [("boundaries", "boundaries", [[1, 3]]), ("values", "values", [[0.125, 0.0625, 0.01]])],
                                 []),
}

# Their own options, with values; what every one takes stands in draw_cases.
BETAS = {"beta_1": [0.5, 0.8], "beta_2": [0.9, 0.99]}
EPSILON = {"epsilon": [1e-3, 0.01]}
ROWS = {
    "adam": (keras.optimizers.Adam, {**BETAS, **EPSILON, "amsgrad": [True, False]}),
    "adamw": (keras.optimizers.AdamW, {**BETAS, **EPSILON, "amsgrad": [True, False]}),
    "adamax": (keras.optimizers.Adamax, {**BETAS, **EPSILON}),
    "nadam": (keras.optimizers.Nadam, {**BETAS, **EPSILON}),
    "lion": (keras.optimizers.Lion, BETAS),
    "sgd": (keras.optimizers.SGD, {"momentum": [0.9, 0.5, 0.0], "nesterov": [True, False]}),
    "rmsprop": (keras.optimizers.RMSprop,
                {"rho": [0.5, 0.8], "momentum": [0.9, 0.5], **EPSILON, "centered": [True, False]}),
    "adagrad": (keras.optimizers.Adagrad, {"initial_accumulator_value": [0.0, 0.5], **EPSILON}),
    "ftrl": (keras.optimizers.Ftrl,
             {"learning_rate_power": [-0.25, -1.0], "initial_accumulator_value": [0.5, 1.0],
              "l1_regularization_strength": [0.05], "l2_regularization_strength": [0.5],
              "l2_shrinkage_regularization_strength": [0.05], "beta": [0.5]}),
}


class WideOps:
    """keras.ops of which cast takes a Python float for what it is; Keras' Nadam has one, and rounds it to f32."""

    def __getattr__(self, name):
        return getattr(keras.ops, name)

    def cast(self, x, dtype):
        return keras.ops.cast(np.float64(x) if type(x) is float else x, dtype)


def keras_numbers(make, weights, gradients, dtype):
    """The weights after each step."""
    with contextlib.ExitStack() as stack:
        if dtype == "f64":
            stack.enter_context(unittest.mock.patch.object(keras.src.optimizers.nadam, "ops", WideOps()))
        return weights_after(make(), weights, gradients, dtype)


def weights_after(optimizer, weights, gradients, dtype):
    if dtype == "f64":
        widen(optimizer)
        if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            widen(optimizer._learning_rate)
    variables = [keras.Variable(value.astype(FLOATS[dtype]), name=path.split(".")[1], dtype=FLOATS[dtype].__name__)
                 for path, value in weights.items()]
    optimizer.build(variables)
    want = {}
    for step, given in enumerate(gradients):
        optimizer.apply([keras.ops.convert_to_tensor(g.astype(FLOATS[dtype])) for g in given.values()], variables)
        for path, variable in zip(weights, variables):
            want[f"state/{step}/{path}"] = np.asarray(variable).copy()
    return want


def draw_cases(draw):
    kind, own = ROWS[draw.row]
    arguments = {}
    for name, values in own.items():
        if name == "nesterov" and not arguments.get("momentum"):
            continue
        value = draw.option(name, values)
        if value is not None:
            arguments[name] = value
    rate = draw.option("learning_rate", [0.125, "schedule", 0.01])
    if rate == "schedule":
        draw.options["learning_rate"], rate = schedule(draw)
    if rate is not None:
        arguments["learning_rate"] = rate
    # Of three ways to clip a text may choose one.
    clip = ["", "clipnorm", "global_clipnorm", "clipvalue"][draw.number % 4]
    if clip:
        arguments[clip] = draw.option(clip, [0.5, 2.0], always=True)
    excluded = None
    decay = draw.option("weight_decay", [0.125, 0.03])
    if decay is not None:
        arguments["weight_decay"] = decay
        excluded = draw.option("exclude_from_weight_decay", [["bias"], ["kernel"]])

    def make():
        optimizer = kind(**arguments)
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer

    weights = {path: draw.normal(*dims) for path, dims in WEIGHTS.items()}
    gradients = []
    for step in range(STEPS):
        gradients.append({path: draw.normal(*dims, scale=draw.among([0.1, 1, 3])) for path, dims in WEIGHTS.items()})
        if draw.chance(0.3):  # a weight that nothing depended on in this step
            path = draw.among(list(WEIGHTS))
            gradients[-1][path] = np.zeros_like(gradients[-1][path])
    for dtype in ("f32", "f64"):
        keras.config.set_floatx({"f32": "float32", "f64": "float64"}[dtype])
        want = keras_numbers(make, weights, gradients, dtype)
        given = {"x": np.zeros((2, 4), FLOATS[dtype]), "y": np.zeros((2, 2), FLOATS[dtype])}
        for path, value in weights.items():
            given[f"state/{path}"] = value.astype(FLOATS[dtype])
        for step, of_step in enumerate(gradients):
            for path, value in of_step.items():
                given[f"grad/{step}/{path}"] = value.astype(FLOATS[dtype])
        split = {"rules": [{"match": ".*kernel", "spec": draw.among([["unsharded", "model"], ["model", "unsharded"]])},
                           {"match": "first.bias", "spec": ["model"]}]}
        for mesh, layout in ((None, None), ({"batch": 2, "model": 2}, split)):
            program = program_of(2, MODEL, "mean_squared_error", {draw.row: draw.options} if draw.options else draw.row,
                                 mesh=mesh, layout=layout)
            yield Case("optimizer", draw.row, draw.options, program, given, want, dtype, draw.seed,
                       magnitude=max(float(np.abs(value).max()) for value in weights.values()))
    keras.config.set_floatx("float32")
