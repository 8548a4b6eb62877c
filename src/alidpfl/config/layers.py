"""The layers that a configuration can declare: their settings, and the shapes and costs that follow.

Never imports torch. Each layer is a torch module of the same settings. Shapes count one record, without the batch.
What a layer costs is computed with plain numbers, so that a server's declaration can be judged before any memory is
taken.
"""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from alidpfl.inputs.checks import as_margins, as_sizes

Shape: TypeAlias = tuple[int, ...]
"""Sizes of the dimensions of one record."""

_FLOAT, _DOUBLE, _INDEX = 4, 8, 8  # bytes
_IMAGE, _SEQUENCE = 3, 2  # dimensions


class ShapeError(Exception):
    """A layer cannot take records of this shape. The text says why, and what to do."""


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A layer on records of a known shape."""

    output: Shape
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the torch module."""
    parameters: dict[str, Shape] = field(default_factory=dict)
    """Shapes of the trained parameters, by torch's names and in torch's order."""
    multiply_adds: int = 0
    """Multiplications with additions of a forward pass. A pooling window counts one for each of its numbers."""
    scratch_bytes: int = 0
    """Bytes that a step takes for this layer and record, beside input and output."""
    scratch_once: int = 0
    """Bytes that a step takes for this layer, whatever the number of records."""


