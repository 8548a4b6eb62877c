"""Data sets of Hugging Face, which need not be installed: with a stand-in, and with the real package if it is there."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from alidpfl import Privacy, federate
from alidpfl.data import from_clients
from alidpfl.errors import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings("ignore:Cannot")  # of dill, which `datasets` uses

NAMES = ["no", "yes"]
AGE, SIZE, DIED = [30.0, 40.5, 50.0, 60.0], [1, 2, 3, 4], [0, 1, 1, 0]
GOOD = (np.zeros((4, 2), np.float32), np.array(DIED))


def array(values):
    try:
        return np.array(values)
    except ValueError:  # of different lengths
        return np.array([np.array(value) for value in values], dtype=object)


class StandIn:
    """The part of `datasets.Dataset` that is used: typed columns, formats, and a slice as a dictionary."""

    def __init__(self, columns, labels=(), form=None, transform=None):
        self._columns, self._labels, self._form, self._transform = columns, labels, form, transform
        self.column_names, self.format = list(columns), {"type": "custom" if transform else form}
        self.features = {
            name: SimpleNamespace(names=NAMES, str2int=NAMES.index) if name in labels else SimpleNamespace(dtype="x")
            for name in columns
        }

    def __len__(self):
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return list(self._columns[key])
        found = {name: values[key] for name, values in self._columns.items()}
        if self._transform:
            return self._transform(found)
        return {name: array(values) for name, values in found.items()} if self._form == "numpy" else found

    def with_format(self, form):
        return StandIn(self._columns, self._labels, form)

    def with_transform(self, transform):
        return StandIn(self._columns, self._labels, None, transform)

    def select_columns(self, names):
        return StandIn({name: self._columns[name] for name in names}, self._labels)


def real(columns, labels=()):
    import datasets

    made = datasets.Dataset.from_dict(columns)
    for name in labels:
        made = made.cast_column(name, datasets.ClassLabel(names=NAMES))
    return made


MISSING = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")


@pytest.fixture(params=["stand-in", pytest.param("real", marks=MISSING)])
def make(request):
    return StandIn if request.param == "stand-in" else real


def read(client):
    data = from_clients([client], test=client)
    return data.train.inputs.tolist(), data.train.targets.tolist()


WANTED = ([[age, float(size)] for age, size in zip(AGE, SIZE, strict=True)], DIED)


def test_typed_columns_of_numbers(make):
    columns = {"age": AGE, "died": DIED, "size": SIZE}
    made = make(columns, labels=["died"])
    assert read(made) == WANTED
    assert read((made.select_columns(["age", "size"]), made["died"])) == WANTED
    assert read(make({"age": AGE, "label": DIED, "size": SIZE})) == WANTED
    assert read(make({"age": AGE, "label": [bool(value) for value in DIED], "size": SIZE})) == WANTED


def test_a_column_of_arrays_and_a_transform(make):
    images = np.arange(16.0).reshape(4, 2, 2)
    assert read(make({"image": images.tolist(), "label": DIED}))[0] == images.tolist()
    made = make({"age": AGE, "died": DIED, "size": SIZE}, labels=["died"])

    def transform(batch):
        return {"inputs": [torch.tensor([a, a]) for a in batch["age"]], "label": batch["died"]}

    assert read(made.with_transform(transform)) == ([[age, age] for age in AGE], DIED)


@pytest.mark.parametrize(
    ("columns", "labels", "told"),
    [
        ({"age": AGE, "size": SIZE}, [], "no column of labels"),
        ({"age": AGE, "a": DIED, "b": DIED}, ["a", "b"], r"several columns of labels \('a', 'b'\)"),
        ({"age": AGE, "sex": ["secret", "f", "m", "f"], "label": DIED}, [], "column 'sex' are texts|column 'sex' is"),
        ({"age": [1.0, None, 2.0, 3.0], "label": DIED}, [], "missing|NaN"),
        ({"age": AGE, "label": ["secret", "no", "no", "yes"]}, [], "targets are texts"),
        ({"age": AGE, "image": np.zeros((4, 2, 2)).tolist(), "label": DIED}, [], "column 'image' has several"),
        ({"image": [[1.0], [2.0, 3.0], [4.0], [5.0]], "label": DIED}, [], "column 'image'"),
        ({"label": DIED}, [], "no columns of inputs"),
    ],
)
def test_what_cannot_be_trained_on_is_named(make, columns, labels, told):
    with pytest.raises(DataError, match=rf"client 1: .*({told})") as caught:
        from_clients([GOOD, make(columns, labels)], test=GOOD)
    assert "secret" not in str(caught.value)


def test_named_clients_train(make):
    privacy = Privacy(epsilon=5, delta=1e-2, sample_rate=0.5, noise_multiplier=3, accountant="rdp")
    clients = {name: make({"age": AGE, "died": DIED, "size": SIZE}, ["died"]) for name in ("north", "south")}
    given = {"privacy": privacy, "max_rounds": 2, "learning_rate": 0.1, "seed": 0, "processes": 1}
    federation = federate(nn.Linear(2, 2), clients, **given)
    assert len(list(federation)) == 2
    assert federation.client_names == ("north", "south")
    with pytest.raises(ConfigError, match="clients is one"):
        federate(nn.Linear(2, 2), clients["north"], **given)


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="datasets is not installed")
def test_the_real_thing():
    import datasets

    made = real({"age": AGE, "died": DIED, "size": SIZE}, ["died"])
    parts = datasets.DatasetDict({"north": made, "south": made})
    data = from_clients(parts, test=made)
    assert data.client_names == ("north", "south")
    with pytest.raises(DataError, match="stream"):
        from_clients([made.to_iterable_dataset()], test=made)
