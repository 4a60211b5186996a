#!/usr/bin/env python3
"""Keras' numbers for its transposed and depthwise convolutions, which tests/runtime/nn/conv_layers_test.cc compares ours
with.   make.py    with Keras 3 and TensorFlow, writes keras.txt: a line for each array: name, how many numbers, numbers
For each case: the weights, the result, the gradients of sum(result * pull)."""
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

keras.config.set_floatx("float64")
random = np.random.RandomState(12)
x = random.randn(2, 5, 4, 3)
CASES = {
    "transpose_same": keras.layers.Conv2DTranspose(2, 3, strides=2, padding="same"),
    "transpose_valid": keras.layers.Conv2DTranspose(2, (4, 2), strides=(3, 1)),
    "transpose_gaps": keras.layers.Conv2DTranspose(2, 2, strides=3),
    "depthwise": keras.layers.DepthwiseConv2D(3, depth_multiplier=2, padding="same"),
    "depthwise_strided": keras.layers.DepthwiseConv2D(2, strides=2),
}

out = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "keras.txt"), "w")


def save(name, array):
    numbers = np.asarray(array, np.float64).ravel()
    out.write(" ".join([name, str(len(numbers))] + [repr(float(v)) for v in numbers]) + "\n")


save("x", x)
for name, layer in CASES.items():
    layer.build(x.shape)
    for weight in layer.trainable_weights:
        weight.assign(random.randn(*weight.shape))
        save(f"{name}.{weight.name}", weight)
    with tf.GradientTape() as tape:
        given = tf.constant(x)
        tape.watch(given)
        y = layer(given)
        pull = random.randn(*y.shape)
        loss = tf.reduce_sum(y * pull)
    save(f"{name}.pull", pull)
    save(f"{name}.y", y)
    wrt = [given] + [w.value for w in layer.trainable_weights]
    for what, gradient in zip(["x"] + [w.name for w in layer.trainable_weights], tape.gradient(loss, wrt)):
        save(f"{name}.grad_{what}", gradient)
out.close()
