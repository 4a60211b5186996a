"""A model's training step in PyTorch: eager or torch.compile, one device, images with their channels last."""
import bench_common as common  # first: it starts the clock
import bench_models as models
import warnings

args = models.arguments(["eager", "compile"])
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(args.threads)


def parameter(name, value):
    """In torch's own forms: [out, in], and [out, in, height, width] with the channels last in memory."""
    value = torch.from_numpy(value)
    if value.ndim == 4:
        value = value.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    elif name.endswith(".kernel"):
        value = value.t().contiguous()
    return value.requires_grad_()


w = {k: parameter(k, v) for k, v in models.weights(args.model).items()}
moving = {k: (torch.zeros_like(v), torch.ones_like(v)) for k, v in w.items() if k.endswith("_bn.gamma")}


def dense(name, x):
    return F.linear(x, w[name + ".kernel"], w.get(name + ".bias"))


def layer_norm(name, x):
    return F.layer_norm(x, (models.WIDTH,), w[name + ".gamma"], w[name + ".beta"], models.NORM_EPSILON)


def block(prefix, x, causal):
    size, t, width = x.shape
    qkv = dense(prefix + "attention.qkv", layer_norm(prefix + "ln1", x)).view(size, t, 3, models.HEADS, -1)
    sums = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=causal)
    x = x + dense(prefix + "attention.output", sums.transpose(1, 2).reshape(x.shape))
    return x + dense(prefix + "mlp.down", F.gelu(dense(prefix + "mlp.up", layer_norm(prefix + "ln2", x)), approximate="tanh"))


def conv_norm(name, x, stride=1):
    kernel, gamma = w[name + ".kernel"], name + "_bn.gamma"
    if stride == 1:
        x = F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)
    else:  # "same" of the others: nothing before the image, a row and a column behind it
        x = F.conv2d(F.pad(x, (0, 1, 0, 1)) if kernel.shape[-1] == 3 else x, kernel, stride=stride)
    return F.batch_norm(x, *moving[gamma], w[gamma], w[name + "_bn.beta"], True, 1 - models.MOMENTUM, models.NORM_EPSILON)


def predict(x):
    if args.model == "cnn":
        for name in ("conv_1", "conv_2"):
            x = F.max_pool2d(F.relu(F.conv2d(x, w[name + ".kernel"], w[name + ".bias"], padding=1)), 2)
        return dense("logits", F.relu(dense("hidden", x.flatten(1))))
    if args.model == "block":
        return block("", x, causal=False)
    if args.model == "lm":
        x = F.embedding(x, w["token_embedding.embeddings"]) + w["position_embedding.embeddings"]
        for i in range(models.BLOCKS):
            x = block(f"block{i}.", x, causal=True)
        return dense("logits", layer_norm("final_ln", x)).flatten(0, 1)
    x = F.relu(conv_norm("stem.conv", x))
    for name, stride in models.STAGES:
        y = conv_norm(name + ".conv2", F.relu(conv_norm(name + ".conv1", x, stride)))
        x = F.relu(y + (conv_norm(name + ".projection", x, stride) if name + ".projection.kernel" in w else x))
    return dense("logits", x.mean((2, 3)))


def loss_of(x, y):
    return (F.mse_loss if args.model == "block" else F.cross_entropy)(predict(x), y)


if args.model == "resnet":
    optimizer = torch.optim.SGD(w.values(), models.SGD_RATE, models.MOMENTUM, fused=True)
else:
    rate, epsilon, decay = models.ADAM[args.model]
    optimizer = torch.optim.AdamW(w.values(), rate, eps=epsilon, weight_decay=decay, fused=True)
compiled = torch.compile(loss_of) if args.mode == "compile" else loss_of
batches = models.Batches(args.model, args.folder)


def put(k):
    x, y = map(torch.from_numpy, batches(k))
    # Images [N, H, W, C] seen as [N, C, H, W] have their channels last.
    x = x.permute(0, 3, 1, 2) if x.ndim == 4 else x
    return x, y if args.model == "block" else y.flatten().long()


def step(batch):
    optimizer.zero_grad(set_to_none=True)
    loss = compiled(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


common.measure(step, [put(k) for k in range(8)], args, f"torch {torch.__version__}", 1, lambda loss: loss.item(), put)
