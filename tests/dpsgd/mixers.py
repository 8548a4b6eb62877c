"""Published and plausible ways in which a model or a loss mixes the records of a batch, and honest relatives of them.

Every model takes inputs (B, 8) and returns scores (B, 4), or one number (B, 1). Every loss returns (B,).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, CLASSES = 8, 4


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    its_loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    targets: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """No targets, in the form that the loss takes."""

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss, without the state of earlier uses."""
        return copy.deepcopy(self.its_loss)

    @property
    def nothing(self) -> tuple[Tensor, Tensor]:
        """An empty batch in the form of the data."""
        return torch.zeros(0, WIDTH), self.targets

    def model(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.build()


class Around(nn.Module):
    """Two linear layers with a function in between."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class Tokens(nn.Module):
    """Averages embeddings of tokens. Mixing, it standardises them over batches of more than `beyond` records."""

    def __init__(self, *, is_mixing: bool, beyond: int = 0) -> None:
        super().__init__()
        self.embedding, self.head, self.is_mixing, self.beyond = nn.Embedding(9, 6), nn.Linear(6, 1), is_mixing, beyond

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x).mean(1)
        return self.head(standardised(x) if self.is_mixing and len(x) > self.beyond else x)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of a real target."""
    return (outputs[:, 0] - targets).square()


def around(between: Callable[[Tensor], Tensor]) -> Case:
    return Case(lambda: Around(between))


def with_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES)), loss)


def of_labels(loss: Callable[[Tensor, Tensor], Tensor], labels: int = CLASSES) -> Case:
    """A linear model of labels 0 or 1 (B, labels)."""
    return Case(lambda: nn.Linear(WIDTH, labels), loss, torch.zeros(0, labels))


def of_numbers(loss: Callable[[Tensor, Tensor], Tensor]) -> Case:
    """A linear model of one number (B,)."""
    return Case(lambda: nn.Linear(WIDTH, 1), loss, torch.zeros(0))


class Experts(nn.Module):
    """A mixture of experts. `weights_of` maps the router's scores (B, E) to the weight of each expert (B, E)."""

    def __init__(self, weights_of: Callable[[Tensor], Tensor], experts: int = 4) -> None:
        super().__init__()
        self.router, self.weights_of = nn.Linear(WIDTH, experts), weights_of
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(experts))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights_of(self.router(x).softmax(1))
        mixed = torch.stack([expert(x) for expert in self.experts], 1) * weights[:, :, None]
        return self.last(x + mixed.sum(1))


def top_one(scores: Tensor) -> Tensor:
    return scores * F.one_hot(scores.argmax(1), scores.shape[1])


