"""Declared networks without torch: every mistake has a place, a reason and a remedy, and no declaration takes long."""

import re
import tracemalloc

import pytest

from alidpfl.config.layers import INSTEAD, KINDS
from alidpfl.config.lines import line_of
from alidpfl.config.load import load_config, parse_config
from alidpfl.config.network import MOST_LAYERS, MOST_NESTING, LayerError, Limits, Network, parse_layers
from alidpfl.errors import ConfigError
from alidpfl.store.files import to_toml

CONV = {"type": "conv2d", "out_channels": 8, "kernel_size": 3}
FOUR = {**CONV, "out_channels": 4, "padding": 1}
EMBEDDING = {"type": "embedding", "num_embeddings": 9, "embedding_dim": 2}
FLAT, LINEAR = {"type": "flatten"}, {"type": "linear", "out_features": 10}
IMAGE = (1, 28, 28)


def network(*layers, shape=IMAGE, outputs=None):
    return Network.of(parse_layers(layers), shape, outputs)


def residual(*layers, shortcut=()):
    return {"type": "residual", "layers": list(layers), "shortcut": list(shortcut)}


def test_shapes_parameters_and_costs_by_hand():
    found = network(
        {**CONV, "stride": 2, "padding": 1},
        {"type": "group_norm", "num_groups": 4},
        residual({**FOUR, "bias": False}, shortcut=[FOUR]),
        {"type": "avg_pool2d", "kernel_size": 2},
        FLAT,
        LINEAR,
        outputs=10,
    )
    assert [layer.applied.output for layer in found.layers] == [
        (8, 14, 14), (8, 14, 14), (4, 14, 14), (4, 7, 7), (196,), (10,)
    ]  # fmt: skip
    assert found.parameters == {
        "0.weight": (8, 1, 3, 3),
        "0.bias": (8,),
        "1.weight": (8,),
        "1.bias": (8,),
        "2.body.0.weight": (4, 8, 3, 3),
        "2.shortcut.0.weight": (4, 8, 3, 3),
        "2.shortcut.0.bias": (4,),
        "5.weight": (10, 196),
        "5.bias": (10,),
    }
    assert found.num_params == 72 + 8 + 16 + 2 * 288 + 4 + 1960 + 10
    macs = 72 * 196 + 2 * 8 * 196 + 2 * 288 * 196 + 4 * 196 + 4 * 49 * 4 + 1960
    assert found.multiply_adds == macs
    assert found.activations == 784 + 2 * 8 * 196 + 3 * 4 * 196 + 196 + 196 + 10


