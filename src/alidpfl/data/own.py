"""Users' own data: arrays, torch data sets or .npz files, one for each client."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils import data as torch_data

from alidpfl.data.dataset import DEFAULT_PIXEL_RANGE, Dataset, LabelledData, PixelRange, scaled_images
from alidpfl.data.frames import (
    check_aligned,
    check_columns,
    hub_pair,
    input_numbers,
    is_frame,
    is_hub_dataset,
    target_values,
)
from alidpfl.data.persons import person_numbers
from alidpfl.errors import ConfigError, DataError, printable
from alidpfl.inputs import checks

Arrays: TypeAlias = Tensor | NDArray[Any] | ArrayLike | Any
"""Tensors, arrays, lists, frames or series of pandas and polars, and columns of Hugging Face data sets."""
Client: TypeAlias = tuple[Arrays, Arrays] | torch_data.Dataset[Any] | LabelledData
"""A client's inputs and targets, or a torch data set with items (input, target)."""
Clients: TypeAlias = Sequence[Client] | Mapping[str, Client]
"""Clients in a list, or by their names."""
Groups: TypeAlias = Sequence[Arrays] | Mapping[str, Arrays]
"""For each client the person of each of its records, as whole numbers or texts; in the form of the clients."""

TEST_FILE = "test.npz"

_PAIR = 2
_HELD_OUT = 0.1
_MAX_CLASS = (1 << 31) - 1
_STREAM = 5  # keeps these random numbers apart from those of the partitions
_ZIP = b"PK"  # the first bytes of a .npz file
_CLASSES_SHOWN = "the number of classes, which was taken from the clients' labels"
_FORM = "store x with shape (n, ...) and y with shape (n,), or (n, k) for k labels, by numpy.savez(file, x=..., y=...)"
_KNOWN = ("x", "y", "person")
_TEXTS = "are texts or mixed; number classes from 0 by a public list, such as y.map({'no': 0, 'yes': 1})"


class _FileArrays(NamedTuple):
    """The arrays of a .npz file."""

    x: NDArray[Any]
    y: NDArray[Any]
    person: NDArray[Any] | None = None


class ClientFile(NamedTuple):
    """The records of one client, and the number of the person of each; None if the file does not say."""

    records: LabelledData
    persons: Tensor | None


