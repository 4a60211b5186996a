"""The MLP's training step in PyTorch: eager or torch.compile, one device."""
import bench_common as common  # first: it starts the clock
import warnings

args = common.arguments(["eager", "compile"])
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

torch.set_num_threads(args.threads)
# torch's own form of a weight: [out, in].
params = {k: torch.from_numpy(v).t().contiguous().requires_grad_() if v.ndim == 2
          else torch.from_numpy(v).requires_grad_() for k, v in common.params().items()}


def loss_of(x, y):
    for i in range(3):
        x = F.linear(x, params[f"w{i}"], params[f"b{i}"])
        x = F.relu(x) if i < 2 else x
    return F.cross_entropy(x, y)


compiled = torch.compile(loss_of) if args.mode == "compile" else loss_of
adam = torch.optim.Adam(params.values(), 1e-3, eps=1e-7, fused=True)


def step(batch):
    adam.zero_grad(set_to_none=True)
    loss = compiled(*batch)
    loss.backward()
    adam.step()
    return loss.detach()


data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in common.batches(args.batch)]
common.measure(step, data, args, f"torch {torch.__version__}", 1, lambda loss: loss.item())
