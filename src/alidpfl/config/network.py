"""Networks that a configuration declares as `[[model.layers]]`: read strictly, with shapes, parameters and costs.

Nothing here takes memory or time that grows with what is declared, but for the number of layers, which is bounded. So a
vault may read what any server sends. Never imports torch; `alidpfl.models.declared` builds the torch module.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from pydantic import ValidationError

from alidpfl.config.layers import INSTEAD, KINDS, RESIDUAL, Applied, Layer, Shape, ShapeError
from alidpfl.config.wording import expected, refused, shown, together, toml
from alidpfl.errors import ConfigError
from alidpfl.inputs.names import nearest

MOST_LAYERS = 500
"""Most layers of a network, those in residual blocks included."""
MOST_NESTING = 4
"""How deep residual blocks may lie in one another."""
RECORDS_AT_ONCE = 128
"""Records whose activations a step holds at once: the clipper's micro-batch."""

_FLOAT = 4  # bytes
_BODY, _SHORTCUT = "layers", "shortcut"
_ACTIVATION_COPIES = 2  # an activation, and the gradient that flows back to it

Place: TypeAlias = tuple[tuple[str, int], ...]
"""Where a layer stands: names of tables with numbers from 1, such as (("layers", 3), ("shortcut", 1))."""


class LayerError(ConfigError):
    """A declared layer is wrong. The text names the layer by its number, as the summary does."""

    def __init__(self, place: Place, key: str | None, text: str, kind: str = "") -> None:
        """Name what is wrong.

        Args:
            place: the layer.
            key: the layer's wrong key, if it is one.
            text: what is wrong, and the remedy.
            kind: the layer's type.
        """
        super().__init__(f"model.layers, layer {number_of(place)}{f' ({kind})' if kind else ''}: {text}")
        self.place, self.key = place, key


def number_of(place: Place) -> str:
    """Return a layer's number for people.

    >>> number_of((("layers", 3), ("layers", 2))), number_of((("layers", 3), ("shortcut", 1)))
    ('3.2', '3.shortcut.1')
    """
    return ".".join(str(number) if name == _BODY else f"{name}.{number}" for name, number in place)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A layer with valid settings. Its shapes are not known yet."""

    place: Place
    kind: str
    layer: Layer | None
    """None for a residual block."""
    body: tuple["Declared", ...] = ()
    shortcut: tuple["Declared", ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain values with all settings, also those that were left out."""
        if self.layer is not None:
            return {"type": self.kind, **self.layer.model_dump(mode="json", exclude_none=True)}
        blocks = {_BODY: self.body, _SHORTCUT: self.shortcut}
        return {"type": self.kind, **{name: [one.plain() for one in block] for name, block in blocks.items()}}


def count_of_layers(count: int) -> str:
    """Return what a declared network is called where others have a name.

    >>> count_of_layers(1), count_of_layers(12)
    ('1 declared layer', '12 declared layers')
    """
    return f"{count} declared layer{'' if count == 1 else 's'}"


def parse_layers(values: object) -> tuple[Declared, ...]:
    """Return the declared layers. Raise LayerError, or ConfigError if there are too many or none.

    >>> [layer.kind for layer in parse_layers([{"type": "flatten"}, {"type": "linear", "out_features": 3}])]
    ['flatten', 'linear']
    """
    counted = iter(range(MOST_LAYERS))
    return tuple(_parsed(values, (), _BODY, counted))


def _parsed(values: object, above: Place, name: str, counted: Iterator[int]) -> Iterator[Declared]:
    told = "model.layers" if not above else f"model.layers, layer {number_of(above)} ({RESIDUAL}): {name}"
    if not isinstance(values, list | tuple) or (name == _BODY and not values):
        raise ConfigError(f'{told} must be a list of layers, such as [{{type = "flatten"}}]')
    if len(above) > MOST_NESTING:
        raise LayerError(
            above, name, f"blocks lie more than {MOST_NESTING} deep in one another; flatten them", RESIDUAL
        )
    for number, value in enumerate(values, 1):
        if next(counted, None) is None:
            raise ConfigError(f"model.layers has more than {MOST_LAYERS} layers; use fewer and larger ones")
        yield _layer(value, (*above, (name, number)), counted)