def from_clients(
    clients: Clients,
    test: Client,
    *,
    name: str = "own",
    num_classes: int | None = None,
    is_synthetic: bool = False,
) -> Dataset:
    """Return a data set with natural clients. Their records are copied into one pair of tensors.

    Args:
        clients: for each client (inputs, targets) as tensors, arrays or frames, or a torch data set. A mapping gives
            clients names; their numbers are their places in it. Whole numbers and flags (n,) are classes, other
            numbers (n,) are numbers, and columns (n, k) are labels.
        test: the test records, in the same form.
        name: the name of the data set in results and errors.
        num_classes: number of classes, for targets that are classes. Default: one more than the largest class.
        is_synthetic: True if a program made the data.

    Raises:
        DataError: the records of a client cannot be made into tensors, or do not fit those of the others.

    >>> client = (np.zeros((4, 2)), [0, 1, 0, 1])
    >>> data = from_clients([client, client], test=client)
    >>> [part.tolist() for part in data.natural_clients]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    if not clients:
        raise DataError(f"{name}: there are no clients; give at least one")
    check_columns([*described(clients), ("test", test)])
    names = [who for who, _ in described(clients)]
    parts = [labelled(client, f"{name}: {who}") for who, client in described(clients)]
    shapes = {tuple(part.inputs.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise DataError(f"{name}: clients have inputs of shapes {sorted(shapes)}; make them equal")
    held_out = labelled(test, f"{name}: test")
    _check_alike(name, [*zip(names, parts, strict=True), ("test", held_out)])
    train, kind = _joined(parts), parts[0].kind
    counts_classes = kind == "class" and num_classes is None and not is_synthetic
    if kind == "class" and num_classes is None:
        num_classes = 1 + max(int(part.targets.max()) if len(part) else 0 for part in (train, held_out))
    ends = np.cumsum([0, *(len(part) for part in parts)])
    return Dataset(
        name=name,
        train=train,
        test=held_out,
        num_classes=num_classes or 0,
        kind=kind,
        is_synthetic=is_synthetic,
        shown=(_CLASSES_SHOWN,) if counts_classes else (),
        natural_clients=tuple(torch.arange(int(a), int(b)) for a, b in pairwise(ends)),
        client_names=tuple(map(str, clients)) if isinstance(clients, Mapping) else (),
    )


def persons_of(clients: Clients, groups: Groups, sizes: Sequence[int], name: str = "own") -> tuple[Tensor, ...]:
    """Return the number of the person of each record, by client.

    Args:
        clients: the clients; only their names and the indices of frames are read.
        groups: the person of each record, by client, in the same form.
        sizes: number of records of each client.
        name: begins the errors.

    Raises:
        DataError: `groups` does not fit the clients or their records.
    """
    if isinstance(groups, Mapping) != isinstance(clients, Mapping):
        raise DataError("groups and clients must both be lists, or both have names")
    if isinstance(groups, Mapping) and isinstance(clients, Mapping):
        if set(map(str, groups)) != set(map(str, clients)):
            raise DataError("groups and clients have different names; give each client's persons under its own name")
        by_name = {str(key): values for key, values in groups.items()}
        groups = [by_name[str(key)] for key in clients]
    if is_frame(groups) or isinstance(groups, Tensor | np.ndarray) or len(groups) != len(sizes):
        raise DataError(f"groups must be a list with one array for each of the {len(sizes)} clients")
    found = []
    for values, (who, client), size in zip(groups, described(clients), sizes, strict=True):
        what = f"{name}: groups of {who}"
        if isinstance(client, tuple | list) and len(client) == 2:  # noqa: PLR2004
            check_aligned(client[0], values, f"{what}: inputs and groups")
        found.append(person_numbers(values, size, what))
    return tuple(found)


def _check_alike(name: str, parts: Sequence[tuple[str, LabelledData]]) -> None:
    """Refuse clients or test data with targets of another form than those of the first client."""
    (first, kept), *others = parts
    for who, part in others:
        if (theirs := _form(part.targets)) != (ours := _form(kept.targets)):
            raise DataError(
                f"{name}: {who} has {theirs} as targets, and {first} has {ours}; make them alike: whole numbers of "
                "shape (n,) are classes, other numbers are numbers, and columns (n, k) are labels"
            )


def _form(targets: Tensor | NDArray[Any]) -> str:
    if targets.ndim > 1:
        return f"{targets.shape[1]} labels"
    is_float = targets.is_floating_point() if isinstance(targets, Tensor) else targets.dtype.kind == "f"
    return "numbers" if is_float else "classes"


def described(clients: Clients) -> list[tuple[str, Client]]:
    """Return every client with its number, and its name if it has one, for errors.

    >>> [who for who, _ in described({"north": (), "south": ()})]
    ["client 0 ('north')", "client 1 ('south')"]
    """
    if isinstance(clients, Mapping):
        return [(f"client {number} ({str(name)!r})", clients[name]) for number, name in enumerate(clients)]
    return [(f"client {number}", client) for number, client in enumerate(clients)]


def labelled(client: Client, what: str) -> LabelledData:
    """Return a client's records as tensors of the right types. Errors begin with `what`."""
    if isinstance(client, LabelledData):
        return client
    is_pair = isinstance(client, tuple | list) and len(client) == _PAIR
    try:
        if is_hub_dataset(client):
            inputs, targets = hub_pair(client)
        else:
            inputs, targets = client if is_pair else _stacked(client)  # type: ignore[misc]
        check_aligned(inputs, targets)
        return LabelledData(inputs=input_numbers(inputs), targets=_targets(targets))
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except (TypeError, ValueError, RuntimeError):  # its text may quote records
        raise DataError(f"{what}: records cannot be made into tensors; give numbers in arrays of one shape") from None