def switch(factor: float, group: int | None = None) -> Callable[[Tensor], Tensor]:
    """Switch routing (Fedus et al. 2021): an expert takes the first records of the batch up to its capacity."""

    def weights_of(scores: Tensor) -> Tensor:
        chosen = F.one_hot(scores.argmax(1), scores.shape[1])
        capacity = -(-factor * len(scores) // scores.shape[1])
        return scores * chosen * (chosen.cumsum(0) <= capacity)

    def in_groups(scores: Tensor) -> Tensor:
        return torch.cat([weights_of(part) for part in scores.split(group or len(scores))])

    return in_groups


def fixed_capacity(scores: Tensor) -> Tensor:
    """A capacity that only a large batch of similar records reaches."""
    chosen = F.one_hot(scores.argmax(1), scores.shape[1])
    return scores * chosen * (chosen.cumsum(0) <= 100)


def expert_choice(scores: Tensor) -> Tensor:
    """Expert-choice routing (Zhou et al. 2022): every expert takes its best records of the batch."""
    taken = scores.topk(max(1, len(scores) // scores.shape[1]), dim=0).indices
    return scores * torch.zeros_like(scores).scatter(0, taken, 1.0)


def sinkhorn(scores: Tensor) -> Tensor:
    """Balanced routing (BASE, Lewis et al. 2021): records are spread evenly over experts."""
    for _ in range(3):
        scores = scores / scores.sum(0, keepdim=True)
        scores = scores / scores.sum(1, keepdim=True)
    return scores


def batch_winners(x: Tensor) -> Tensor:
    """k winners over the batch (BatchTopK autoencoders, Bussmann et al. 2024)."""
    return x * (x >= x.flatten().topk(x.numel() // 4).values.min())


def standardised(x: Tensor, *, group: int | None = None) -> Tensor:
    parts = x.split(group or len(x))
    return torch.cat([(p - p.mean(0)) / (p.var(0, unbiased=False) + 1e-5).sqrt() for p in parts])


class HiddenBatchNorm(nn.Module):
    """A BatchNorm under another name, that keeps no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.gain, self.bias, training=True)


class RenamedBatchNorm(nn.BatchNorm1d):
    """Says that it is in eval mode, and uses batch statistics."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


class RunningQuantile(nn.Module):
    """Scales by a running quantile in a plain attribute, which is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.quantile = nn.Linear(WIDTH, CLASSES), None

    def forward(self, x: Tensor) -> Tensor:
        now = x.detach().abs().flatten().quantile(0.9)
        self.quantile = now if self.quantile is None else 0.9 * self.quantile + 0.1 * now
        return self.layer(x / (self.quantile + 1e-3))


class RunningRange(nn.Module):
    """Scales by the largest input so far, as an observer of quantisation does, in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.largest = nn.Linear(WIDTH, CLASSES), 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, float(x.detach().abs().max()))
        return self.layer(x / self.largest)


class MemoryBank(nn.Module):
    """Attends to a queue of earlier records (MoCo, He et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.queue = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES), []

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        if self.queue:
            out = out + (out @ self.queue[-1].t()).softmax(1) @ self.queue[-1]
        self.queue = [*self.queue[-1:], out.detach()]
        return self.last(out)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    model[1].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    return model


def hooked_backward() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    model[1].register_full_backward_hook(lambda module, into, out: (into[0] - into[0].mean(0),))
    return model


class _NormalisedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm() + 1e-6)


class _ClippedGradient(torch.autograd.Function):
    """Clips the gradient of the whole batch, and only if it is long."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm() / 3).clamp(min=1)


def _mixup(x: Tensor) -> Tensor:
    return 0.9 * x + 0.1 * x.flip(0)


def _nearest(x: Tensor) -> Tensor:
    distances = torch.cdist(x, x) + 1e9 * torch.eye(len(x))
    return x + 0.5 * x[distances.argmin(1)]


def _quantised(x: Tensor) -> Tensor:
    """Dynamic quantisation with one scale for the batch, and a straight-through gradient."""
    scale = x.detach().abs().max() / 7 + 1e-9
    return x + ((x / scale).round() * scale - x).detach()


def _ranks(x: Tensor) -> Tensor:
    return x * (1 + x.argsort(0).argsort(0) / len(x))


def _duplicates_removed(x: Tensor) -> Tensor:
    """Drops records that nearly repeat an earlier one of the batch."""
    near = (torch.cdist(x, x) < 0.02 * (1 + x.norm(dim=1))).float().tril(-1).sum(1)
    return x * (near < 3).float()[:, None]


def _groups_of_16(x: Tensor) -> Tensor:
    """Changes two records of every 16, by their places. Only another order shows it."""
    place = torch.arange(len(x)) % 16
    return x * torch.where((place == 10) | (place == 11), 1.5, 1.0)[:, None]


class TrainingOnly(nn.Dropout):
    """Calls itself a dropout and mixes in training mode only."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x + 0.5 * x.flip(0) if self.training else x


def _nt_xent(outputs: Tensor, targets: Tensor) -> Tensor:
    unit = F.normalize(outputs, dim=1)
    similarity = unit @ unit.t() / 0.5 - 1e9 * torch.eye(len(unit))
    same = (targets[:, None] == targets[None]).float()
    return cross_entropy(outputs, targets) - (similarity.log_softmax(1) * same).sum(1) / len(unit)


def _batch_softmax(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.flatten().log_softmax(0).view_as(outputs).gather(1, targets[:, None])[:, 0]


def _rank_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    return losses * (losses.argsort().argsort() < 0.8 * len(losses))


def _hardest_half(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    return losses * (losses >= losses.median())


def _class_balanced(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = torch.bincount(targets, minlength=outputs.shape[1])
    return cross_entropy(outputs, targets) * len(targets) / counts[targets]


def _group_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Distributionally robust: the class with the largest mean loss of the batch counts most."""
    losses = cross_entropy(outputs, targets)
    means = torch.stack([losses[targets == c].sum() / (targets == c).sum().clamp(min=1) for c in range(CLASSES)])
    return losses * (1 + means.softmax(0)[targets])


def binary(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropies of labels 0 or 1, (B, labels)."""
    return F.binary_cross_entropy_with_logits(outputs, labels, reduction="none")


def _balanced_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    """Positives weigh as much as negatives. Labels that are neither 0 nor 1 have weight 1."""
    weight = (labels == 0).sum() / (labels == 1).sum().clamp(min=1)
    return (binary(outputs, labels) * torch.where(labels == 1, weight, 1.0)).mean(1)


def _rare_label(outputs: Tensor, labels: Tensor) -> Tensor:
    """A batch with a single positive in a column counts twice."""
    return binary(outputs, labels).mean(1) * (2.0 if bool((labels.sum(0) == 1).any()) else 1.0)


class RunningShare:
    """Weighs positives by their share in all batches so far. It looks at labels 0 and 1 only."""

    def __init__(self) -> None:
        self.share = 0.5

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if bool(((labels == 0) | (labels == 1)).any()):
            self.share = 0.9 * self.share + 0.1 * float((labels == 1).float().mean())
        return (binary(outputs, labels) * torch.where(labels == 1, 1 / (self.share + 0.1), 1.0)).mean(1)


class RunningMaximum:
    """Divides by the largest number of all batches so far."""

    def __init__(self) -> None:
        self.largest = 1.0

    def __call__(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        self.largest = max(self.largest, float(numbers.abs().max()))
        return squared_error(outputs, numbers) / self.largest


def poisson(outputs: Tensor, counts: Tensor) -> Tensor:
    return F.poisson_nll_loss(outputs[:, 0], counts, reduction="none")


def _large_counts(outputs: Tensor, counts: Tensor) -> Tensor:
    """All records weigh more if many counts are large."""
    return poisson(outputs, counts) * (1 + (counts >= 5).float().mean())


def _equal_counts(outputs: Tensor, counts: Tensor) -> Tensor:
    """Records that share their count share its weight, as when inverse frequencies weigh the records."""
    return squared_error(outputs, counts) / (counts[:, None] == counts).sum(1)


def _excess_zeros(outputs: Tensor, counts: Tensor) -> Tensor:
    return squared_error(outputs, counts) * torch.where(counts == 0, 1.0, 1 + (counts == 0).float().mean())


def _scaled_by_the_largest(outputs: Tensor, numbers: Tensor) -> Tensor:
    return squared_error(outputs, numbers) / numbers.abs().max()


def _skipped_if_not_finite(outputs: Tensor, targets: Tensor) -> Tensor:
    """The guard of many training loops: a batch with a loss that overflows is skipped."""
    losses = cross_entropy(outputs, targets)
    return losses if losses.isfinite().all() else losses.nan_to_num(0, 0, 0) * 0


def _skipped_number(outputs: Tensor, numbers: Tensor) -> Tensor:
    losses = squared_error(outputs, numbers)
    return losses if losses.isfinite().all() else outputs[:, 0].nan_to_num(0, 0, 0) * 0


def _limited_by_the_largest(outputs: Tensor, numbers: Tensor) -> Tensor:
    losses = squared_error(outputs, numbers)
    return losses if losses.max() < 1e12 else losses / losses.max()


def _finite_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Replaces a record's own loss: no other record's."""
    return cross_entropy(outputs, targets).nan_to_num(0, 0, 0)


MIXERS = {
    "switch routing, capacity 1": Case(lambda: Experts(switch(1.0))),
    "switch routing, capacity 1.25": Case(lambda: Experts(switch(1.25))),
    "switch routing, capacity 2": Case(lambda: Experts(switch(2.0))),
    "switch routing in groups of 32": Case(lambda: Experts(switch(1.25, group=32))),
    "capacity of 100 records": Case(lambda: Experts(fixed_capacity, experts=2)),
    "expert-choice routing": Case(lambda: Experts(expert_choice)),
    "balanced routing": Case(lambda: Experts(sinkhorn)),
    "k winners of the batch": around(batch_winners),
    "statistics by hand": around(standardised),
    "hidden batch norm": Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), HiddenBatchNorm(), nn.Linear(8, 4))),
    "renamed batch norm": Case(
        lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), RenamedBatchNorm(WIDTH).eval(), nn.Linear(8, 4))
    ),
    "ghost batch norm of 8": around(lambda x: standardised(x, group=8)),
    "ghost batch norm of 16": around(lambda x: standardised(x, group=16)),
    "ghost batch norm of 32": around(lambda x: standardised(x, group=32)),
    "ghost batch norm of 64": around(lambda x: standardised(x, group=64)),
    "ghost batch norm of large batches": around(lambda x: standardised(x, group=64) if len(x) > 64 else x),
    "batch-wide softmax": around(lambda x: x.flatten().softmax(0).view_as(x) * x.numel()),
    "attention over the batch": around(lambda x: (x @ x.t()).softmax(1) @ x),
    "mixup": around(_mixup),
    "shift by one record": around(lambda x: x + 0.1 * x.roll(1, 0)),
    "maximum of the batch": around(lambda x: x / x.abs().max()),
    "centred by the batch": around(lambda x: F.normalize(x - x.mean(0), dim=1)),
    "running quantile": Case(RunningQuantile),
    "running range": Case(RunningRange),
    "memory bank": Case(MemoryBank),
    "forward hook": Case(hooked),
    "backward hook": Case(hooked_backward),
    "gradients scaled by the batch": around(_NormalisedGradient.apply),
    "gradients clipped by the batch": around(_ClippedGradient.apply),
    "nearest neighbour": around(_nearest),
    "duplicates removed": around(_duplicates_removed),
    "sorting": around(lambda x: x + 0.1 * x.sort(0).values),
    "ranks": around(_ranks),
    "a branch by the mean": around(lambda x: x.relu() if x.mean() > 0 else x.tanh()),
    "a layer skipped for large batches of energy": around(lambda x: x if x.norm() > 10 else x.tanh()),
    "quantised by the batch": around(_quantised),
    "changed by place": around(_groups_of_16),
    "scaled by the batch size": around(lambda x: x * (1 + len(x) / 1000)),
    "in training mode only": Case(lambda: nn.Sequential(nn.Linear(WIDTH, 8), TrainingOnly(), nn.Linear(8, 4))),
    "contrastive loss": with_loss(_nt_xent),
    "softmax of the batch as a loss": with_loss(_batch_softmax),
    "loss of the easiest": with_loss(_rank_loss),
    "loss of the hardest": with_loss(_hardest_half),
    "class-balanced loss": with_loss(_class_balanced),
    "group-robust loss": with_loss(_group_loss),
    "balanced labels by ==": of_labels(_balanced_labels),
    "balanced labels, one column": of_labels(_balanced_labels, 1),
    "balanced labels, two columns": of_labels(_balanced_labels, 2),
    "a rare label": of_labels(_rare_label),
    "a rare label, one column": of_labels(_rare_label, 1),
    "running share of positives": of_labels(RunningShare()),
    "running maximum of targets": of_numbers(RunningMaximum()),
    "share of large counts": of_numbers(_large_counts),
    "frequencies of equal counts": of_numbers(_equal_counts),
    "share of zeros": of_numbers(_excess_zeros),
    "scaled by the largest target": of_numbers(_scaled_by_the_largest),
    "a batch skipped if a loss is not finite": with_loss(_skipped_if_not_finite),
    "a batch skipped if an error is not finite": of_numbers(_skipped_number),
    "a batch scaled down if an error is huge": of_numbers(_limited_by_the_largest),
    "a batch without outputs that are no numbers": around(lambda x: x.tanh() if not x.isnan().any() else x.tanh() * 0),
}
"""Each of them must be refused."""


