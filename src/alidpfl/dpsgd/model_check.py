"""Checks that a model has exact per-sample gradients. Each error names the reason and the remedy.

The structure of a model tells some of it. It does not tell whether a layer mixes records, a parameter is used outside
its module, or a buffer is rewritten. So the model also runs on a few made-up samples, which mostly shows it. These are
nobody's data, so an error about them reveals nothing.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from alidpfl.dpsgd.gradient_forms import squared_norms
from alidpfl.dpsgd.made_up import are_labels, counts, labels, num_tokens
from alidpfl.errors import AliDpflError, DataError, UnsupportedModelError

Gradients = tuple[Tensor, Mapping[str, Tensor]]
"""Each record's gradient norm (B,), and the sum of the records' gradients by name of the parameter."""

_BatchNorm = nn.modules.batchnorm._BatchNorm
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_SIZES = (4, 7, 3)  # number of made-up samples in each probe
_TOLERANCE = 1e-4
_OF_LARGEST = 3e-5  # norms of terms that cancel are rounded up, by some 1e-7 of the terms
LARGE = 1e15
"""Norms from here on may overflow in float32, and then show nothing."""


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters to train, those with `requires_grad`, by name."""
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


def check_model(model: nn.Module) -> None:
    """Raise UnsupportedModelError if the structure alone rules out exact clipping."""
    for name, module in model.named_modules():
        _check_module(name or "the model", module)
    trained = trained_parameters(model)
    if not trained:
        raise UnsupportedModelError("no parameter of the model has requires_grad=True; unfreeze a layer to train")
    for name, parameter in trained.items():
        _check_parameter(name, parameter)
    _check_no_sharing(model)


def check_modes(model: nn.Module) -> None:
    """Raise UnsupportedModelError if batch statistics are in use, which `model.train()` can switch on at any time."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise UnsupportedModelError(
                f"layer {name!r} is {type(module).__name__}: it mixes the records of a batch, so that one record "
                "changes every gradient and clipping bounds nothing; use nn.GroupNorm or nn.LayerNorm in its place, or "
                "keep it frozen in eval() mode"
            )


def _check_module(name: str, module: nn.Module) -> None:
    problem = None
    if isinstance(module, _RECURRENT):
        remedy = "use convolutions over the sequence, or attention made of nn.Linear layers"
        problem = "reuses its weights at every time step", remedy
    elif isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        problem = "keeps running statistics of the data, un-noised", "set track_running_stats=False"
    elif isinstance(module, nn.Embedding) and module.max_norm is not None:
        problem = "rewrites its weights in the forward pass (max_norm)", "set max_norm=None"
    elif isinstance(module, nn.Embedding) and module.scale_grad_by_freq:
        problem = "scales gradients by counts over the whole batch", "set scale_grad_by_freq=False"
    if problem:
        raise UnsupportedModelError(f"{name} ({type(module).__name__}) {problem[0]}; {problem[1]}")


def _check_parameter(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, UninitializedParameter):
        raise UnsupportedModelError(f"{name} is not initialised (a lazy layer); run the model once on a dummy input")
    if parameter.device.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(f"{name} is on {parameter.device}, need cpu or cuda; call model.cpu()")
    if parameter.dtype != torch.float32:
        raise UnsupportedModelError(f"{name} has dtype {parameter.dtype}, need torch.float32; call model.float()")


def _check_no_sharing(model: nn.Module) -> None:
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter.untyped_storage().data_ptr()].append((name, parameter.requires_grad))
    for sharers in names.values():
        if len(sharers) > 1 and any(trained for _, trained in sharers):
            raise UnsupportedModelError(
                f"{' and '.join(name for name, _ in sharers)} share memory (tied parameters), so that their per-sample "
                "gradients would have to be added before clipping; give each its own tensor, or freeze them"
            )


def made_up(like: Tensor, number: int, num_values: int | None = None) -> Tensor:
    """Return made-up samples for probe `number`, with the shape and type of `like` and none of its values.

    Probe 0 has numbers in [0, 1), probe 1 numbers of both signs, probe 2 an outlier. Each has another size. Integers
    are below `num_values`. They differ between samples and repeat, to expose a loss that compares labels.
    """
    shape = (_SIZES[number], *like.shape[1:])
    generator = torch.Generator("cpu").manual_seed(number)  # on the CPU: the same numbers for every device
    if like.is_floating_point():
        if number == 0:
            return torch.rand(shape, generator=generator, dtype=like.dtype, device="cpu").to(like.device)
        values = torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu")
        if number == len(_SIZES) - 1:
            values[-1] *= 100
        return values.to(like.device)
    if like.dtype == torch.bool or num_values is None:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    values = torch.randint(num_values, shape, generator=generator, device="cpu")
    values[:2] = torch.tensor([0, num_values - 1], device="cpu").view(2, *[1] * (len(shape) - 1))
    return values.to(like.device, like.dtype)


def made_up_targets(like: Tensor, number: int, num_values: int | None = None) -> Tensor:
    """Return made-up targets for probe `number`, with the shape and type of `like` and none of its values.

    Labels (n, k) are 0 or 1, and in probe 2 each column has a single 1. Numbers (n,) are small and whole in probe 0.
    All others are as those of `made_up`.
    """
    generator, shape = torch.Generator("cpu").manual_seed(number), (_SIZES[number], *like.shape[1:])
    if are_labels(like.dtype, shape):
        return labels(shape, generator, is_rare=number == len(_SIZES) - 1).to(like.device, like.dtype)
    if like.is_floating_point() and number == 0:
        return counts(shape[0], generator).to(like.device, like.dtype)
    return made_up(like, number, num_values)


@contextmanager
def no_buffer_changes(model: nn.Module) -> Iterator[None]:
    """Refuse a model that rewrites a buffer in its forward pass: that carries data between batches without noise."""
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        if name not in before or before[name][0] is not buffer or before[name][1] != buffer._version:
            raise UnsupportedModelError(
                f"{name} is a buffer that the forward pass rewrites: it would carry data from batch to batch without "
                "noise; use a layer that keeps no state, or put this one into eval() mode"
            )


@contextmanager
def trial(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """Run a trial on made-up samples: without dropout, with clear errors, and refusing changes of buffers."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    try:
        for dropout in dropouts:
            dropout.eval()
        with no_buffer_changes(model):
            yield
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, AliDpflError):
            raise
        raise DataError(
            f"the model cannot take inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype} with targets of "
            f"shape {tuple(targets.shape[1:])} and type {targets.dtype}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        for dropout in dropouts:
            dropout.train()


@contextmanager
def perturbed_weights(model: nn.Module, size: float = 0.1, seed: int = 1) -> Iterator[None]:
    """Move the weights, relative to their size. A layer that begins at zero hides all layers behind it until then."""
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.is_floating_point()]
    generator = torch.Generator("cpu").manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter, values in kept:
                scale = float(values.square().mean().sqrt()) if values.numel() else 0.0
                noise = torch.randn(values.shape, generator=generator, dtype=values.dtype, device="cpu")
                parameter.add_(noise.to(values.device), alpha=size * (scale or 1.0))
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)