def load_npz(
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    pixel_range: PixelRange = DEFAULT_PIXEL_RANGE,
    num_classes: int | None = None,
) -> Dataset:
    """Load natural clients from a folder of .npz files: one for each, in the order of their names, and `test.npz`.

    Whole numbers and flags `y` (n,) are classes, other numbers (n,) are numbers, and (n, k) are labels. Without
    `test.npz`, a tenth of each client's records is held out for testing. Without `num_classes`, the largest class
    decides. Both show something about private records without noise: `Dataset.shown` says what. An array `person` (n,)
    names the person of each record. Then persons are held out, each with all records.

    Args:
        data_dir: the folder.
        seed: draws the records that are held out.
        pixel_range: inputs of type uint8 are pixels and are scaled to this range; others stay as they are.
        num_classes: number of classes.

    Raises:
        ConfigError: `data_dir` is missing, or the seed is not a whole number of at least 0.
        DataError: a file is missing or damaged, or does not fit the others.
    """
    if data_dir is None:
        raise ConfigError("npz needs data_dir, the folder with a .npz file for each client")
    if not data_dir.is_dir():
        raise DataError(f"{data_dir} is not a folder; give one that has a .npz file for each client")
    files = {path: _read(path) for path in sorted(data_dir.glob("*.npz"))}
    if list(files) in ([], [data_dir / TEST_FILE]):
        only = f"only {TEST_FILE}, and no client's .npz file" if files else "no .npz files"
        raise DataError(f"{data_dir} has {only}; {_FORM}, one file for each client")
    _check_together(files, num_classes)
    clients = {path: _client_file(path, arrays, pixel_range) for path, arrays in files.items()}
    shown = [_CLASSES_SHOWN] if num_classes is None and next(iter(clients.values())).records.kind == "class" else []
    if has_test := data_dir / TEST_FILE in clients:
        test = clients.pop(data_dir / TEST_FILE).records
    else:
        clients, test = _hold_out(clients, checks.whole("seed", seed))
        shown.append(f"metrics on records of the clients, since there is no {TEST_FILE}")
    return replace(
        from_clients([client.records for client in clients.values()], test, name="npz", num_classes=num_classes),
        shown=tuple(shown),
        test_is_held_out=not has_test,
        client_names=tuple(path.stem for path in clients),
        persons=_persons_of_files(clients),
    )


def _persons_of_files(clients: Mapping[Path, ClientFile]) -> tuple[Tensor, ...] | None:
    """Return the persons of all files; None if no file has any. Refuse files of both kinds."""
    without = [path for path, client in clients.items() if client.persons is None]
    if len(without) == len(clients):
        return None
    if without:
        raise DataError(f"{without[0]} has no array person, and other files have it; give it in all files, or in none")
    return tuple(client.persons for client in clients.values() if client.persons is not None)


def load_public_npz(
    data_dir: Path | None, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE, num_classes: int | None = None
) -> Dataset:
    """Load the public records of a deployment's server: `test.npz` alone. Both parts of the data set are these records.

    Other files in the folder are not even opened: private records belong into the vaults.
    """
    if data_dir is None:
        raise ConfigError(f"npz needs data_dir, the folder with {TEST_FILE}; or evaluate nothing (--no-evaluate)")
    path = data_dir / TEST_FILE
    if not path.is_file():
        raise DataError(
            f"{path} does not exist: a server over nodes evaluates on public records alone; add them, or evaluate "
            "nothing (--no-evaluate)"
        )
    records, classes = load_client(path, pixel_range), 0
    if records.kind == "class":
        classes = num_classes or 1 + int(records.targets.max())
    return Dataset(name="npz", train=records, test=records, num_classes=classes, kind=records.kind, is_synthetic=False)


