"""Your own data: one pair of arrays, or one torch data set, for each client."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils import data as torch_data

from alidpfl.data.dataset import DEFAULT_PIXEL_RANGE, Dataset, LabelledData, PixelRange, scaled_images
from alidpfl.errors import DataError
from alidpfl.inputs import checks

Arrays: TypeAlias = Tensor | NDArray[Any] | ArrayLike
Client: TypeAlias = tuple[Arrays, Arrays] | torch_data.Dataset[Any] | LabelledData
"""A client's inputs and classes, or a torch data set whose items are (input, class)."""

_PAIR = 2


def from_clients(
    clients: Sequence[Client],
    test: Client,
    *,
    name: str = "own",
    num_classes: int | None = None,
    is_synthetic: bool = False,
) -> Dataset:
    """A data set of the clients given. Their samples are put into one pair of tensors, once.

    Args:
        clients: for each client (inputs, classes) as tensors or arrays, or a torch data set.
        test: the test samples, in the same form.
        name: how records and errors call the data set.
        num_classes: by default one more than the largest class of all.
        is_synthetic: True where a program made the data.

    >>> client = (np.zeros((4, 2)), [0, 1, 0, 1])
    >>> data = from_clients([client, client], test=client)
    >>> [part.tolist() for part in data.natural_clients]
    [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    if not clients:
        raise DataError(f"{name}: there are no clients; give at least one")
    parts = [labelled(client, f"{name}: client {number}") for number, client in enumerate(clients)]
    shapes = {tuple(part.inputs.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise DataError(f"{name}: clients have inputs of shapes {sorted(shapes)}; make them equal")
    train = LabelledData(
        inputs=torch.cat([part.inputs for part in parts]), targets=torch.cat([part.targets for part in parts])
    )
    held_out = labelled(test, f"{name}: test")
    if num_classes is None:
        num_classes = 1 + max(int(part.targets.max()) if len(part) else 0 for part in (train, held_out))
    ends = np.cumsum([0, *(len(part) for part in parts)])
    natural = tuple(torch.arange(int(a), int(b)) for a, b in pairwise(ends))
    return Dataset(
        name=name,
        train=train,
        test=held_out,
        num_classes=num_classes,
        is_synthetic=is_synthetic,
        natural_clients=natural,
    )


def labelled(client: Client, what: str) -> LabelledData:
    """`client` as tensors of the right types; `what` begins the message of an error."""
    if isinstance(client, LabelledData):
        return client
    is_pair = isinstance(client, tuple | list) and len(client) == _PAIR
    inputs, targets = client if is_pair else _materialised(client, what)  # type: ignore[misc]
    try:
        return LabelledData(inputs=_floats(inputs), targets=_classes(targets))
    except DataError as error:
        raise DataError(f"{what}: {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:  # its text may quote data
        raise DataError(
            f"{what}: cannot be made into tensors ({type(error).__name__}); give numbers in arrays of one shape"
        ) from None


def _materialised(items: Any, what: str) -> tuple[Tensor, Tensor]:
    """Every item of a torch data set, stacked."""
    if not (hasattr(items, "__len__") and hasattr(items, "__getitem__")):
        raise DataError(f"{what} is a {type(items).__name__}; give (inputs, classes) or a torch data set with a length")
    if len(items) == 0:
        raise DataError(f"{what} is empty; give at least one sample")
    try:
        pairs = [items[number] for number in range(len(items))]
        inputs = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
        return inputs, torch.as_tensor([int(pair[1]) for pair in pairs])
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise DataError(
            f"{what}: items must be pairs of a tensor of one shape and a whole number, and one is not "
            f"({type(error).__name__}); give the data set a transform to tensors"
        ) from None


def _floats(values: Any) -> Tensor:
    tensor = torch.as_tensor(values)
    if tensor.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise DataError(f"inputs have type {tensor.dtype}; need real numbers, such as x.astype('float32')")
    return tensor.detach().to(torch.float32)


def _classes(values: Any) -> Tensor:
    tensor = torch.as_tensor(values)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise DataError(f"classes have type {tensor.dtype}; need whole numbers from 0, such as y.astype('int64')")
    return tensor.detach().to(torch.int64)


TEST_FILE = "test.npz"

_HELD_OUT = 0.1
_STREAM = 5  # other numbers than the partitions draw from the same seed
_ZIP = b"PK"  # a .npz file is one
_FORM = "store x with shape (n, ...) and y with shape (n,), by numpy.savez(file, x=..., y=...)"

_FileArrays = tuple[NDArray[Any], NDArray[np.int64]]


def load_npz(folder: Path, seed: int, pixel_range: PixelRange, num_classes: int | None = None) -> Dataset:
    """The clients in `folder`, in the order of their file names, and the test samples.

    These are in `test.npz`; where that is missing, a tenth of each client's samples is held out, drawn by `seed`.
    Inputs of type uint8 are taken for pixels and scaled to `pixel_range`; others stay as they are. Without
    `num_classes` and without `test.npz`, private labels and records show in the model's shape and in its accuracy:
    `Dataset.shown` says so.
    """
    shown = [] if num_classes else ["the number of classes, which was taken from the clients' labels"]
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that has a .npz file for each client")
    paths = sorted(path for path in folder.glob("*.npz") if path.name != TEST_FILE)
    if not paths:
        only = f"only {TEST_FILE}, and no client's .npz file" if (folder / TEST_FILE).is_file() else "no .npz files"
        raise DataError(f"{folder} has {only}; {_FORM}, one file for each client")
    clients = [_read(path) for path in paths]
    _check_alike(paths, clients)
    _check_classes(paths, clients, num_classes)
    has_test = (folder / TEST_FILE).is_file()
    if has_test:
        test = _read(folder / TEST_FILE)
        _check_alike([paths[0], folder / TEST_FILE], [clients[0], test])
        _check_classes([folder / TEST_FILE], [test], num_classes)
    else:
        checks.whole("seed", seed)
        clients, test = _hold_out(paths, clients, seed)
        shown.append(f"accuracy and loss on records of the clients, since there is no {TEST_FILE}")
    dataset = from_clients(
        [(_inputs(x, pixel_range), y) for x, y in clients],
        (_inputs(test[0], pixel_range), test[1]),
        name="npz",
        num_classes=num_classes,
    )
    return replace(
        dataset, shown=tuple(shown), test_is_held_out=not has_test, client_names=tuple(path.stem for path in paths)
    )


def load_client(path: Path, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> LabelledData:
    """One client's own file, as its vault reads it."""
    x, y = _read(path)
    return labelled((_inputs(x, pixel_range), y), str(path))


