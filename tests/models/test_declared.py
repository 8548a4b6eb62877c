"""Declared networks are torch's own modules: the same weights, outputs and runs, bit for bit."""

import json
import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import alidpfl
from alidpfl.config.layers import KINDS
from alidpfl.config.network import Network, parse_layers
from alidpfl.dpsgd import PerSampleClipper
from alidpfl.dpsgd.recording import find_units
from alidpfl.errors import AliDpflError
from alidpfl.models import make_declared
from alidpfl.models.declared import MODULES, Residual, TokenEmbedding
from alidpfl.runs import execute, load_config
from alidpfl.runs.prepare import build_model
from alidpfl.store import RunDirectory
from tests.dpsgd.oracle import clipped_sum, distance, gradients_one_by_one, norm
from tests.runs.command import alidpfl as command
from tests.runs.command import overrides

from .networks import random_network

CONV = {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}
LAYERS = [
    {**CONV, "stride": 2},
    {"type": "group_norm", "num_groups": 4},
    {"type": "relu"},
    {
        "type": "residual",
        "layers": [CONV, {"type": "silu"}, {**CONV, "out_channels": 16, "bias": False}],
        "shortcut": [{"type": "conv2d", "out_channels": 16, "kernel_size": 1}],
    },
    {"type": "max_pool2d", "kernel_size": 2},
    {"type": "residual", "layers": [{**CONV, "out_channels": 16}, {"type": "tanh"}]},
    {"type": "adaptive_avg_pool2d", "output_size": 3},
    {"type": "flatten"},
    {"type": "layer_norm"},
    {"type": "linear", "out_features": 10},
]


def by_hand(input_shape, num_outputs, channels=8):
    """The same network as a user writes it for torch."""
    return nn.Sequential(
        nn.Conv2d(input_shape[0], channels, 3, stride=2, padding=1),
        nn.GroupNorm(4, channels),
        nn.ReLU(),
        Residual(
            nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 16, 3, padding=1, bias=False)),
            nn.Sequential(nn.Conv2d(channels, 16, 1)),
        ),
        nn.MaxPool2d(2),
        Residual(nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.Tanh())),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.LayerNorm(144),
        nn.Linear(144, num_outputs),
    )


def declared(layers, shape, seed=0) -> tuple[Network, nn.Module]:
    network = Network.of(parse_layers(layers), shape)
    return network, make_declared(network.specification(), seed=seed)


@cache
def fitting(count: int) -> list[int]:
    """Seeds of random networks whose layers fit one another."""
    found, seed = [], 0
    while len(found) < count:
        shape, layers = random_network(seed)
        try:
            Network.of(parse_layers(layers), shape)
            found.append(seed)
        except AliDpflError:
            pass
        seed += 1
    return found


def test_every_kind_of_layer_has_its_module():
    assert MODULES.keys() == KINDS.keys()


@pytest.mark.parametrize("number", range(60))
def test_what_is_computed_without_torch_is_what_torch_has(number):
    """Names, shapes and order of the parameters, shapes of all outputs, and the costs."""
    shape, layers = random_network(fitting(60)[number])
    network, model = declared(layers, shape)
    assert list(network.parameters.items()) == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    inputs = torch.randn(2, *shape)
    for layer, module in zip(network.layers, model, strict=True):
        inputs = module(inputs)
        assert tuple(inputs.shape[1:]) == layer.applied.output
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(1, *shape))
    counted = sum(layer.applied.multiply_adds for layer in network.everyone if layer.kind in ("linear", "conv2d"))
    assert counter.get_total_flops() == 2 * counted
    assert all(unit.has_rule for unit in find_units(model))


def test_the_random_networks_have_every_kind_of_layer():
    kinds = {layer.kind for seed in fitting(60) for layer in declared(*random_network(seed)[::-1])[0].everyone}
    assert kinds == {*KINDS, "residual"} - {"dropout"}