class Layer(BaseModel):
    """Base of all layers. Strict: true is not a number, and the text "4" is not 4."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    kind: ClassVar[str]
    """The value of `type`."""

    def applied(self, shape: Shape) -> Applied:
        """Return what the layer makes of records of this shape. Raise ShapeError if it cannot take them."""
        raise NotImplementedError


def _setting(default: Any, meaning: str, *, example: Any = None, **limits: Any) -> Any:
    return Field(default, description=meaning, examples=None if example is None else [example], **limits)


def _size(meaning: str, example: int) -> Any:
    return _setting(..., meaning, example=example, ge=1, le=_LARGEST)


_LARGEST = 1_000_000
_Pair: TypeAlias = tuple[int, int]
Sizes = Annotated[_Pair, BeforeValidator(as_sizes)]
"""One number or two, each at least 1."""
Margins = Annotated[_Pair, BeforeValidator(as_margins)]
"""One number or two, each at least 0."""


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != _IMAGE:
        raise ShapeError(f"takes images (channels, height, width), not records of shape {shape}; put unflatten before")
    return shape[0], shape[1], shape[2]


def _sequence(shape: Shape) -> tuple[int, int]:
    if len(shape) != _SEQUENCE:
        raise ShapeError(f"takes sequences (channels, positions), not records of shape {shape}; put unflatten before")
    return shape[0], shape[1]


def _windows(sizes: Shape, kernel: Shape, stride: Shape, padding: Shape, dilation: Shape = (1, 1)) -> Shape:
    """Return how many windows fit in each direction."""
    found = tuple(
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=False)
    )
    if min(found) < 1:
        raise ShapeError(
            f"kernel_size={list(kernel)} does not fit into {list(sizes)} with padding={list(padding)}; lower it, or "
            "pool less before"
        )
    return found


class Linear(Layer):
    """linear: a linear map of the last dimension (`nn.Linear`)."""

    kind: ClassVar[str] = "linear"

    out_features: int = _size("Number of outputs.", 10)
    bias: bool = _setting(True, "Whether a bias is added.")

    def applied(self, shape: Shape) -> Applied:
        """Map (..., d) to (..., out_features)."""
        width_in, width_out, positions = shape[-1], self.out_features, math.prod(shape[:-1])
        scratch = _DOUBLE * positions * (width_in + width_out)
        if len(shape) > 1:
            scratch += 3 * _DOUBLE * positions**2 if positions * (width_in + width_out) < width_in * width_out else 0
        return Applied(
            output=(*shape[:-1], width_out),
            arguments={"in_features": width_in, **self.model_dump()},
            parameters={"weight": (width_out, width_in), **({"bias": (width_out,)} if self.bias else {})},
            multiply_adds=positions * width_in * width_out,
            scratch_bytes=scratch,
            scratch_once=2 * _DOUBLE * width_in * width_out,
        )


class Conv2d(Layer):
    """conv2d: a convolution of images, padded with zeros (`nn.Conv2d`)."""

    kind: ClassVar[str] = "conv2d"

    out_channels: int = _size("Number of output channels.", 16)
    kernel_size: Sizes = _setting(..., "Height and width of the kernel.", example=3)
    stride: Sizes = _setting((1, 1), "Step of the kernel.", example=2)
    padding: Margins = _setting((0, 0), "Zeros on each side.", example=1)
    dilation: Sizes = _setting((1, 1), "Distance of the kernel's entries.", example=2)
    groups: int = _setting(1, "Groups of channels that are convolved separately.", ge=1, le=_LARGEST)
    bias: bool = _setting(True, "Whether a bias is added.")

    def applied(self, shape: Shape) -> Applied:
        """Map (C, H, W) to (out_channels, H', W')."""
        channels, *sizes = _image(shape)
        for name, count in (("channels of the input", channels), ("out_channels", self.out_channels)):
            if count % self.groups:
                raise ShapeError(f"groups={self.groups} must divide the {count} {name}; change one")
        output = _windows(tuple(sizes), self.kernel_size, self.stride, self.padding, self.dilation)
        weight = (self.out_channels, channels // self.groups, *self.kernel_size)
        padded = math.prod(size + 2 * margin for size, margin in zip(sizes, self.padding, strict=True))
        positions = math.prod(output)
        return Applied(
            output=(self.out_channels, *output),
            arguments={"in_channels": channels, **self.model_dump()},
            parameters={"weight": weight, **({"bias": (self.out_channels,)} if self.bias else {})},
            multiply_adds=math.prod(weight) * positions,
            scratch_bytes=_FLOAT * (2 * channels * padded + self.out_channels * positions),
            scratch_once=_FLOAT * channels * math.prod(self.kernel_size) * positions + 2 * _DOUBLE * math.prod(weight),
        )


class GroupNorm(Layer):
    """group_norm: every record's channels are normalised in groups (`nn.GroupNorm`)."""

    kind: ClassVar[str] = "group_norm"

    num_groups: int = _size("Number of groups; it divides the channels.", 4)
    eps: float = _setting(1e-5, "Added to the variance.", gt=0, le=1)
    affine: bool = _setting(True, "Whether weight and bias are trained.")

    def applied(self, shape: Shape) -> Applied:
        """Keep the shape (C, ...)."""
        channels, numbers = shape[0], math.prod(shape)
        if channels % self.num_groups:
            raise ShapeError(f"num_groups={self.num_groups} must divide the {channels} channels; change one")
        if numbers == self.num_groups:
            raise ShapeError(f"num_groups={self.num_groups} leaves one number in a group, which becomes 0; lower it")
        return Applied(
            output=shape,
            arguments={"num_channels": channels, **self.model_dump()},
            parameters={"weight": (channels,), "bias": (channels,)} if self.affine else {},
            multiply_adds=2 * numbers,
            scratch_bytes=3 * _FLOAT * numbers,
        )


class LayerNorm(Layer):
    """layer_norm: the last dimensions of every record are normalised (`nn.LayerNorm`)."""

    kind: ClassVar[str] = "layer_norm"

    dimensions: int = _setting(1, "Number of the last dimensions that are normalised together.", ge=1, le=8)
    eps: float = _setting(1e-5, "Added to the variance.", gt=0, le=1)
    affine: bool = _setting(True, "Whether weight and bias are trained.")

    def applied(self, shape: Shape) -> Applied:
        """Keep the shape."""
        if self.dimensions > len(shape):
            raise ShapeError(f"dimensions={self.dimensions} is more than records of shape {shape} have; lower it")
        normalised, numbers = shape[-self.dimensions :], math.prod(shape)
        if math.prod(normalised) == 1:
            raise ShapeError(f"dimensions={self.dimensions} has one number, which becomes 0; raise it")
        return Applied(
            output=shape,
            arguments={"normalized_shape": list(normalised), "eps": self.eps, "elementwise_affine": self.affine},
            parameters={"weight": normalised, "bias": normalised} if self.affine else {},
            multiply_adds=2 * numbers,
            scratch_bytes=3 * _FLOAT * numbers,
        )