MISTAKES = {
    "no type": ([{"out_features": 3}], "layer 1: type is missing"),
    "an unknown type": ([FLAT, {"type": "linaer"}], "layer 2: type='linaer' cannot be declared; did you mean 'linear'"),
    "torch's own name": ([{"type": "Conv2d", "out_channels": 3}], "did you mean 'conv2d'?"),
    "a type far from all": ([{"type": "zzz"}], "there are linear, conv2d"),
    "a type that is no text": ([{"type": 3}], "type=3 cannot be declared"),
    "a layer that mixes": ([{"type": "batch_norm2d"}], "it mixes the records of a batch; use group_norm"),
    "a layer of another spelling": ([{"type": "BatchNorm2d"}], "use group_norm or layer_norm"),
    "no table": ([3], "layer 1: 3 must be a table"),
    "no list": (7, "must be a"),
    "no layers in a block": ([{"type": "residual"}], "layer 1 (residual): layers must be a list of layers"),
    "a block of a wrong type": ([{"type": "residual", "layers": 3}], "layer 1 (residual): layers must be a list"),
    "a shortcut of a wrong type": ([residual(CONV) | {"shortcut": {}}], "layer 1 (residual): shortcut must be a list"),
    "a setting of a block": ([residual(CONV) | {"shortcuts": []}], "layer 1 (residual): 'shortcuts' is not a setting"),
    "a missing setting": ([{"type": "linear"}], "(linear): out_features is missing; it must be a whole number ≥ 1"),
    "an unknown setting": ([{**CONV, "paddin": 1}], "'paddin' is not a setting of this layer; did you mean 'padding'?"),
    "a setting of one that has none": ([{"type": "tanh", "inplace": True}], "it has none"),
    "a size of zero": ([{**LINEAR, "out_features": 0}], "out_features=0 must be a whole number ≥ 1"),
    "true as a size": ([{**LINEAR, "out_features": True}], "out_features=true must be a whole number"),
    "a fraction as a size": ([{**LINEAR, "out_features": 3.0}], "out_features=3.0 must be a whole number"),
    "a text as a size": ([{**LINEAR, "out_features": "3"}], "out_features='3' must be a whole number"),
    "a number as true": ([{**LINEAR, "bias": 1}], "bias=1 must be true or false"),
    "three sizes": (
        [{**CONV, "kernel_size": [3, 3, 3]}],
        "kernel_size=[3, 3, 3] must be a whole number ≥ 1 or list of two",
    ),
    "a negative margin": ([{**CONV, "padding": -1}], "padding=-1 must be a whole number ≥ 0 or list of two"),
    "padding by name": ([{**CONV, "padding": "same"}], "padding='same' must be a whole number ≥ 0"),
    "a probability of one": ([{"type": "dropout", "p": 1.0}], "p=1.0 must be a number ≥ 0, < 1"),
    "NaN": ([{"type": "elu", "alpha": float("nan")}], "alpha=nan must be a number"),
    "a second-level mistake": ([residual(CONV, residual(FLAT, {"type": "tanhh"}))], "layer 1.2.2: type='tanhh'"),
    "a mistake in a shortcut": (
        [residual(CONV, shortcut=[{**CONV, "stride": 0}])],
        "layer 1.shortcut.1 (conv2d): stride=0",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_layer(mistake):
    layers, says = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse_layers(layers)
    if isinstance(layers, list) and isinstance(layers[0], dict):  # else the whole setting is refused
        with pytest.raises(ConfigError, match=re.escape(says)):
            parse_config({"model": {"layers": layers}})


SHAPES = {
    "images wanted": ((6,), [CONV], "layer 1 (conv2d): takes images"),
    "sequences wanted": ((6,), [{"type": "max_pool1d", "kernel_size": 2}], "layer 1 (max_pool1d): takes sequences"),
    "a kernel too large": (IMAGE, [{**CONV, "kernel_size": 29}], "kernel_size=[29, 29] does not fit into [28, 28]"),
    "a dilated kernel too large": (IMAGE, [{**CONV, "dilation": 14}], "does not fit"),
    "groups of the input": (IMAGE, [{**CONV, "groups": 2}], "groups=2 must divide the 1 channels of the input"),
    "groups of the output": ((3, 8, 8), [{**CONV, "groups": 3}], "groups=3 must divide the 8 out_channels"),
    "groups of channels": (
        IMAGE,
        [CONV, {"type": "group_norm", "num_groups": 3}],
        "num_groups=3 must divide the 8 channels",
    ),
    "a group of one number": ((8,), [{"type": "group_norm", "num_groups": 8}], "one number in a group"),
    "too many dimensions": ((8,), [{"type": "layer_norm", "dimensions": 2}], "dimensions=2 is more"),
    "one number to normalise": ((1,), [{"type": "layer_norm"}], "one number, which becomes 0"),
    "pooling margins": (IMAGE, [{"type": "max_pool2d", "kernel_size": 2, "padding": 2}], "at most half"),
    "pooling to more": (IMAGE, [{"type": "adaptive_avg_pool2d", "output_size": 29}], "at most [28, 28]"),
    "another product": ((6,), [{"type": "unflatten", "sizes": [2, 4]}], "must have the product 6"),
    "nothing to unflatten": ((2, 3), [{"type": "unflatten", "sizes": [6]}], "in one dimension"),
    "nothing to transpose": ((6,), [{"type": "transpose"}], "needs two dimensions"),
    "an embedding in the middle": ((6,), [FLAT, EMBEDDING], "layer 2 (embedding): takes tokens"),
    "an embedding in a block": ((6,), [residual(EMBEDDING)], "takes tokens"),
    "a block that changes the shape": (
        (6,),
        [residual({"type": "linear", "out_features": 4})],
        "end with shape (4), and what is added to them has (6); give it a",
    ),
    "two ways of two shapes": (
        (6,),
        [residual(LINEAR, shortcut=[{"type": "linear", "out_features": 4}])],
        "has (4); change one",
    ),
    "another number of outputs": (
        (6,),
        [{"type": "linear", "out_features": 4}],
        "output has shape (4), and must have (10)",
    ),
    "outputs of several dimensions": (IMAGE, [CONV], "output has shape (8, 26, 26), and must have (10)"),
}


@pytest.mark.parametrize("mistake", SHAPES)
def test_a_layer_that_cannot_take_its_inputs_is_named(mistake):
    shape, layers, says = SHAPES[mistake]
    with pytest.raises(LayerError, match=re.escape(says)):
        network(*layers, shape=shape, outputs=10)


def test_every_layer_that_is_refused_with_a_remedy_is_unknown():
    assert not INSTEAD.keys() & KINDS.keys()
    assert len(KINDS) == 27


TEXT = """
[data]
name = "strokes"

[[model.layers]]          # 1
type = "conv2d"
out_channels = 8
kernel_size = 3

[[model.layers]]
type = "residual"

[[ model.layers.layers ]]
type = "conv2d"
out_channels = 8
"padding" = 1
kernel_size = 3

[[model.layers.layers]]
type = "relu"

[[model.layers.shortcut]]
type = "conv2d"
out_channels = 8
kernel_size = 1

[[model.layers]]
type = "residual"
[[model.layers.layers]]
type = "tanh"

[privacy]
epsilon = 2.0
"""
PLACES = [
    ((("layers", 1),), "kernel_size", 8),
    ((("layers", 1),), None, 5),
    ((("layers", 1),), "stride", 5),  # a key that is missing: the layer's own line
    ((("layers", 2), ("layers", 1)), "padding", 16),
    ((("layers", 2), ("layers", 2)), "type", 20),
    ((("layers", 2), ("shortcut", 1)), "kernel_size", 25),
    ((("layers", 3), ("layers", 1)), "type", 30),
    ((("layers", 3), ("shortcut", 1)), "type", None),
    ((("layers", 4),), "type", None),
]


@pytest.mark.parametrize(("place", "key", "line"), PLACES)
def test_the_line_of_a_layer(place, key, line):
    assert line_of(TEXT, place, key) == line


def test_a_mistake_in_a_file_has_its_line(tmp_path):
    path = tmp_path / "run.toml"
    for old, new, line in (
        ('"relu"', '"rleu"', 20),
        ("kernel_size = 1", "kernel_size = 0", 25),
        ("out_channels = 8", "", 5),
    ):
        path.write_text(TEXT.replace(old, new, 1))
        with pytest.raises(ConfigError, match=re.escape(f"run.toml line {line}: model.layers, layer ")):
            load_config(path)
    path.write_text('[model]\nlayers = [\n  { type = "tanh" },\n  { type = "thna" },\n]\n')  # no headers, no line
    with pytest.raises(ConfigError, match=r"^model\.layers, layer 2: type='thna'"):
        load_config(path)
    path.write_text(TEXT)
    with pytest.raises(ConfigError, match=r"^model\.layers, layer 1: type='thna'"):  # not from the file
        load_config(path, ['model.layers=[{type="thna"}]'])


def test_settings_that_exclude_each_other():
    for other in ("model.name=mlp", "model.factory=nets:make"):
        with pytest.raises(ConfigError, match="exclude each other"):
            load_config(overrides=['model.layers=[{type="tanh"}]', other])


def test_a_declared_network_survives_its_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    found = load_config(path)
    (tmp_path / "again.toml").write_text(to_toml(found.to_dict()))
    again = load_config(tmp_path / "again.toml")
    assert again.to_dict() == found.to_dict()
    assert "name" not in found.to_dict()["model"]
    plain = [layer.plain() for layer in found.model.declared]
    assert [layer.plain() for layer in parse_layers(plain)] == plain
    assert plain[0] == {
        "type": "conv2d",
        "out_channels": 8,
        "kernel_size": [3, 3],
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "groups": 1,
        "bias": True,
    }


def test_a_configuration_without_layers_says_nothing_of_them():
    assert "layers" not in load_config().to_dict()["model"]


HUGE = {
    "wide layers": [{"type": "linear", "out_features": 1_000_000}] * MOST_LAYERS,
    "large margins": [{**CONV, "padding": 1_000_000, "kernel_size": 1, "out_channels": 1_000_000}] * MOST_LAYERS,
    "a huge embedding": [{"type": "embedding", "num_embeddings": 1_000_000, "embedding_dim": 1_000_000}],
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_network_is_judged_by_numbers(name):
    """Nothing is allocated: a server may declare anything."""
    limits = Limits(max_parameters=10**6, max_multiply_adds=10**9, max_activation_bytes=10**9)
    tracemalloc.start()
    found = network(*HUGE[name], shape=(3, 32, 32))
    told = limits.excess(found)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert re.search(r"parameters=[\d,]+, and the owner's max_parameters is 1,000,000", told)
    assert peak < 20e6


def test_the_number_and_the_nesting_of_layers_are_bounded():
    tanh = {"type": "tanh"}
    network(*[tanh] * MOST_LAYERS)
    for layers in ([tanh] * (MOST_LAYERS + 1), [residual(*[tanh] * (MOST_LAYERS - 1)), tanh]):
        with pytest.raises(ConfigError, match=f"more than {MOST_LAYERS} layers"):
            parse_layers(layers)
    nested = tanh
    for _ in range(MOST_NESTING):
        nested = residual(nested)
    network(nested)
    with pytest.raises(ConfigError, match="deep in one another"):
        parse_layers([residual(nested)])
    endless = residual()
    endless["layers"].append(endless)
    with pytest.raises(ConfigError, match="deep in one another"):
        parse_layers([endless])


def test_each_limit_binds():
    found = network(CONV, FLAT, LINEAR)
    exact = {
        "max_parameters": found.num_params,
        "max_multiply_adds": found.multiply_adds,
        "max_activation_bytes": found.activation_bytes(),
    }
    assert Limits(**exact).excess(found) is None
    for name, value in exact.items():
        told = Limits(**{**exact, name: value - 1}).excess(found)
        assert f"the owner's {name} is {value - 1:,}" in told
    assert Limits(**exact).excess(found, records=129).startswith("it has activation_bytes=")


def test_tables_and_other_defaults_leave_the_layers_alone(tmp_path):
    from alidpfl.runs.tables import with_table_defaults
    from tests.tables.parts import hospitals

    hospitals(tmp_path, (60, 60, 60))
    given = ["data.name=table", f"data.schema_file={tmp_path / 'schema.toml'}", f"data.data_dir={tmp_path}"]
    found = with_table_defaults(load_config(overrides=[*given, 'model.layers=[{type="linear", out_features=2}]']))
    assert found.model.called == "1 declared layer"
    assert found.method.clip_norm == 1.0
    assert "name" not in found.to_dict()["model"]