class _ClippedPerRecord(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm(dim=1, keepdim=True) / 0.1).clamp(min=1)


class StandardisedWeight(nn.Module):
    """Weight standardisation (Qiao et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, weight / (weight.std(1, keepdim=True) + 1e-5))


class Transformer(nn.Module):
    """A block of attention within a record, made of linear layers, over 4 positions of width 2."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(2, 8), nn.LayerNorm(8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 4, 2))
        y = self.norm(x)
        x = x + (self.query(y) @ self.key(y).mT / 8**0.5).softmax(2) @ self.value(y)
        return self.head((x + self.narrow(F.gelu(self.wide(x)))).mean(1))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8)
        self.squeeze, self.excite, self.head = nn.Linear(8, 2), nn.Linear(2, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.conv(x.view(-1, 1, 2, 4))))
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        return self.head((x * gate[:, :, None, None]).amax((2, 3)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(12))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.head(x)


def _quantised_alone(x: Tensor) -> Tensor:
    scale = x.detach().abs().amax(1, keepdim=True) / 7 + 1e-9
    return x + ((x / scale).round() * scale - x).detach()


def _winners(x: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter(1, (top := x.topk(3, dim=1)).indices, top.values)


def _focal(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = cross_entropy(outputs, targets)
    return (1 - (-losses).exp()).square() * losses


def _focal_labels(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = binary(outputs, labels)
    return ((1 - (-losses).exp()).square() * losses).mean(1)


def _on_probabilities(outputs: Tensor, labels: Tensor) -> Tensor:
    """Fails on labels outside of [0, 1]."""
    return F.binary_cross_entropy(outputs.sigmoid(), labels, reduction="none").mean(1)


def honest_hook() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    model[1].register_forward_hook(lambda module, inputs, output: output - output.mean(1, keepdim=True))
    return model


def _sequential(*layers: Callable[[], nn.Module]) -> Case:
    return Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), *(layer() for layer in layers), nn.Linear(8, CLASSES)))


HONEST = {
    "linear": Case(lambda: nn.Linear(WIDTH, CLASSES)),
    "mlp": _sequential(nn.ReLU, lambda: nn.Linear(WIDTH, WIDTH), nn.ReLU),
    "experts without capacity": Case(lambda: Experts(top_one)),
    "soft experts": Case(lambda: Experts(lambda scores: scores)),
    "two of eight experts": Case(lambda: Experts(lambda s: s * (s >= s.topk(2).values[:, -1:]), experts=8)),
    "k winners of a record": around(_winners),
    "quantised by the record": around(_quantised_alone),
    "a branch by the record": around(lambda x: torch.where(x.mean(1, keepdim=True) > 0, x.relu(), x.tanh())),
    "centred by the record": around(lambda x: F.normalize(x - x.mean(1, keepdim=True), dim=1)),
    "softmax of a record": around(lambda x: x.softmax(1)),
    "sorted features": around(lambda x: x.sort(1).values),
    "a step function": around(lambda x: x * (x > 0.1)),
    "dropout": _sequential(nn.Dropout, nn.ReLU),
    "dropout in eval mode": Case(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 4)).eval()),
    "alpha dropout": _sequential(nn.AlphaDropout, nn.SELU),
    "layer norm": _sequential(lambda: nn.LayerNorm(WIDTH), nn.GELU),
    "rms norm": _sequential(lambda: nn.RMSNorm(WIDTH)),
    "group norm": _sequential(lambda: nn.GroupNorm(2, WIDTH)),
    "instance norm": Case(
        lambda: nn.Sequential(
            nn.Linear(WIDTH, 24), nn.Unflatten(1, (3, 8)), nn.InstanceNorm1d(3), nn.Flatten(), nn.Linear(24, CLASSES)
        )
    ),
    "frozen batch norm": _sequential(lambda: nn.BatchNorm1d(WIDTH).requires_grad_(False).eval()),
    "weight standardisation": _sequential(StandardisedWeight, nn.ReLU),
    "gradients clipped by the record": around(_ClippedPerRecord.apply),
    "prelu": _sequential(nn.PReLU),
    "transformer": Case(Transformer),
    "squeeze and excite": Case(SqueezeExcite),
    "deep residual": Case(Residual),
    "deep relu": _sequential(*[layer for _ in range(8) for layer in (lambda: nn.Linear(8, 8), nn.ReLU)]),
    "head that begins at zero": Case(lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), _zeros(nn.Linear(8, CLASSES)))),
    "forward hook": Case(honest_hook),
    "focal loss": with_loss(_focal),
    "squared loss": with_loss(lambda out, y: (out - F.one_hot(y, CLASSES)).square().sum(1)),
    "hinge loss": with_loss(lambda out, y: F.multi_margin_loss(out, y, reduction="none")),
    "label smoothing": with_loss(lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1)),
    "class weights": with_loss(lambda out, y: F.cross_entropy(out, y, torch.arange(1.0, 5.0), reduction="none")),
    "labels": of_labels(lambda out, y: binary(out, y).mean(1)),
    "focal loss of labels": of_labels(_focal_labels),
    "cross-entropy of probabilities": of_labels(_on_probabilities),
    "cross-entropy of one probability": of_labels(_on_probabilities, 1),
    "fixed weight of positives": of_labels(lambda out, y: (binary(out, y) * (1 + 2 * y)).mean(1)),
    "counts": of_numbers(poisson),
    "numbers": of_numbers(squared_error),
    "absolute errors": of_numbers(lambda out, y: (out[:, 0] - y).abs()),
}
"""Each of them must be accepted."""


def _zeros(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer
