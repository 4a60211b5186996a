"""The rows of the catalogue that are held against Keras, and what is not, with the reason: rows, and options of the others.
A row or an option that stands nowhere here fails a test, and so does a name that no row has."""

# Drawn by the file of each kind.
COMPARED = {
    "layers": """
        dense activation dropout flatten reshape permute repeat_vector
        add subtract multiply average maximum minimum concatenate embedding multi_head_attention
        batch_normalization layer_normalization group_normalization rms_normalization
        conv_1d conv_2d conv_3d conv_1d_transpose conv_2d_transpose conv_3d_transpose
        depthwise_conv_1d depthwise_conv_2d
        max_pooling_1d max_pooling_2d max_pooling_3d average_pooling_1d average_pooling_2d average_pooling_3d
        global_max_pooling_1d global_max_pooling_2d global_max_pooling_3d
        global_average_pooling_1d global_average_pooling_2d global_average_pooling_3d""".split(),
    "losses": """
        sparse_categorical_crossentropy categorical_crossentropy binary_crossentropy
        mean_squared_error mean_absolute_error mse mae""".split(),
    "metrics": """
        accuracy binary_accuracy categorical_accuracy sparse_categorical_accuracy
        top_k_categorical_accuracy sparse_top_k_categorical_accuracy
        perplexity precision recall auc pr_auc mean_squared_error mean_absolute_error mse mae
        label_mean prediction_mean""".split(),
    "optimizers": "adam adamw adamax nadam lion sgd rmsprop adagrad ftrl".split(),
    "schedules": """
        constant exponential_decay inverse_time_decay polynomial_decay cosine_decay piecewise_constant_decay""".split(),
}

GIVEN = "first values are given here; ours are drawn from streams that PhiloxTest holds against TensorFlow's"
LAYOUT = "says where a weight lies; the cases split weights by layout.rules"

NOT_COMPARED = {
    "layers": {
        "position_embedding": "Keras has none (KerasHub's PositionEmbedding is a package of its own)",
    },
    "losses": {},
    "metrics": {},
    "optimizers": {
        "adam_paper": "Keras' Adam is `adam`; this is the one that DTensor's tutorial writes",
    },
    "schedules": {},
}

# "ROW.OPTION", or "*.OPTION" of every row.
OPTIONS = {
    "layers": {
        "*.kernel_initializer": GIVEN,
        "*.bias_initializer": GIVEN,
        "*.embeddings_initializer": GIVEN,
        "*.beta_initializer": GIVEN,
        "*.gamma_initializer": GIVEN,
        "*.moving_mean_initializer": GIVEN,
        "*.moving_variance_initializer": GIVEN,
        **{f"*.{weight}_layout": LAYOUT for weight in
           ("kernel", "bias", "embeddings", "beta", "gamma", "scale", "moving_mean", "moving_variance")},
        **{f"multi_head_attention.{projection}_{weight}_layout": LAYOUT for projection in
           ("query", "key", "value", "output") for weight in ("kernel", "bias")},
        "multi_head_attention.rope_max_wavelength": "Keras has no rotary positions (KerasHub's RotaryEmbedding is another "
                                                    "package)",
        "multi_head_attention.seed": "keys what dropout draws, and Keras draws other numbers: with `dropout` the layer is "
                                     "compared outside training",
    },
    "losses": {},
    "metrics": {},
    "optimizers": {},
    "schedules": {
        "*.warmup_steps": "Keras warms up cosine_decay alone, from a rate of its own at step 0; ours begins at one part of "
                          "warmup_steps",
    },
}

# Words of options that are compared.
WORDS = {
    "dtype": {word: "16 bits are held against our own f32 (PrecisionTest): where they round is ours" for word in
              ("bf16", "f16")},
}

# Types of rows that are compared in another one.
TYPES = {
    "max_pooling_3d": {"f64": "TensorFlow has no such kernel of f64"},
}
