"""One forward and one backward pass that record the inputs of each layer's rule.

While recording, no parameter requires a gradient, so that autograd computes no weight gradient of the batch. Instead,
every trained layer's output passes through an identity, the tap. It keeps the graph alive from the first trained layer
on, and gives the rule the layer's output gradient during the backward pass.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from alidpfl.dpsgd.gradient_forms import Deferred, SampleGradients, Storage
from alidpfl.dpsgd.layers import RULES, Arguments, Call, has_rule, vmap_gradients
from alidpfl.errors import UnsupportedModelError

_PLAIN = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A module with trained parameters that are handled together: by a rule, or by vmap over all modules below it."""

    path: str
    module: nn.Module
    names: tuple[str, ...]  # trained parameters, relative to the module
    has_rule: bool

    @cached_property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trained parameters, in the order of `names`."""
        return tuple(self.module.get_parameter(name) for name in self.names)

    @property
    def name(self) -> str:
        """Path and type, for errors."""
        return f"{self.path or 'the model'} ({type(self.module).__name__})"

    @cached_property
    def num_params(self) -> int:
        """Number of trained values."""
        return sum(parameter.numel() for parameter in self.parameters)


def find_units(module: nn.Module, path: str = "") -> Iterator[Unit]:
    """Split a model into units. A module with its own parameters and no rule includes its children."""
    own = tuple(name for name, p in module.named_parameters(recurse=False) if p.requires_grad)
    if own and has_rule(module):
        yield Unit(path=path, module=module, names=own, has_rule=True)
    elif own:
        below = tuple(name for name, p in module.named_parameters() if p.requires_grad)
        yield Unit(path=path, module=module, names=below, has_rule=False)
    else:
        for name, child in module.named_children():
            yield from find_units(child, f"{path}.{name}" if path else name)


class _Tap(torch.autograd.Function):
    """Identity on a layer's outputs. `anchor` requires a gradient, so that everything behind the tap does too."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, on_gradient: Callable[[tuple[Tensor, ...]], None], *outputs: Tensor
    ) -> tuple[Tensor, ...]:
        del anchor
        ctx.on_gradient = on_gradient
        ctx.mark_dirty(*outputs)  # in place, so that an in-place activation may follow
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ctx.on_gradient(grads)  # type: ignore[attr-defined]
        return (None, None, *grads)


