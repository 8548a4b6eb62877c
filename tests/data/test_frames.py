"""Frames of pandas and polars, and data sets of Hugging Face: the same records, or an error in the user's words."""

import numpy as np
import pandas
import polars
import pytest
import torch
from torch import nn

from alidpfl import Privacy, federate
from alidpfl.data import from_clients
from alidpfl.errors import ConfigError, DataError

PRIVATE = "4711"
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 1, 0])
TABLE = pandas.DataFrame(X, columns=["age", "size"], index=[5, 9, 7, 30, 1, 2])
LABELS = pandas.Series(Y, index=TABLE.index)
GOOD = (X, Y)


def read(client, other=GOOD):
    data = from_clients([client, other], test=GOOD)
    return data.train.inputs[:6].numpy(), data.train.targets[:6].numpy()


def same(client):
    inputs, targets = read(client)
    return inputs.tobytes() == X.tobytes() and targets.tolist() == Y.tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "client",
    [
        (TABLE, LABELS),
        (TABLE, LABELS.to_frame("died")),
        (TABLE, LABELS.astype(bool)),
        (TABLE, LABELS.astype("boolean")),
        (TABLE, LABELS.astype("Int8")),
        (TABLE, Y.tolist()),
        (TABLE.convert_dtypes(), LABELS.convert_dtypes()),
        (TABLE.astype({"age": "int16"}), LABELS),
        (TABLE.set_axis(pandas.MultiIndex.from_tuples([("a", 1), ("a", 2)]), axis=1), LABELS),
        (TABLE.set_axis(["x", "x"], axis=1), LABELS),
        (TABLE.set_axis(list("abcdef")), LABELS.set_axis(range(6))),
        (polars.DataFrame(X), polars.Series(Y)),
        (polars.DataFrame(X), polars.DataFrame({"died": Y == 1})),
        (X.astype(">f8"), Y.astype(">i4")),
        (X[::-1][::-1], Y.astype(np.uint64)),
        ([torch.as_tensor(row) for row in X], [torch.tensor(y) for y in Y]),
        (X.tolist(), [bool(y) for y in Y]),
    ],
)
def test_the_same_records_in_other_forms(client):
    assert same(client)


def test_read_only_arrays_are_copied():
    inputs, targets = X.copy(), Y.copy()
    inputs.setflags(write=False)
    targets.setflags(write=False)
    assert same((inputs, targets))


def object_column(values):
    return TABLE.assign(note=pandas.Series(values, index=TABLE.index, dtype=object))


