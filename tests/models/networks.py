"""Random declared networks: every kind of layer, in any order that its shapes allow."""

import random
from typing import Any

ACTIVATIONS = ("relu", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "softplus", "tanh", "sigmoid")


def random_network(seed: int) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    """Return the shape of a record, and layers that end with five outputs. The layers may not fit their inputs."""
    draw = random.Random(seed)  # noqa: S311 - a fixed order
    shape, layers = draw.choice((_images, _images, _sequences, _vectors))(draw)
    return shape, [*layers, {"type": "flatten"}, {"type": "linear", "out_features": 5}]


def _activation(draw: random.Random) -> dict[str, Any]:
    return {"type": draw.choice(ACTIVATIONS)}


def _images(draw: random.Random) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    channels, height, width = draw.choice((1, 2, 3, 4, 6, 8)), draw.randint(5, 12), draw.randint(5, 12)
    shape, layers = (channels, height, width), []
    if draw.random() < 0.2:
        shape, layers = (channels * height * width,), [{"type": "unflatten", "sizes": [channels, height, width]}]
    for _ in range(draw.randint(1, 3)):
        out, groups = draw.choice((3, 4, 8, 10, 16, 24, 32)), draw.choice((1, 1, 1, 2, 4, channels))
        groups = 1 if channels % groups or out % groups else groups
        kernel = draw.choice((1, 2, 3, 5))
        layers.append(
            {
                "type": "conv2d",
                "out_channels": out,
                "kernel_size": draw.choice((kernel, [kernel, draw.choice((1, 3))])),
                "stride": draw.choice((1, 1, 2)),
                "padding": draw.choice((0, 1, 2)),
                "dilation": draw.choice((1, 1, 2)),
                "groups": groups,
                "bias": draw.random() < 0.7,
            }
        )
        channels = out
        norm = draw.choice(("group_norm", "layer_norm", None))
        if norm == "group_norm":
            divisors = [count for count in (1, 2, 4, 8) if channels % count == 0]
            layers.append({"type": norm, "num_groups": draw.choice(divisors), "affine": draw.random() < 0.8})
        elif norm == "layer_norm":
            layers.append({"type": norm, "dimensions": draw.choice((1, 2, 3))})
        layers += [_activation(draw), *_after_convolution(draw, channels)]
    return shape, layers


def _after_convolution(draw: random.Random, channels: int) -> list[dict[str, Any]]:
    body = [{"type": "conv2d", "out_channels": channels, "kernel_size": 3, "padding": 1}, _activation(draw)]
    shortcut = draw.choice(([], [{"type": "conv2d", "out_channels": channels, "kernel_size": 1}]))
    adaptive = draw.choice(("adaptive_avg_pool2d", "adaptive_max_pool2d"))
    return [
        *draw.choice(
            (
                [],
                [{"type": "max_pool2d", "kernel_size": 2, "stride": draw.choice((1, 2))}],
                [{"type": "avg_pool2d", "kernel_size": [2, 1], "padding": [draw.choice((0, 1)), 0]}],
                [{"type": adaptive, "output_size": draw.choice((1, 2))}],
                [{"type": "residual", "layers": body, "shortcut": shortcut}],
                [{"type": "transpose"}],
            )
        )
    ]


def _sequences(draw: random.Random) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    layers: list[dict[str, Any]] = [
        {"type": "embedding", "num_embeddings": 7, "embedding_dim": draw.choice((3, 4, 5, 8, 16, 17))}
    ]
    for _ in range(draw.randint(1, 3)):
        pool, adaptive = (draw.choice((f"{kind}avg_pool1d", f"{kind}max_pool1d")) for kind in ("", "adaptive_"))
        layers += [
            draw.choice(
                (
                    {"type": "linear", "out_features": draw.choice((3, 6, 8, 33))},
                    {"type": "layer_norm", "dimensions": draw.choice((1, 2))},
                    {"type": "transpose"},
                    {"type": pool, "kernel_size": 2, "stride": draw.choice((1, 2)), "padding": draw.choice((0, 1))},
                    {"type": adaptive, "output_size": draw.choice((1, 2))},
                )
            ),
            _activation(draw),
        ]
    return (draw.randint(2, 9),), layers


def _vectors(draw: random.Random) -> tuple[tuple[int, ...], list[dict[str, Any]]]:
    layers: list[dict[str, Any]] = []
    for _ in range(draw.randint(1, 3)):
        width = draw.randint(2, 90)
        layers += [{"type": "linear", "out_features": width, "bias": draw.random() < 0.7}, _activation(draw)]
        within = {"type": "linear", "out_features": width}
        layers += draw.choice(
            (
                [],
                [{"type": "layer_norm"}],
                [{"type": "residual", "layers": [within, _activation(draw)]}],
                [{"type": "residual", "layers": [{"type": "residual", "layers": [within]}], "shortcut": [within]}],
            )
        )
    return (draw.randint(2, 70),), layers