class Embedding(Layer):
    """embedding: a vector for each token (`nn.Embedding`). It is the first layer.

    Tokens are whole numbers from 0. Others are rounded down, and moved to the nearest token that there is.
    """

    kind: ClassVar[str] = "embedding"

    num_embeddings: int = _size("Number of tokens.", 1000)
    embedding_dim: int = _size("Length of a vector.", 32)

    def applied(self, shape: Shape) -> Applied:
        """Map (...) to (..., embedding_dim)."""
        tokens, size = math.prod(shape), (self.num_embeddings, self.embedding_dim)
        return Applied(
            output=(*shape, self.embedding_dim),
            arguments=self.model_dump(),
            parameters={"embedding.weight": size},
            multiply_adds=tokens * self.embedding_dim,
            # Its rule compares every two tokens of a record.
            scratch_bytes=_INDEX * tokens + 4 * _DOUBLE * tokens**2 + 2 * _DOUBLE * tokens * self.embedding_dim,
            scratch_once=2 * _DOUBLE * math.prod(size),
        )


class _Pool(Layer):
    dims: ClassVar[int]
    """Number of dimensions that windows have."""

    def _pooled(self, shape: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Applied:
        channels, sizes = shape[0], shape[1:]
        if any(2 * margin > size for margin, size in zip(padding, kernel, strict=True)):
            raise ShapeError(f"padding={list(padding)} must be at most half of kernel_size={list(kernel)}; lower it")
        output = _windows(sizes, kernel, stride, padding)
        numbers = channels * math.prod(output)
        return Applied(
            output=(channels, *output),
            arguments={name: list(pair) for name, pair in zip(_POOLING, (kernel, stride, padding), strict=True)},
            multiply_adds=numbers * math.prod(kernel),
            scratch_bytes=_INDEX * numbers,
        )


_POOLING = ("kernel_size", "stride", "padding")


class _Pool2d(_Pool):
    kernel_size: Sizes = _setting(..., "Height and width of a window.", example=2)
    stride: Sizes | None = _setting(None, "Step of the window. Default: its size.", example=2)
    padding: Margins = _setting((0, 0), "Margin on each side, at most half of the window.", example=1)

    def applied(self, shape: Shape) -> Applied:
        """Map (C, H, W) to (C, H', W')."""
        return self._pooled(_image(shape), self.kernel_size, self.stride or self.kernel_size, self.padding)


class MaxPool2d(_Pool2d):
    """max_pool2d: the largest number of every window (`nn.MaxPool2d`)."""

    kind: ClassVar[str] = "max_pool2d"


class AvgPool2d(_Pool2d):
    """avg_pool2d: the mean of every window (`nn.AvgPool2d`)."""

    kind: ClassVar[str] = "avg_pool2d"


class _Pool1d(_Pool):
    kernel_size: int = _size("Length of a window.", 2)
    stride: int | None = _setting(None, "Step of the window. Default: its length.", example=2, ge=1, le=_LARGEST)
    padding: int = _setting(0, "Margin on each side, at most half of the window.", ge=0, le=_LARGEST)

    def applied(self, shape: Shape) -> Applied:
        """Map (C, L) to (C, L')."""
        stride = self.stride or self.kernel_size
        return self._pooled(_sequence(shape), (self.kernel_size,), (stride,), (self.padding,))


class MaxPool1d(_Pool1d):
    """max_pool1d: the largest number of every window (`nn.MaxPool1d`)."""

    kind: ClassVar[str] = "max_pool1d"


class AvgPool1d(_Pool1d):
    """avg_pool1d: the mean of every window (`nn.AvgPool1d`)."""

    kind: ClassVar[str] = "avg_pool1d"


class _AdaptivePool(Layer):
    def _pooled(self, shape: Shape, output: Shape) -> Applied:
        channels, *sizes = shape
        if any(out > size for out, size in zip(output, sizes, strict=True)):
            raise ShapeError(f"output_size={list(output)} must be at most {sizes}, the size of its input; lower it")
        windows = math.prod(-(-size // out) + 1 for size, out in zip(sizes, output, strict=True))
        numbers = channels * math.prod(output)
        arguments = {"output_size": list(output)}
        return Applied(
            output=(channels, *output),
            arguments=arguments,
            multiply_adds=numbers * windows,
            scratch_bytes=_INDEX * numbers,
        )


class _AdaptivePool2d(_AdaptivePool):
    output_size: Sizes = _setting(..., "Height and width of the output.", example=1)

    def applied(self, shape: Shape) -> Applied:
        """Map (C, H, W) to (C, H', W')."""
        return self._pooled(_image(shape), self.output_size)


class AdaptiveAvgPool2d(_AdaptivePool2d):
    """adaptive_avg_pool2d: means of as many windows as the output has (`nn.AdaptiveAvgPool2d`)."""

    kind: ClassVar[str] = "adaptive_avg_pool2d"


class AdaptiveMaxPool2d(_AdaptivePool2d):
    """adaptive_max_pool2d: largest numbers of as many windows as the output has (`nn.AdaptiveMaxPool2d`)."""

    kind: ClassVar[str] = "adaptive_max_pool2d"


class _AdaptivePool1d(_AdaptivePool):
    output_size: int = _size("Length of the output.", 1)

    def applied(self, shape: Shape) -> Applied:
        """Map (C, L) to (C, L')."""
        return self._pooled(_sequence(shape), (self.output_size,))


class AdaptiveAvgPool1d(_AdaptivePool1d):
    """adaptive_avg_pool1d: means of as many windows as the output has (`nn.AdaptiveAvgPool1d`)."""

    kind: ClassVar[str] = "adaptive_avg_pool1d"


class AdaptiveMaxPool1d(_AdaptivePool1d):
    """adaptive_max_pool1d: largest numbers of as many windows as the output has (`nn.AdaptiveMaxPool1d`)."""

    kind: ClassVar[str] = "adaptive_max_pool1d"


class Flatten(Layer):
    """flatten: all dimensions become one (`nn.Flatten`)."""

    kind: ClassVar[str] = "flatten"

    def applied(self, shape: Shape) -> Applied:
        """Map (...) to (n,)."""
        return Applied(output=(math.prod(shape),))


class Unflatten(Layer):
    """unflatten: one dimension becomes several (`nn.Unflatten`)."""

    kind: ClassVar[str] = "unflatten"

    sizes: list[Annotated[int, Field(ge=1, le=_LARGEST)]] = _setting(
        ..., "The new dimensions.", example=[1, 28, 28], min_length=1, max_length=8
    )

    def applied(self, shape: Shape) -> Applied:
        """Map (n,) to the sizes."""
        if len(shape) != 1 or math.prod(self.sizes) != shape[0]:
            raise ShapeError(
                f"sizes={self.sizes} must have the product {math.prod(shape)}, as records of shape {shape} have "
                "numbers, in one dimension; change the sizes, or put flatten before"
            )
        return Applied(output=tuple(self.sizes), arguments={"dim": 1, "unflattened_size": list(self.sizes)})


class Transpose(Layer):
    """transpose: the last two dimensions are exchanged."""

    kind: ClassVar[str] = "transpose"

    def applied(self, shape: Shape) -> Applied:
        """Map (..., a, b) to (..., b, a)."""
        if len(shape) < 2:  # noqa: PLR2004
            raise ShapeError(f"needs two dimensions, and records have shape {shape}; leave it out")
        return Applied(output=(*shape[:-2], shape[-1], shape[-2]))


class _Activation(Layer):
    def applied(self, shape: Shape) -> Applied:
        """Keep the shape."""
        return Applied(output=shape, arguments=self.model_dump(), multiply_adds=math.prod(shape))


class Relu(_Activation):
    """relu: the larger of x and 0 (`nn.ReLU`)."""

    kind: ClassVar[str] = "relu"


class LeakyRelu(_Activation):
    """leaky_relu: the number x, or a small multiple of it below 0 (`nn.LeakyReLU`)."""

    kind: ClassVar[str] = "leaky_relu"

    negative_slope: float = _setting(0.01, "The multiple.", ge=0, le=1)


class Elu(_Activation):
    """elu: the number x, or α(eˣ - 1) below 0 (`nn.ELU`)."""

    kind: ClassVar[str] = "elu"

    alpha: float = _setting(1.0, "α.", gt=0, le=100)


class Selu(_Activation):
    """selu: the scaled ELU (`nn.SELU`)."""

    kind: ClassVar[str] = "selu"


class Gelu(_Activation):
    """gelu: the product of x and the normal distribution function of x (`nn.GELU`)."""

    kind: ClassVar[str] = "gelu"

    approximate: Literal["none", "tanh"] = _setting("none", "`tanh` approximates it.")


class Silu(_Activation):
    """silu: the product of x and its sigmoid (`nn.SiLU`)."""

    kind: ClassVar[str] = "silu"


class Mish(_Activation):
    """mish: the product x tanh(ln(1 + eˣ)) (`nn.Mish`)."""

    kind: ClassVar[str] = "mish"


class Softplus(_Activation):
    """softplus: the logarithm ln(1 + eˣ) (`nn.Softplus`)."""

    kind: ClassVar[str] = "softplus"


class Tanh(_Activation):
    """tanh: the hyperbolic tangent (`nn.Tanh`). Bounded activations often learn more under noise."""

    kind: ClassVar[str] = "tanh"


class Sigmoid(_Activation):
    """sigmoid: the logistic function 1 / (1 + e⁻ˣ) (`nn.Sigmoid`)."""

    kind: ClassVar[str] = "sigmoid"


class Dropout(_Activation):
    """dropout: during training, each number becomes 0 with probability p (`nn.Dropout`)."""

    kind: ClassVar[str] = "dropout"

    p: float = _setting(0.5, "The probability.", ge=0, lt=1)


KINDS: dict[str, type[Layer]] = {
    layer.kind: layer
    for layer in (
        *(Linear, Conv2d, GroupNorm, LayerNorm, Embedding),
        *(MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, AdaptiveMaxPool2d),
        *(MaxPool1d, AvgPool1d, AdaptiveAvgPool1d, AdaptiveMaxPool1d),
        *(Flatten, Unflatten, Transpose),
        *(Relu, LeakyRelu, Elu, Selu, Gelu, Silu, Mish, Softplus, Tanh, Sigmoid, Dropout),
    )
}
"""Layers by their type, without those that hold others."""
RESIDUAL = "residual"
"""The type of a block whose input is added to its output."""

INSTEAD = {
    **dict.fromkeys(
        ("batch_norm", "batch_norm1d", "batch_norm2d"), "it mixes the records of a batch; use group_norm or layer_norm"
    ),
    **dict.fromkeys(("softmax", "log_softmax"), "the loss contains it; leave it out"),
    **dict.fromkeys(
        ("lstm", "gru", "rnn", "transformer_encoder_layer", "multihead_attention"),
        "it cannot be declared; write a function for model.factory",
    ),
}
"""Layers that cannot be declared though torch has them, and what to do."""
