#!/usr/bin/env python3
"""Keras' numbers for its layers that normalise, which tests/runtime/nn/normalization_test.cc compares ours with.
   make.py    with Keras 3 and TensorFlow, writes keras.txt: a line for each array, its name, how many numbers, the numbers
For each case: the weights given, the result in training, the gradients of sum(result * pull), and of batch
normalisation the moving averages after that step and the result outside training that follows them."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))
keras.config.set_floatx("float64")
random = np.random.RandomState(11)
x = random.randn(4, 3, 2, 6) * 2 + 1
pull = random.randn(4, 3, 2, 6)
CASES = {
    "batch": keras.layers.BatchNormalization(),
    "batch_axis": keras.layers.BatchNormalization(axis=1, momentum=0.8, epsilon=1e-5),
    "layer": keras.layers.LayerNormalization(),
    "layer_axes": keras.layers.LayerNormalization(axis=[1, 3], epsilon=1e-5),
    "group": keras.layers.GroupNormalization(groups=3),
    "rms": keras.layers.RMSNormalization(),
}


out = open(os.path.join(FOLDER, "keras.txt"), "w")


def save(name, array):
    numbers = np.asarray(array, np.float64).ravel()
    out.write(" ".join([name, str(len(numbers))] + [repr(float(v)) for v in numbers]) + "\n")


save("x", x)
save("pull", pull)
for name, layer in CASES.items():
    layer.build(x.shape)
    for weight in layer.trainable_weights:
        weight.assign(random.randn(*weight.shape))
        save(f"{name}.{weight.name}", weight)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = layer(given, training=True)
        loss = tf.reduce_sum(y * pull)
    wrt = [given] + [w.value for w in layer.trainable_weights]
    save(f"{name}.y", y)
    for what, gradient in zip(["x"] + [w.name for w in layer.trainable_weights], tape.gradient(loss, wrt)):
        save(f"{name}.grad_{what}", gradient)
    for weight in layer.non_trainable_weights:
        save(f"{name}.{weight.name}", weight)
    if layer.non_trainable_weights:
        save(f"{name}.after", layer(given, training=False))
out.close()