@pytest.mark.parametrize(
    ("client", "named"),
    [
        ((TABLE.assign(sex=PRIVATE), LABELS), "column 'sex' has type (object|str)"),
        ((TABLE.assign(sex=pandas.Categorical([PRIVATE] * 6)), LABELS), "column 'sex' has type category"),
        ((TABLE.assign(ward=pandas.Categorical([4711] * 6)), LABELS), "column 'ward' has type category"),
        ((TABLE.assign(born=pandas.Timestamp("2011-04-07")), LABELS), "column 'born' has type datetime64"),
        ((object_column([1, "4711", 2.0, True, 3, 4]), LABELS), "column 'note' has type object"),
        ((object_column([1, None, 2.0, True, 3, 4]), LABELS), "column 'note' has missing values"),
        ((TABLE.mask(TABLE == 4), LABELS), "column 'age' has missing values"),
        ((TABLE.replace(4.0, np.inf), LABELS), "column 'age' has values"),
        ((TABLE.convert_dtypes().mask(TABLE == 5), LABELS), "column 'size' has missing values"),
        ((TABLE[[]], LABELS), "without columns"),
        ((TABLE["age"], LABELS), r"\(6,\)"),
        ((TABLE, LABELS.astype(float).mask(LABELS == 1)), "targets are missing"),
        ((TABLE, LABELS.astype("Int64").mask(LABELS == 1)), "targets are missing"),
        ((TABLE, LABELS.map({0: PRIVATE, 1: "b"})), r"targets are texts.*\{'no': 0, 'yes': 1\}"),
        (
            (TABLE, LABELS.map({0: PRIVATE, 1: "b"}).astype("category")),
            r"targets are categories.*\{'no': 0, 'yes': 1\}",
        ),
        ((TABLE, LABELS.astype("category")), "targets are categories"),
        ((TABLE, pandas.Series([pandas.Timestamp("2011-04-07")] * 6, index=TABLE.index)), "targets are .*dates"),
        ((TABLE, [PRIVATE, 1, 2.0, None, 3, 4]), "targets are .*mixed"),
        ((TABLE, LABELS[::-1]), r"y\.loc\[x\.index\]"),
        ((polars.DataFrame(X).with_columns(sex=polars.lit(PRIVATE)), Y), "column 'sex' has type String"),
        (
            (polars.DataFrame(X).with_columns(sex=polars.lit(PRIVATE, polars.Enum([PRIVATE]))), Y),
            "column 'sex' has type Enum; ",
        ),
        ((polars.DataFrame(X).with_columns(polars.Series("a", [1, None] * 3)), Y), "column 'a' has missing values"),
        ((polars.DataFrame(X), polars.Series([1, None] * 3)), "targets are missing"),
        ((polars.DataFrame(X), polars.Series([PRIVATE, "b"] * 3)), "targets are texts"),
        ((polars.DataFrame(X).lazy(), Y), "inputs"),
        (([[1.0, 2.0], [4711.0]], [0, 1]), "inputs have records of different shapes"),
        ((np.array([[PRIVATE, "1"]] * 6), Y), "inputs are texts or mixed"),
        ((X > 3, Y), "inputs have type bool"),
        (TABLE, "one frame"),
        ({"x": X, "y": Y}, "dict"),
    ],
)
def test_what_cannot_be_trained_on_is_named_in_words(client, named):
    with pytest.raises(DataError, match=rf"client 1 \('south'\): .*{named}") as caught:
        from_clients({"north": GOOD, "south": client}, test=GOOD)
    assert PRIVATE not in str(caught.value)
    assert "Error" not in str(caught.value)
    assert caught.value.__cause__ is None
    clients = [GOOD, client]
    with pytest.raises(DataError, match=r"client 1(:| is)"):
        federate(nn.Linear(2, 2), clients, privacy=PRIVACY, max_rounds=1, learning_rate=1)
    with pytest.raises(DataError, match=r"client 1(:| is)"):
        Privacy.plan(nn.Linear(2, 2), clients, epsilon=2, delta=1e-2, max_rounds=2)


PRIVACY = Privacy(epsilon=2, delta=1e-2, sample_rate=0.5, noise_multiplier=5, accountant="rdp")


@pytest.mark.parametrize("make", [lambda table: table, lambda table: polars.from_dict(table.to_dict("list"))])
def test_clients_with_other_columns_or_another_order_are_refused(make):
    frames = [make(TABLE), make(TABLE[["size", "age"]]), make(TABLE.rename(columns={"size": "weight"}))]
    with pytest.raises(DataError, match="client 1 has the columns of client 0 in another order"):
        from_clients([(frames[0], Y), (frames[1], Y)], test=GOOD)
    with pytest.raises(DataError, match=r"client 1 \('b'\) has no column 'size', and client 0 \('a'\) has it"):
        from_clients({"a": (frames[0], Y), "b": (frames[2], Y)}, test=GOOD)
    with pytest.raises(DataError, match="test has the columns of client 0 in another order"):
        from_clients([(frames[0], Y), GOOD], test=(frames[1], Y))
    with pytest.raises(DataError, match="public has the columns of client 0 in another order"):
        federate(
            nn.Linear(2, 2),
            [(frames[0], Y)],
            privacy=PRIVACY,
            max_rounds=1,
            learning_rate=1,
            public=(frames[1], Y),
            method="adap_dpfl",
        )


@pytest.mark.parametrize("clients", [TABLE, polars.DataFrame(X), X, torch.as_tensor(X)])
def test_one_frame_is_not_a_list_of_clients(clients):
    with pytest.raises(ConfigError, match=f"one {type(clients).__name__}"):
        Privacy.plan(nn.Linear(2, 2), clients, epsilon=2, delta=1e-2, max_rounds=2)