def _layer(value: object, place: Place, counted: Iterator[int]) -> Declared:
    if not isinstance(value, Mapping):
        raise LayerError(place, None, f'{shown(value)} must be a table, such as {{type = "flatten"}}')
    given = dict(value)
    kind = given.pop("type", None)
    if kind == RESIDUAL:
        return _residual(given, place, counted)
    if not isinstance(kind, str) or kind not in KINDS:
        raise LayerError(place, "type", _unknown(kind))
    model = KINDS[kind]
    try:
        return Declared(place=place, kind=kind, layer=model.model_validate(given))
    except ValidationError as error:
        found = [_explained(problem, given, model) for problem in error.errors()]
    raise LayerError(place, found[0][0], together(text for _, text in found), kind)


def _residual(given: dict[str, Any], place: Place, counted: Iterator[int]) -> Declared:
    for key in given:
        if key not in (_BODY, _SHORTCUT):
            raise LayerError(place, str(key), _no_setting(str(key), [_BODY, _SHORTCUT]), RESIDUAL)
    return Declared(
        place=place,
        kind=RESIDUAL,
        layer=None,
        body=tuple(_parsed(given.get(_BODY), place, _BODY, counted)),
        shortcut=tuple(_parsed(given.get(_SHORTCUT, []), place, _SHORTCUT, counted)),
    )


def _unknown(kind: object) -> str:
    names = [*KINDS, RESIDUAL]
    if kind is None:
        return f"type is missing; it must be one of {', '.join(names)}"
    spelling = str(kind).lower().replace("_", "")
    if (
        reason := next((text for name, text in INSTEAD.items() if name.replace("_", "") == spelling), None)
    ) is not None:
        return f"type={shown(kind)}: {reason}"
    meant = nearest(str(kind), names)
    hint = f"did you mean {meant!r}?" if meant is not None else f"there are {', '.join(names)}"
    return f"type={shown(kind)} cannot be declared; {hint}"


def _no_setting(key: str, names: Sequence[str]) -> str:
    meant = nearest(key, names)
    has = f"it has {', '.join(names)}" if names else "it has none"
    return f"{shown(key)} is not a setting of this layer; {has if meant is None else f'did you mean {meant!r}?'}"