class Recording:
    """Records one pass by hooks on the units of a model. Afterwards `found` holds the gradients by full name."""

    def __init__(
        self,
        units: Sequence[Unit],
        storage: Mapping[str, Storage],
        batch_size: int,
        *,
        records: int = 1,
        weights: Tensor | None = None,
    ) -> None:
        """Prepare to record.

        Args:
            units: The model's units.
            storage: What to do with each unit's gradients, by its path.
            batch_size: Records in the batch.
            records: k, the number of records of a person. Records that are left over belong to nobody.
            weights: (batch_size,) the records' weights in the gradients of their persons. None means 1.
        """
        self.found: dict[str, SampleGradients | Deferred] = {}
        self._units, self._storage, self._batch_size = units, storage, batch_size
        self._records, self._weights = records, weights
        self._anchor = torch.ones((), requires_grad=True, device=units[0].parameters[0].device)
        self._called: set[str] = set()
        self._listening = False

    def run(self, losses: Callable[[], Tensor]) -> Tensor:
        """Compute losses and per-sample gradients. Return the losses (B,), detached."""
        with self._hooks(), self._no_weight_gradients(), torch.enable_grad():
            self._listening = True
            values = losses()
            self._listening = False  # vmap will run the modules again
            if values.requires_grad:  # if not, no trained layer reaches the loss, and every gradient is zero
                total = values.sum() if self._weights is None else values
                torch.autograd.grad(total, self._anchor, self._weights, allow_unused=True)
        return values.detach()

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        handles = [unit.module.register_forward_hook(self._hook_for(unit), with_kwargs=True) for unit in self._units]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def _no_weight_gradients(self) -> Iterator[None]:
        parameters = [parameter for unit in self._units for parameter in unit.parameters]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    def _hook_for(self, unit: Unit) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            del module
            if not self._listening:
                return None
            if unit.path in self._called:
                raise UnsupportedModelError(
                    f"{unit.name} is used twice in one forward pass, so that its per-sample gradients would have to be "
                    "added before clipping; make a layer for each use"
                )
            self._called.add(unit.path)
            return self._tap(unit, args, kwargs, output)

        return hook

    def _tap(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        inputs = tuple(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        outputs = (output,) if isinstance(output, Tensor) else output
        tensors = [t for t in outputs if t is not None] if isinstance(outputs, tuple) else []
        self._check_batched(unit, *inputs, *(tensors or [output]))
        if not unit.has_rule:
            _check_plain(unit, (*args, *kwargs.values()))
        elif len(inputs) != 1:
            raise UnsupportedModelError(f"{unit.name} is called with {len(inputs)} tensors; its rule takes one")
        detached = tuple(t.detach() for t in inputs)

        def on_gradient(grads: tuple[Tensor, ...]) -> None:
            self._record(unit, detached, grads, partial(_called_again, args, kwargs))

        # A view, or a module without a rule, may need its output unchanged for its own backward pass.
        fresh = [t if unit.has_rule and not t._is_view() else t.clone() for t in tensors]
        tapped = iter(_Tap.apply(self._anchor, on_gradient, *fresh))  # type: ignore[no-untyped-call]
        if isinstance(output, Tensor):
            return next(tapped)
        return tuple(None if t is None else next(tapped) for t in output)

    def _check_batched(self, unit: Unit, *values: object) -> None:
        for value in values:
            if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != self._batch_size:
                raise UnsupportedModelError(_not_batched(unit, value))

    def _record(self, unit: Unit, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...], call: Call) -> None:
        found: Mapping[str, SampleGradients | Deferred]
        records = self._records
        inputs, grads = self._of_persons(inputs), self._of_persons(grads)
        with torch.no_grad():
            if unit.has_rule:
                rule = RULES[type(unit.module)]
                found = rule(unit.module, unit.names, inputs[0], grads[0], self._storage[unit.path], records=records)
            else:
                found = vmap_gradients(unit.module, unit.names, inputs, grads, call=call, records=records)
        prefix = f"{unit.path}." if unit.path else ""
        self.found.update({prefix + name: gradients for name, gradients in found.items()})

    def _of_persons(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the records of whole persons. Padding may end within a person."""
        whole = self._batch_size - self._batch_size % self._records
        return tensors if whole == self._batch_size else tuple(t if t is None else t[:whole] for t in tensors)


def _called_again(args: tuple[Any, ...], kwargs: dict[str, Any], tensors: tuple[Tensor, ...]) -> Arguments:
    """Return the arguments of a call, with other tensors in place of its own."""
    rest = iter(tensors)
    changed = tuple(next(rest) if isinstance(value, Tensor) else value for value in args)
    return changed, {name: next(rest) if isinstance(value, Tensor) else value for name, value in kwargs.items()}


def _not_batched(unit: Unit, value: object) -> str:
    seen = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    return (
        f"{unit.name} takes or returns {seen}; per-sample gradients need tensors with the batch as first dimension: "
        "keep the batch first and do not merge it with other dimensions"
    )


def _check_plain(unit: Unit, arguments: Iterable[object]) -> None:
    for value in arguments:
        if not isinstance(value, _PLAIN | Tensor):
            raise UnsupportedModelError(
                f"{unit.name} is called with a {type(value).__name__}; it has no rule for per-sample gradients, and "
                "such a module can take only tensors with the batch as first dimension, numbers, texts and None: pass "
                "the tensors one by one"
            )