def test_weights_and_outputs_are_those_of_the_same_torch_module():
    settings = load_config(overrides=[f"model.layers={toml(LAYERS)}", "seed=4"])
    state = torch.get_rng_state()
    model = build_model(settings, (3, 12, 12), 10)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(4)
    expected = by_hand((3, 12, 12), 10)
    found = dict(model.named_parameters())
    assert found.keys() == dict(expected.named_parameters()).keys()
    assert all(torch.equal(found[name], values) for name, values in expected.named_parameters())
    inputs = torch.randn(5, 3, 12, 12)
    assert torch.equal(model(inputs), expected(inputs))


def toml(value):
    """Layers as a user types them after --set."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


SMALL = {
    "data__name": "strokes",
    "data__clients": 3,
    "privacy__sample_rate": 0.002,
    "federation__max_rounds": 2,
    "run__evaluate_every": 2,
}


def test_a_seeded_run_is_that_of_the_same_torch_module(tmp_path):
    """The module comes from a factory, as a user would write it."""
    base = [one for one in overrides(**SMALL) if not one.startswith("model.name")]
    kinds = {"declared": f"model.layers={toml(LAYERS)}", "factory": f"model.factory={__name__}:by_hand"}
    for name, setting in kinds.items():
        execute(load_config(overrides=[*base, setting]), tmp_path / name)
    runs = [RunDirectory.open(tmp_path / name) for name in kinds]
    (found, told), (expected, _) = (run.read_model() for run in runs)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert runs[0].records() == runs[1].records()
    assert told["model"] == "10 declared layers"
    assert json.loads(told["layers"]) == [layer.plain() for layer in parse_layers(LAYERS)]
    facts = json.loads(command("show", tmp_path / "declared", "--json").stdout)
    assert facts["model"] == "10 declared layers"
    loaded = alidpfl.load_model(tmp_path / "declared")
    assert all(torch.equal(values, found[name]) for name, values in loaded.named_parameters())


@pytest.mark.parametrize("number", range(0, 60, 3))
def test_gradients_are_clipped_exactly(number):
    shape, layers = random_network(fitting(60)[number])
    _, model = declared(layers, shape, seed=number)
    generator = torch.Generator().manual_seed(number)
    inputs, targets = 3 * torch.randn(9, *shape, generator=generator), torch.arange(9) % 5
    truth = gradients_one_by_one(model, inputs, targets)
    limit = sorted(map(norm, truth))[4]  # half of the records are clipped
    clipper = PerSampleClipper(model)
    found = clipper.clipped_sum(inputs, targets, clip_norm=limit, seed=0)
    norms = torch.tensor([norm(one) for one in truth], dtype=torch.float64)
    assert torch.allclose(found.statistics.norms, norms, rtol=1e-4, atol=1e-7)
    assert distance(found.gradients, clipped_sum(truth, limit)) < 1e-4 * 9 * limit


HUGE = 1e3  # weights under which rounding decides the class


@pytest.mark.parametrize("number", range(1, 60, 3))
def test_a_record_does_not_feel_the_others(number):
    """A server may declare any network and send any weights: no bit of a gradient depends on the rest of the batch."""
    shape, layers = random_network(fitting(60)[number])
    _, model = declared(layers, shape, seed=number)
    clipper = PerSampleClipper(model)
    clipper.clipped_sum(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.int64), clip_norm=1.0, seed=0)  # the trial
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(HUGE)
    inputs = 3 * torch.randn(150, *shape, generator=torch.Generator().manual_seed(number))
    targets = torch.arange(150) % 5

    def facts(first, last):
        rows = torch.arange(first, last)
        found = clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0, rows=rows).statistics
        return torch.stack([found.norms, found.losses.double()], dim=1).nan_to_num(-1.0)

    whole = facts(0, 150)
    for size in (1, 15, 16, 17, 33, 64, 129):
        assert torch.equal(facts(0, size), whole[:size])
        assert torch.equal(facts(1, size + 1), whole[1 : size + 1])


def test_no_number_makes_an_embedding_fail():
    """A failure would tell that a record has such a number."""
    odd = [0.0, -0.0, 1.9, 6.0, 7.0, -3.0, 1e30, -1e30, math.inf, -math.inf, math.nan, 1e-40]
    model = TokenEmbedding(7, 2)
    tokens = model.tokens(torch.tensor([odd]))
    assert tokens.tolist() == [[0, 0, 1, 6, 6, 0, 6, 0, 6, 0, 0, 0]]
    assert model(torch.tensor([odd])).isfinite().all()
    assert torch.equal(model.tokens(torch.tensor([[5, -2, 900]])), torch.tensor([[5, 0, 6]]))  # whole numbers too


def test_dropout_is_drawn_anew_in_every_step_and_off_in_evaluations():
    _, model = declared([{"type": "dropout", "p": 0.9}, {"type": "linear", "out_features": 5}], (30,))
    inputs, targets = torch.randn(9, 30), torch.arange(9) % 5
    clipper = PerSampleClipper(model.train())
    sums = [clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=seed).gradients["1.weight"] for seed in (0, 0, 1)]
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])
    assert torch.equal(model.eval()(inputs), model(inputs))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(f'[data]\nname = "strokes"\n[model]\nlayers = {toml(LAYERS)}\n')
    return path


def test_the_command_shows_what_is_declared(file):
    given = ("--input-shape", "3,12,12", "--classes", "10")
    done = command("model", file, *given, "--json")
    assert done.exit_code == 0, done.stderr
    found, network = json.loads(done.stdout), Network.of(parse_layers(LAYERS), (3, 12, 12))
    assert found["parameters"] == network.num_params == sum(row["parameters"] for row in found["layers"])
    assert found["multiply_adds"] == network.multiply_adds == sum(row["multiply_adds"] for row in found["layers"])
    assert found["activation_bytes"] == network.activation_bytes()
    assert [row["layer"] for row in found["layers"]] == [
        "1", "2", "3", "4", "4.1", "4.2", "4.3", "4.shortcut.1", "5", "6", "6.1", "6.2", "7", "8", "9", "10"
    ]  # fmt: skip
    shown = command("model", file, *given).stdout
    assert "4.shortcut.1" in shown
    assert f"{network.num_params:,} parameters; {network.multiply_adds:,} multiply-adds" in " ".join(shown.split())


def test_the_command_takes_shapes_from_the_data(file):
    done = command("model", file, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["input_shape"] == [1, 28, 28]


def test_the_command_names_mistakes(file, tmp_path):
    (tmp_path / "named.toml").write_text('[model]\nname = "mlp"\n')
    for given, says in (
        ((file, "--input-shape", "60", "--classes", "10"), "layer 1 (conv2d)"),
        ((file, "--input-shape", "3,12,12", "--classes", "3"), "out_features = 3"),
        ((file, "--input-shape", "3,12,12", "--classes", "0"), "--classes=0"),
        ((file, "--set", 'model.layers=[{type="thna"}]'), "'thna'"),
        ((tmp_path / "named.toml",), 'model.name="mlp"'),
    ):
        done = command("model", *given)
        assert done.exit_code == 2
        assert says in done.stderr


def test_a_plan_and_an_audit_take_declared_layers(file, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plan = ("--sample-rate", "0.015", "--noise-multiplier", "1.1", "--accountant", "rdp", "--json")
    done = command("plan", "--model", file, "--input-shape", "3,12,12", *plan)
    found = json.loads(done.stdout)
    assert found["bytes"] // (8 * 10 * found["max_rounds"]) == Network.of(parse_layers(LAYERS), (3, 12, 12)).num_params
    settings = ("data.name=synthetic", "data.clients=3", "privacy.accountant=rdp", "privacy.max_steps=3")
    layers = 'model.layers=[{type="linear", out_features=8}, {type="gelu"}, {type="linear", out_features=10}]'
    given = [part for one in (*settings, layers) for part in ("--set", one)]
    done = command("audit", *given, "--one-step", "--draws", "100", "--json")
    assert done.exit_code == 0, done.stderr


def test_a_network_that_does_not_fit_the_data_ends_a_run_before_it_begins(tmp_path):
    done = command("run", "--set", 'model.layers=[{type="linear", out_features=3}]', "--out", tmp_path / "run")
    assert done.exit_code == 2
    assert "layer 1 (linear)" in done.stderr
    assert not (tmp_path / "run").exists()
