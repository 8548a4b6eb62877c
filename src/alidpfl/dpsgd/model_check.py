"""Which models have exact per-sample gradients, and what to do about those that have not."""

from collections import defaultdict

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from alidpfl.errors import UnsupportedModelError

_BatchNorm = nn.modules.batchnorm._BatchNorm
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Names and tensors of the parameters to train, those with `requires_grad`."""
    return {name: p for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}


def check_model(model: nn.Module) -> None:
    """Raise UnsupportedModelError, with the reason and the remedy, if the structure alone rules out exact clipping."""
    for name, module in model.named_modules():
        _check_module(name or "the model", module)
    trained = trained_parameters(model)
    if not trained:
        raise UnsupportedModelError(
            "the model has no parameter with requires_grad=True, so there is nothing to train; unfreeze a layer"
        )
    for name, parameter in trained.items():
        _check_parameter(name, parameter)
    _check_no_sharing(model)


def check_modes(model: nn.Module) -> None:
    """What `model.train()` can undo after construction: batch statistics in use."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise UnsupportedModelError(
                f"layer {name!r} is {type(module).__name__}: it mixes the samples of a batch, so that one sample "
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
        raise UnsupportedModelError(
            f"{name} is not initialised yet (a lazy layer); run the model once on a dummy input"
        )
    if parameter.device.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(
            f"{name} is on {parameter.device}; alidpfl.dpsgd runs on cpu and cuda: call model.cpu()"
        )
    if parameter.dtype != torch.float32:
        raise UnsupportedModelError(
            f"{name} has dtype {parameter.dtype}; norms and noise are made for float32: call model.float()"
        )


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
