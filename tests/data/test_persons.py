"""Which records are a person's: names in arrays, .npz files and clients, and what is held out of them."""

import math

import numpy as np
import pandas
import polars
import pytest
import torch

from alidpfl.data import load
from alidpfl.data.own import load_client, load_client_file, persons_of
from alidpfl.data.persons import person_numbers
from alidpfl.dpsgd import Groups
from alidpfl.errors import DataError
from alidpfl.federation.client import ClientData
from tests.data.test_own import save

NAMES = ["secret-7", "secret-3", "secret-7"]


@pytest.mark.parametrize(
    "values",
    [
        NAMES,
        np.array(NAMES),
        np.array(NAMES, object),
        np.array([7, 3, 7], np.uint8),
        torch.tensor([7, 3, 7]),
        pandas.Series(NAMES, index=[5, 6, 7]),
        pandas.Series(NAMES).astype("category"),
        pandas.Series([7, 3, 7], dtype="Int64"),
        polars.Series(NAMES),
    ],
)
def test_whole_numbers_and_texts_name_persons(values):
    assert person_numbers(values, 3, "groups").tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.0, 2.0, 1.0], "float64"),
        ([True, False, True], "bool"),
        (NAMES[:2], "one person for each of the 3 records"),
        ([[name] for name in NAMES], "one person for each"),
        ([*NAMES[:2], ""], "empty"),
        ([*NAMES[:2], "  "], "empty"),
        ([*NAMES[:2], None], "missing"),
        ([*NAMES[:2], 4.5], "several types"),
        ([*NAMES[:2], math.nan], "missing"),
        (np.array([*NAMES[:2], math.nan]), "missing"),  # numpy makes it the text "nan"
        (pandas.Series([*NAMES[:2], None]), "missing"),
        (pandas.Series([*NAMES[:2], math.nan]).astype(str), "missing"),
        (pandas.Series([*NAMES[:2], None], dtype="string").astype(object).astype(str), "missing"),
        ([[1, 2], [3], [4]], "array"),
    ],
)
def test_other_names_are_refused_and_never_quoted(values, told):
    with pytest.raises(DataError, match=told) as caught:
        person_numbers(values, 3, "client 0: groups")
    assert str(caught.value).startswith("client 0: groups")
    assert "secret" not in str(caught.value)


def test_spaces_around_a_name_make_no_other_person():
    assert person_numbers(["secret-7 ", "secret-3", " secret-7"], 3, "groups").tolist() == [1, 0, 1]


def person_file(path, records=40, persons=10, **changes):
    random = np.random.default_rng(0)
    person = random.permutation(np.arange(records) % persons)
    x = np.stack([person, np.arange(records)], axis=1).astype(np.float32)
    return save(path, **{"x": x, "y": np.arange(records) % 2, "person": person, **changes})


class TestNpz:
    def test_persons_are_numbered_by_client(self, tmp_path):
        person_file(tmp_path / "a.npz")
        person_file(tmp_path / "b.npz", records=30, persons=5)
        person_file(tmp_path / "test.npz", person=np.arange(40))
        data = load("npz", data_dir=tmp_path)
        for rows, persons, count in zip(data.natural_clients, data.persons, (10, 5), strict=True):
            assert torch.equal(data.train.inputs[rows, 0].long(), persons)
            assert persons.unique().tolist() == list(range(count))

    def test_persons_are_held_out_as_a_whole(self, tmp_path):
        person_file(tmp_path / "a.npz")
        data = load("npz", data_dir=tmp_path, seed=3)
        held_out = set(data.test.inputs[:, 0].tolist())
        assert len(held_out) == 1  # a tenth of ten persons
        assert not held_out & set(data.train.inputs[:, 0].tolist())
        assert len(data.test) == 4
        assert len(data.persons[0]) == len(data.train) == 36

    def test_one_person_is_not_enough_to_hold_one_out(self, tmp_path):
        person_file(tmp_path / "a.npz", person=np.zeros(40, int))
        with pytest.raises(DataError, match="one person is not enough"):
            load("npz", data_dir=tmp_path)

    def test_all_files_or_none_have_persons(self, tmp_path):
        person_file(tmp_path / "a.npz")
        save(tmp_path / "b.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
        with pytest.raises(DataError, match=r"b\.npz has no array person"):
            load("npz", data_dir=tmp_path)

    def test_an_array_that_nothing_reads_is_refused(self, tmp_path):
        path = person_file(tmp_path / "a.npz", patient=np.arange(40))
        for read in (load_client, lambda _: load("npz", data_dir=tmp_path)):
            with pytest.raises(DataError, match="array patient, which nothing reads"):
                read(path)

    @pytest.mark.parametrize(
        "person", [np.arange(39), np.arange(40.0), np.array([None] * 40, object), np.full(40, ""), np.zeros((40, 1))]
    )
    def test_persons_that_do_not_fit_are_refused(self, tmp_path, person):
        path = tmp_path / "a.npz"
        person_file(path)
        arrays = dict(np.load(path))
        np.savez(path, **{**arrays, "person": person}, allow_pickle=True)
        with pytest.raises(DataError, match="person"):
            load_client_file(path)

    def test_a_file_without_persons_says_so(self, tmp_path):
        path = save(tmp_path / "a.npz", x=np.zeros((4, 2), np.float32), y=np.arange(4) % 2)
        assert load_client_file(path).persons is None


def test_groups_and_client_data_hide_what_they_hold():
    groups = Groups.of(torch.tensor([123457, 123457, 7]))
    data = ClientData(
        inputs=torch.full((3, 1), 8.75), targets=torch.full((3,), 654321), rows=torch.tensor([0, 1, 2]), groups=groups
    )
    for text in (repr(groups), repr(data), str(data)):
        assert "tensor" not in text
        assert "654321" not in text


class TestGroups:
    def test_an_index_in_another_order_than_that_of_the_inputs_is_refused(self):
        x = pandas.DataFrame({"a": [1.0, 2.0, 3.0]}, index=[5, 6, 7])
        persons = pandas.Series(NAMES, index=[5, 6, 7])
        clients = [(x, pandas.Series([0, 1, 0], index=[5, 6, 7]))]
        assert persons_of(clients, [persons], [3])[0].tolist() == [1, 0, 1]
        with pytest.raises(DataError, match="client 0: inputs and groups have one index"):
            persons_of(clients, [persons.loc[[7, 5, 6]]], [3])

    def test_of_named_clients_are_found_by_name(self):
        clients = {"north": (), "south": ()}
        found = persons_of(clients, {"south": [1, 1], "north": ["a", "b", "a"]}, [3, 2])
        assert [own.tolist() for own in found] == [[0, 1, 0], [0, 0]]

    @pytest.mark.parametrize(
        ("clients", "groups", "told"),
        [
            ([(), ()], [[1, 2]], "each of the 2 clients"),
            ([(), ()], np.zeros((2, 2), int), "list with one array"),
            ({"a": (), "b": ()}, [[1, 2], [1, 2]], "both be lists"),
            ({"a": (), "b": ()}, {"a": [1, 2], "c": [1, 2]}, "different names"),
            ([(), ()], [[1, 2], [1, 2, 3]], "client 1"),
        ],
    )
    def test_that_do_not_fit_the_clients_are_refused(self, clients, groups, told):
        with pytest.raises(DataError, match=told):
            persons_of(clients, groups, [2, 2])