def _explained(problem: Any, given: Mapping[str, Any], model: type[Layer]) -> tuple[str, str]:
    """Return the key that is wrong, and why."""
    key = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return key, _no_setting(key, list(model.model_fields))
    field = model.model_fields[key]
    if problem["type"] == "missing":
        return key, f"{key} is missing; it must be {expected(field)}"
    return key, refused(problem, key, given[key], field)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A layer on records of a known shape."""

    place: Place
    kind: str
    settings: str
    """Its settings for people, without those at their defaults."""
    applied: Applied
    body: tuple["Resolved", ...] = ()
    shortcut: tuple["Resolved", ...] = ()

    @property
    def blocks(self) -> dict[str, tuple["Resolved", ...]]:
        """The layers of a residual block, by the name of the torch module that holds them."""
        return {"body": self.body, "shortcut": self.shortcut}

    def everyone(self) -> Iterator["Resolved"]:
        """Yield this layer, and all within."""
        yield self
        for block in self.blocks.values():
            for layer in block:
                yield from layer.everyone()

    def parameters(self) -> Iterator[tuple[str, Shape]]:
        """Yield names and shapes of the trained parameters, as torch names and orders them."""
        yield from self.applied.parameters.items()
        for name, block in self.blocks.items():
            for index, layer in enumerate(block):
                yield from ((f"{name}.{index}.{own}", shape) for own, shape in layer.parameters())

    def specification(self) -> dict[str, Any]:
        """Return plain values from which `alidpfl.models.declared.build` makes the torch module."""
        blocks = {name: [layer.specification() for layer in block] for name, block in self.blocks.items()}
        return {"type": self.kind, "arguments": self.applied.arguments, **(blocks if self.kind == RESIDUAL else {})}


@dataclass(frozen=True)
class Network:
    """Declared layers on records of a known shape: all that can be known without torch."""

    input_shape: Shape
    layers: tuple[Resolved, ...]

    @classmethod
    def of(cls, layers: Sequence[Declared], input_shape: Shape, num_outputs: int | None = None) -> "Network":
        """Return the network for these inputs. Raise LayerError if a layer cannot take what it is given.

        Args:
            layers: the declared layers.
            input_shape: shape of one record.
            num_outputs: number of outputs that the network must have; None for any.
        """
        found, shape = _resolved(layers, tuple(input_shape))
        if num_outputs is not None and shape != (num_outputs,):
            last = layers[-1]
            remedy = f'end with {{type = "linear", out_features = {num_outputs}}}'
            told = f"the network's output has shape {_text(shape)}, and must have ({num_outputs}); {remedy}"
            raise LayerError(last.place, None, told, last.kind)
        return cls(tuple(input_shape), tuple(found))

    @cached_property
    def everyone(self) -> tuple[Resolved, ...]:
        """All layers, those in blocks included, in the order of the declaration."""
        return tuple(layer for top in self.layers for layer in top.everyone())

    @cached_property
    def parameters(self) -> dict[str, Shape]:
        """Shapes of the trained parameters, as torch names and orders them."""
        return {
            f"{index}.{name}": shape for index, layer in enumerate(self.layers) for name, shape in layer.parameters()
        }

    @property
    def num_params(self) -> int:
        """Number of trained parameters."""
        return sum(map(math.prod, self.parameters.values()))

    @property
    def multiply_adds(self) -> int:
        """Multiplications with additions of a forward pass of one record."""
        return sum(layer.applied.multiply_adds for layer in self.everyone)

    @property
    def activations(self) -> int:
        """Numbers that a forward pass of one record keeps: its inputs, and the outputs of all layers."""
        return math.prod(self.input_shape) + sum(math.prod(layer.applied.output) for layer in self.everyone)

    def activation_bytes(self, records: int = RECORDS_AT_ONCE) -> int:
        """Return an upper bound of the memory that so many records take in a step, beside the parameters."""
        scratch = max(layer.applied.scratch_bytes for layer in self.everyone)
        once = max(layer.applied.scratch_once for layer in self.everyone)
        return records * (_ACTIVATION_COPIES * _FLOAT * self.activations + scratch) + once

    def specification(self) -> list[dict[str, Any]]:
        """Return plain values from which `alidpfl.models.declared.build` makes the torch module."""
        return [layer.specification() for layer in self.layers]


def _resolved(layers: Sequence[Declared], shape: Shape) -> tuple[list[Resolved], Shape]:
    found = []
    for layer in layers:
        found.append(_on(layer, shape))
        shape = found[-1].applied.output
    return found, shape


def _on(declared: Declared, shape: Shape) -> Resolved:
    """Return the layer on records of this shape."""
    if declared.layer is None:
        return _residual_on(declared, shape)
    if declared.kind == "embedding" and declared.place != ((_BODY, 1),):
        raise LayerError(declared.place, "type", "takes tokens, which only inputs are; put it first", declared.kind)
    try:
        applied = declared.layer.applied(shape)
    except ShapeError as error:
        raise LayerError(declared.place, None, str(error), declared.kind) from None
    settings = ", ".join(
        f"{name}={_setting_text(value)}"
        for name, value in declared.layer
        if value != type(declared.layer).model_fields[name].default
    )
    return Resolved(place=declared.place, kind=declared.kind, settings=settings, applied=applied)


def _residual_on(declared: Declared, shape: Shape) -> Resolved:
    body, through = _resolved(declared.body, shape)
    shortcut, beside = _resolved(declared.shortcut, shape)
    if through != beside:
        remedy = "give it a shortcut, such as a conv2d with kernel_size = 1" if not shortcut else "change one"
        told = f"its layers end with shape {_text(through)}, and what is added to them has {_text(beside)}; {remedy}"
        raise LayerError(declared.place, None, told, RESIDUAL)
    applied = Applied(output=through, multiply_adds=math.prod(through))
    return Resolved(
        place=declared.place, kind=RESIDUAL, settings="", applied=applied, body=tuple(body), shortcut=tuple(shortcut)
    )


def _setting_text(value: object) -> str:
    """Return a setting as briefly as a user may type it."""
    return toml(value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value)


def _text(shape: Shape) -> str:
    return f"({', '.join(map(str, shape))})"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a network that somebody else declares."""

    max_parameters: int
    max_multiply_adds: int
    max_activation_bytes: int

    def excess(self, network: Network, records: int = RECORDS_AT_ONCE) -> str | None:
        """Return which limit a network exceeds, and by what; None if it is within all.

        Args:
            network: the network.
            records: how many records a step holds at once.
        """
        for name, found in (
            ("parameters", network.num_params),
            ("multiply_adds", network.multiply_adds),
            ("activation_bytes", network.activation_bytes(records)),
        ):
            if found > (most := getattr(self, f"max_{name}")):
                return f"it has {name}={found:,}, and the owner's max_{name} is {most:,}"
        return None
