"""Your own data: one pair of arrays, or one torch data set, for each client."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils import data as torch_data

from alidpfl.data.dataset import Dataset, LabelledData
from alidpfl.errors import DataError

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