def run_probes(model: nn.Module, inputs: Tensor, targets: Tensor, probe: Callable[[Tensor, int], float]) -> None:
    """Run `probe` on several batches of made-up samples. Refuse a model that fails, or has no gradient but zero.

    Args:
        model: The model to check.
        inputs: Its inputs. Only shape, type and device are read.
        targets: Its targets. Only shape and type are read.
        probe: Takes made-up inputs and the probe's number. It returns the size of the gradients that it found.
    """
    found = 0.0
    for number in range(len(_SIZES)):
        with trial(model, inputs, targets), perturbed_weights(model) if number == 1 else nullcontext():
            found += probe(made_up(inputs, number, num_tokens(model)), number)
    if not found > 0:
        raise UnsupportedModelError(
            "all gradients of this model are zero on made-up samples, so that its per-sample gradients cannot be "
            "checked; does the loss depend on the trained parameters?"
        )


def gradients_one_by_one(parameters: Mapping[str, Tensor], losses: Iterable[Tensor]) -> Gradients:
    """Return each record's gradient norm (B,), and the sums of gradients by name, by plain autograd.

    `losses` has one loss (1,) for each record. It is read with gradients switched on.
    """
    sums = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}

    def added(grads: Sequence[Tensor]) -> Sequence[Tensor]:
        for total, grad in zip(sums.values(), grads, strict=True):
            total.add_(grad)
        return grads

    return _norms(map(added, _each_gradient(parameters, losses))), sums


def norms_one_by_one(parameters: Mapping[str, Tensor], losses: Iterable[Tensor]) -> Tensor:
    """Return each record's gradient norm (B,) by plain autograd, from its loss (1,)."""
    return _norms(_each_gradient(parameters, losses))


def _norms(gradients: Iterable[Sequence[Tensor]]) -> Tensor:
    return torch.stack([torch.stack([squared_norms(part.flatten()) for part in g]).sum().sqrt() for g in gradients])


def _each_gradient(parameters: Mapping[str, Tensor], losses: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    values = list(parameters.values())
    with torch.enable_grad():
        for loss in losses:
            yield torch.autograd.grad(loss.sum(), values, allow_unused=True, materialize_grads=True)


@contextmanager
def fails_alone(*kinds: type[Exception]) -> Iterator[None]:
    """Refuse a model that fails here on one record alone. It took a batch before."""
    try:
        yield
    except kinds as error:
        if isinstance(error, AliDpflError):
            raise
        raise UnsupportedModelError(
            f"this model takes a batch and fails on one record alone ({str(error).splitlines()[0]}): a layer or the "
            "loss mixes the records of a batch; use layers and a loss that treat each record alone"
        ) from error


def disagreement(found: Gradients, truth: Gradients) -> float:
    """Return how far norms (B,) and sums of gradients differ from the truth, in units of what rounding may do.

    A float32 norm is off by some 1e-7 times the number of layers, and `_TOLERANCE` is a thousand times that. Below it,
    mixing is not seen: each record of a batch may then move the others by 1e-4 of their gradients at most. Sums may be
    left out of `found` as an empty mapping.
    """
    (norms, sums), (true_norms, true_sums) = found, truth
    finite = true_norms < LARGE
    largest = float(true_norms[finite].max()) if bool(finite.any()) else 0.0
    allowed = _TOLERANCE * true_norms + _OF_LARGEST * largest + torch.finfo(torch.float32).tiny
    ratios = ((norms - true_norms).abs() / allowed)[finite]
    worst = float(ratios.nan_to_num(math.inf).max()) if len(ratios) else 0.0
    if sums and bool(finite.all()):
        off = max(math.sqrt(squared_norms((sums[name] - true_sums[name]).flatten())) for name in sums)
        worst = max(worst, off / float(allowed.sum()) if math.isfinite(off) else math.inf)
    return worst


def check_agreement(found: Gradients, truth: Gradients) -> None:
    """Raise UnsupportedModelError if norms (B,) and sums of gradients differ from the truth by more than rounding."""
    if disagreement(found, truth) > 1:
        raise UnsupportedModelError(
            "the per-sample gradients of this model do not agree with autograd on one record at a time: a layer or the "
            "loss mixes the records of a batch, or a parameter is used without calling its module, or randomness "
            "is drawn by something else than nn.Dropout; use each parameter by calling its own module, with the "
            "batch as the first dimension"
        )
