"""Reading a file never runs code: the source uses no pickle and no eval, and code hidden in a file stays data."""

import ast
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

import alidpfl
from alidpfl.data.files import cached_arrays
from alidpfl.data.own import load_client
from alidpfl.data.readers import read_cifar
from alidpfl.errors import AliDpflError, DataError
from alidpfl.features import FeatureMap
from alidpfl.runs.features import load_or_compute
from alidpfl.store import RunDirectory
from alidpfl.vault.messages import decode_answer, decode_request
from alidpfl.vault.refusals import VaultRefusedError

SOURCE = Path(alidpfl.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "unsafe_load"}
ALLOWED: set[tuple[str, str]] = set()


def _unsafe(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield f"import {node.module}"
        elif isinstance(node, ast.Call):
            yield from _unsafe_call(node)


def _unsafe_call(node: ast.Call):
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    if name in CALLS:
        yield name
    if name == "torch.load" and given.get("weights_only") != "True":
        yield name
    if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
        yield name
    if given.get("allow_pickle") == "True" or given.get("shell") == "True":
        yield f"{name} with {given}"


def test_the_source_loads_no_pickle_and_evaluates_no_text():
    found = set()
    for path in SOURCE.rglob("*.py"):
        found |= {(path.relative_to(SOURCE).as_posix(), what) for what in _unsafe(ast.parse(path.read_text()))}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "import yaml.loader",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=True)",
        "eval(text)",
        "subprocess.run(command, shell=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(line):
    assert list(_unsafe(ast.parse(line)))


class Bomb:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


@pytest.fixture
def bomb(tmp_path):
    made = Bomb(tmp_path / "it was run")
    yield made
    assert not made._path.exists()


def test_the_bomb_would_go_off(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "x")))  # noqa: S301
    assert (tmp_path / "x").exists()


@pytest.mark.parametrize("name", ["x", "y"])
def test_in_an_npz_file(tmp_path, bomb, name):
    hidden = np.empty((10, 2) if name == "x" else 10, object)
    hidden[:] = bomb
    np.savez(tmp_path / "a.npz", **{"x": np.zeros((10, 2)), "y": np.arange(10) % 3, name: hidden})
    with pytest.raises(DataError, match=rf"a\.npz: array {name}"):
        load_client(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(bomb))
    with pytest.raises(DataError, match=r"b\.npz"):
        load_client(tmp_path / "b.npz")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_in_a_batch_of_cifar(tmp_path, bomb, protocol):
    for content in (bomb, {b"data": bomb, b"labels": [1]}):
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="data_batch_1"):
            read_cifar(tmp_path / "data_batch_1", "get it again")


def test_in_a_cache_of_features(tmp_path, bomb):
    images = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    feature_map = FeatureMap(image_shape=(1, 28, 28), scattering_frequencies=0)
    load_or_compute(feature_map, images, tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    names = [block.name for block in feature_map.blocks]
    np.savez(path, **{name: np.array([bomb], object) for name in names})
    assert cached_arrays(path, names) is None
    path.write_bytes(pickle.dumps(bomb))
    assert load_or_compute(feature_map, images, tmp_path / "cache").keys() == set(names)


def test_in_a_checkpoint_and_in_statistics(tmp_path, bomb):
    run = RunDirectory.create(tmp_path / "run")
    torch.save({"params": bomb}, tmp_path / "saved")
    for content in (pickle.dumps(bomb), (tmp_path / "saved").read_bytes()):
        for name, read in (
            ("checkpoint.safetensors", run.read_checkpoint),
            ("statistics.safetensors", run.statistics),
            ("model.safetensors", run.read_model),
        ):
            (run.path / name).write_bytes(content)
            with pytest.raises(AliDpflError, match=name):
                read()


def test_in_a_message_to_or_from_a_vault(bomb):
    hidden = pickle.dumps(bomb)
    array = np.frombuffer(hidden, np.uint8)
    for content in (hidden, safetensors.numpy.save({"w": array}, {"alidpfl": hidden.decode("latin1")})):
        for decode in (decode_request, decode_answer):
            with pytest.raises(VaultRefusedError):
                decode(content)