def load_client(path: Path, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> LabelledData:
    """Load the records in the .npz file of one client, as its vault does."""
    return load_client_file(path, pixel_range).records


def load_client_file(path: Path, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> ClientFile:
    """Load the .npz file of one client: its records, and their persons if it names them."""
    return _client_file(path, _read(path), pixel_range)


def _client_file(path: Path, arrays: _FileArrays, pixel_range: PixelRange) -> ClientFile:
    records = labelled((_inputs(arrays.x, pixel_range), arrays.y), str(path))
    persons = None
    if arrays.person is not None:
        persons = person_numbers(arrays.person, len(records), f"{path}: array person")
    return ClientFile(records, persons)


def _joined(parts: Sequence[LabelledData]) -> LabelledData:
    return LabelledData(
        inputs=torch.cat([part.inputs for part in parts]), targets=torch.cat([part.targets for part in parts])
    )


def _stacked(items: Any) -> tuple[Tensor, Tensor]:
    """Stack the items of a torch data set."""
    if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")) or isinstance(items, str | Mapping):
        raise DataError(f"this is a {type(items).__name__}; give (inputs, targets) or a torch data set with a length")
    if is_frame(items):
        raise DataError("this is one frame; give inputs and targets: (d.drop(columns='died'), d['died'])")
    if len(items) == 0:
        raise DataError("this is empty; give at least one record")
    try:
        pairs = [items[number] for number in range(len(items))]
        if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004
            raise DataError(
                "items must be pairs (input, target), and one has more or fewer parts; leave the others out"
            )
        inputs = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return inputs, torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError):
        raise DataError(
            "items must be pairs of a tensor of one shape and a target of one shape, and one is not; give the data "
            "set a transform to tensors"
        ) from None


def _targets(values: Any) -> Tensor:
    """Return classes (n,) int64, numbers (n,) float32 or labels (n, k) float32. Type and shape decide, never values.

    Whole numbers and flags are classes in one dimension, and labels in two.
    """
    tensor = target_values(values)
    if tensor.is_complex():
        raise DataError(f"targets have type {tensor.dtype}; need real numbers, such as y.real")
    is_class = tensor.ndim == 1 and not tensor.is_floating_point()
    return tensor.detach().to(torch.int64 if is_class else torch.float32)


def _read(path: Path) -> _FileArrays:
    try:
        with path.open("rb") as file:  # opened here: if the zip is broken, numpy leaves the file open
            if file.read(len(_ZIP)) != _ZIP:  # numpy would take it for a pickle and advise to load it unsafely
                raise DataError(f"{path} is not a .npz file, in spite of its name; {_FORM}")
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)  # a pickle could run any code
            if missing := [name for name in ("x", "y") if name not in arrays]:
                raise DataError(f"{path} has no array {' and '.join(missing)}, only {sorted(arrays)}; {_FORM}")
            if unknown := sorted(set(arrays) - set(_KNOWN)):
                raise DataError(
                    f"{path} has an array {printable(unknown[0])}, which nothing reads; leave it out: x, y and person "
                    "are known"
                )
            x, y = (_plain(path, arrays, name) for name in ("x", "y"))
            person = _plain(path, arrays, "person") if "person" in arrays else None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path (vault init: --data), or put the file back") from None
    except (PermissionError, IsADirectoryError) as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a file that this user may read") from error
    except DataError:
        raise
    except Exception as error:  # a damaged file can raise anything, and numpy quotes records in its error
        told = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}, damaged?"
        raise DataError(f"{path} cannot be read ({told}); write it again, without Python objects in it") from None
    _check_arrays(path, x, y)
    with np.errstate(over="ignore"):  # infinite numbers are refused later
        return _FileArrays(x, y.astype(np.int64 if _holds_classes(y) else np.float32), person)