def _read(path: Path) -> _FileArrays:
    try:
        with path.open("rb") as file:  # opened here: where the zip is broken, numpy leaves the file open
            if file.read(len(_ZIP)) != _ZIP:  # before numpy takes it for a pickle, and advises to load it unsafely
                raise DataError(f"{path} is not a .npz file, whatever its name; {_FORM}")
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)  # a pickle could run anything
            missing = [name for name in ("x", "y") if name not in arrays]
            if missing:
                raise DataError(f"{path} has no array {' and '.join(missing)}, only {sorted(arrays)}; {_FORM}")
            x, y = (_plain(path, arrays, name) for name in ("x", "y"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the path (vault init: --data), or put the file back") from None
    except (PermissionError, IsADirectoryError) as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); give a file that this user may read") from error
    except DataError:
        raise
    except Exception as error:  # a damaged file can raise anything, and numpy's words quote what stands in the header
        told = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}, damaged?"
        raise DataError(f"{path} cannot be read ({told}); write it anew, without Python objects in it") from None
    _check_arrays(path, x, y)
    return x, y.astype(np.int64)


def _plain(path: Path, arrays: Any, name: str) -> NDArray[Any]:
    try:
        found: NDArray[Any] = arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{path}: array {name} holds Python objects, such as lists of unequal length or text; make it one of "
            f"numbers, such as {name}.astype('{'float32' if name == 'x' else 'int64'}'), and save it again"
        ) from None
    return found


def _check_arrays(path: Path, x: NDArray[Any], y: NDArray[Any]) -> None:
    if x.dtype.kind not in "fiu":
        raise DataError(f"{path}: array x has type {x.dtype}; need numbers")
    if y.dtype.kind not in "iu":
        raise DataError(f"{path}: array y has type {y.dtype}; need whole numbers, the classes from 0")
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y) or len(y) == 0:  # noqa: PLR2004
        raise DataError(f"{path}: array x has shape {x.shape} and array y {y.shape}; {_FORM}, at least one sample")
    if int(y.min()) < 0 or int(y.max()) >= 1 << 31:
        raise DataError(f"{path}: array y has numbers that are no classes; number the classes from 0")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise DataError(f"{path}: array x has values that are NaN or infinite; clean them before training")


def _check_alike(paths: list[Path], parts: list[_FileArrays]) -> None:
    first = parts[0][0]
    for path, (x, _) in zip(paths, parts, strict=True):
        if x.shape[1:] != first.shape[1:] or (x.dtype == np.uint8) != (first.dtype == np.uint8):
            raise DataError(
                f"{path}: array x has samples of shape {x.shape[1:]} and type {x.dtype}, but {paths[0]} of shape "
                f"{first.shape[1:]} and type {first.dtype}; make all files alike"
            )


def _check_classes(paths: list[Path], parts: list[_FileArrays], num_classes: int | None) -> None:
    for path, (_, y) in zip(paths, parts, strict=True):
        if num_classes is not None and int(y.max()) >= num_classes:
            raise DataError(
                f"{path}: array y has classes beyond num_classes={num_classes}; number them from 0 to {num_classes - 1}"
                ", or raise data.num_classes"
            )


def _hold_out(paths: list[Path], clients: list[_FileArrays], seed: int) -> tuple[list[_FileArrays], _FileArrays]:
    """A tenth of each client, at least one sample, for testing."""
    kept, held = [], []
    for number, (path, (x, y)) in enumerate(zip(paths, clients, strict=True)):
        if len(y) < 2:  # noqa: PLR2004
            raise DataError(f"{path}: one sample cannot be shared by training and test; add samples or a {TEST_FILE}")
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed, number])))
        is_held = np.zeros(len(y), bool)
        is_held[random.permutation(len(y))[: max(1, round(_HELD_OUT * len(y)))]] = True
        kept.append((x[~is_held], y[~is_held]))
        held.append((x[is_held], y[is_held]))
    return kept, (np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held]))


def _inputs(x: NDArray[Any], pixel_range: PixelRange) -> Any:
    return scaled_images(x, pixel_range) if x.dtype == np.uint8 else x.astype(np.float32)
