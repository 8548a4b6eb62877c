"""Keeps features on disk, so that they are computed once for each set of images and not in every run."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from alidpfl.data import files
from alidpfl.features import FeatureMap
from alidpfl.types import OnShare


def load_or_compute(
    feature_map: FeatureMap,
    images: Tensor,
    cache_dir: Path,
    on_progress: OnShare | None = None,
) -> dict[str, Tensor]:
    """Features of `images`, from `cache_dir` if they are there and whole, otherwise computed and put there.

    A file belongs to exactly these images and this map: each client has its own. It says as much as the images do, so
    only its owner may read it.
    """
    feature_map.check_images(images)
    path = cache_dir / f"{feature_map.value_key}-{_digest(images)}.npz"
    return _read(path, feature_map, len(images)) or _compute_and_keep(feature_map, images, path, on_progress)


def _digest(images: Tensor) -> str:
    """Of all bytes; the shape is in the file's name, but for the number of images, which the bytes tell."""
    return hashlib.sha256(images.contiguous().numpy().data).hexdigest()


def _compute_and_keep(
    feature_map: FeatureMap, images: Tensor, path: Path, on_progress: OnShare | None
) -> dict[str, Tensor]:
    features = feature_map.compute(images, on_progress)
    files.cache_arrays(path, {name: values.numpy() for name, values in features.items()}, is_private=True)
    return features


def _read(path: Path, feature_map: FeatureMap, count: int) -> dict[str, Tensor] | None:
    """What the cache holds; None where there is nothing whole."""
    found = files.cached_arrays(path, [block.name for block in feature_map.blocks])
    if found is None:
        return None
    is_whole = all(
        found[block.name].shape == (count, block.size) and found[block.name].dtype == np.float32
        for block in feature_map.blocks
    )
    return {name: torch.from_numpy(values) for name, values in found.items()} if is_whole else None