def _holds_classes(y: NDArray[Any]) -> bool:
    return y.ndim == 1 and y.dtype.kind != "f"


def _check_arrays(path: Path, x: NDArray[Any], y: NDArray[Any]) -> None:
    if x.dtype.kind not in "fiu":
        raise DataError(f"{path}: array x has type {x.dtype}; need numbers")
    if y.dtype.kind not in "fiub":
        wrong = f"its values {_TEXTS}" if y.dtype.kind in "UST" else "need classes from 0, numbers, or labels 0 and 1"
        raise DataError(f"{path}: array y has type {y.dtype}; {wrong}")
    if x.ndim < 2 or y.ndim not in (1, 2) or 0 in y.shape or len(x) != len(y) or len(y) == 0:  # noqa: PLR2004
        raise DataError(f"{path}: array x has shape {x.shape} and array y {y.shape}; {_FORM}, at least one record")
    if _holds_classes(y) and (int(y.min()) < 0 or int(y.max()) > _MAX_CLASS):
        raise DataError(f"{path}: array y has numbers that are no classes; number the classes from 0")


def _plain(path: Path, arrays: Any, name: str) -> Any:
    try:
        return arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        plain = {"x": "float32", "person": "str"}.get(name, "int64")
        raise DataError(
            f"{path}: array {name} holds Python objects, such as lists of unequal length or text; make it a plain "
            f"array, such as {name}.astype('{plain}'), and save it again"
        ) from None


def _check_together(files: Mapping[Path, _FileArrays], num_classes: int | None) -> None:
    first_path, (first, first_y, _) = next(iter(files.items()))
    for path, (x, y, _) in files.items():
        if x.shape[1:] != first.shape[1:] or (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise DataError(
                f"{path}: array x has records of shape {x.shape[1:]} and type {x.dtype}, but {first_path} of shape "
                f"{first.shape[1:]} and type {first.dtype}; make all files alike"
            )
        if y.shape[1:] != first_y.shape[1:] or y.dtype != first_y.dtype:
            raise DataError(
                f"{path}: array y has {_form(y)}, but {first_path} has {_form(first_y)}; make all files alike"
            )
        if num_classes is not None and not _holds_classes(y):
            raise DataError(f"{path}: array y has {_form(y)}, not classes: leave out data.num_classes={num_classes}")
        if num_classes is not None and int(y.max()) >= num_classes:
            raise DataError(
                f"{path}: array y has classes beyond num_classes={num_classes}; number them from 0 to {num_classes - 1}"
                ", or raise data.num_classes"
            )


def _hold_out(clients: Mapping[Path, ClientFile], seed: int) -> tuple[dict[Path, ClientFile], LabelledData]:
    """Split off a tenth of each client's records, at least one, for testing. Persons are held out as a whole."""
    kept, held = {}, []
    for number, (path, (records, persons)) in enumerate(clients.items()):
        units = torch.arange(len(records)) if persons is None else persons
        count = 1 + int(units.max())
        if count < 2:  # noqa: PLR2004
            what = "record" if persons is None else "person"
            raise DataError(f"{path}: one {what} is not enough for training and test; add {what}s or a {TEST_FILE}")
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed, number])))
        is_drawn = torch.zeros(count, dtype=torch.bool)
        is_drawn[random.permutation(count)[: max(1, round(_HELD_OUT * count))]] = True
        is_held = is_drawn[units]
        rest, part = (
            LabelledData(inputs=records.inputs[rows], targets=records.targets[rows]) for rows in (~is_held, is_held)
        )
        kept[path] = ClientFile(rest, None if persons is None else persons[~is_held])
        held.append(part)
    return kept, _joined(held)


def _inputs(x: NDArray[Any], pixel_range: PixelRange) -> Any:
    with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and `LabelledData` refuses it
        return scaled_images(x, pixel_range) if x.dtype == np.uint8 else x.astype(np.float32)
