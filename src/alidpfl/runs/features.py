"""Features of `scatter_linear`, and the two noised statistics that centre and scale them.

Every client releases the statistics before the first round, with its own noise. Both are charged: see `releases_before`
in prepare.py. Apart from them, a record's features depend on that record only. Computed features are cached on disk.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from alidpfl.config.schema import Config
from alidpfl.data import Dataset, LabelledData, files
from alidpfl.data.dataset import image_bytes
from alidpfl.data.directories import user_cache
from alidpfl.dpsgd import RandomStream, noised_total
from alidpfl.errors import ConfigError
from alidpfl.features import FeatureMap, LearnedFilters, Standardiser
from alidpfl.federation.planning import BYTES_PER_NUMBER
from alidpfl.federation.tensors import steady_arithmetic
from alidpfl.types import OnProgress, OnShare

Statistics = Mapping[str, Tensor]
"""The released values: `mean` of all features, `scale` of those of low frequency."""

_ROWS_AT_A_TIME = 1024
_IMAGE_DIMS = 3
_STREAM = 1  # fourth number of the seed's path, so that no round has the same randomness


def featured(
    config: Config,
    dataset: Dataset,
    clients: Sequence[Tensor],
    statistics: Statistics | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Dataset, Statistics]:
    """Replace every image by a vector of features. Return that data set, and the statistics.

    Args:
        config: settings of the run.
        dataset: images.
        clients: rows of each client. Other rows are not in the statistics.
        statistics: those that the run has released already; None to release them now.
        on_progress: told about slow steps.
    """
    feature_map = map_for(config, dataset.input_shape)
    train = _features(feature_map, dataset.train.inputs, config, "features", on_progress)
    if statistics is None:
        with steady_arithmetic():  # the sums' last bits must not depend on the number of cores
            statistics = _released(config, feature_map, train, clients)
    standardiser = Standardiser(feature_map=feature_map, mean=statistics["mean"], scale=statistics["scale"])
    vectors = _vectors(standardiser, train)
    del train  # gigabytes: free them before the test features come
    test = _vectors(standardiser, _features(feature_map, dataset.test.inputs, config, "test features", on_progress))
    return replace(
        dataset,
        train=LabelledData(inputs=vectors, targets=dataset.train.targets),
        test=LabelledData(inputs=test, targets=dataset.test.targets),
    ), statistics


def features_bytes(feature_map: FeatureMap) -> int:
    """Return the traffic of one client: two sums up, the mean and the scale down."""
    features, scattering = sum(block.size for block in feature_map.blocks), feature_map.blocks[0]
    return BYTES_PER_NUMBER * (features + scattering.size + features + int(scattering.low.sum()))


def map_for(config: Config, input_shape: tuple[int, ...]) -> FeatureMap:
    """Return the configured features, if the inputs are images."""
    if len(input_shape) != _IMAGE_DIMS:
        raise ConfigError(
            f'model.name="{config.model.name}" needs images, and inputs have shape {input_shape}: use "linear" or "mlp"'
        )
    return FeatureMap(
        image_shape=(input_shape[0], input_shape[1], input_shape[2]),
        scattering_frequencies=config.model.frequencies,
        sets_upright=config.model.upright,
        positions=config.model.positions,
        learned=tuple(map(LearnedFilters.parse, config.model.learned)),
    )


def _features(
    feature_map: FeatureMap, inputs: Tensor, config: Config, what: str, on_progress: OnProgress | None
) -> dict[str, Tensor]:
    tell = None if on_progress is None else lambda share: on_progress(what, share)
    return load_or_compute(feature_map, image_bytes(inputs, config.data.pixel_range), user_cache() / "features", tell)


def _released(
    config: Config, feature_map: FeatureMap, features: Mapping[str, Tensor], clients: Sequence[Tensor]
) -> Statistics:
    """Release the statistics: first the noised mean, then the noised variances around it."""
    clip, privacy = config.model.deviation_clip, config.privacy
    released = partial(noised_total, noise_multiplier=privacy.statistics_noise, noise=privacy.noise)
    blocks = [features[block.name] for block in feature_map.blocks]
    count = sum(len(rows) for rows in clients)
    total = torch.zeros(sum(block.shape[1] for block in blocks))
    for client, rows in enumerate(clients):
        joined = (torch.cat([block[some] for block in blocks], dim=1) for some in rows.split(_ROWS_AT_A_TIME))
        random = _random(config, 0, client)
        total += released(joined, len(total), clip_norm=1.0, random=random)
    mean, scattering = total / count, blocks[0]
    centre, squares = mean[: scattering.shape[1]], torch.zeros(scattering.shape[1])
    for client, rows in enumerate(clients):
        deviations = ((scattering[some] - centre).square_() for some in rows.split(_ROWS_AT_A_TIME))
        random = _random(config, 1, client)
        squares += released(deviations, len(squares), clip_norm=clip, random=random)
    standardiser = Standardiser.from_statistics(feature_map, mean=mean, variance=squares / count)
    return {"mean": standardiser.mean, "scale": standardiser.scale}


def _random(config: Config, release: int, client: int) -> RandomStream:
    if config.run.randomness == "secure":
        return RandomStream.secure()
    return RandomStream.seeded(config.run.seed, release, client, _STREAM)


def _vectors(standardiser: Standardiser, features: Mapping[str, Tensor]) -> Tensor:
    count = len(next(iter(features.values())))
    vectors = torch.empty(count, standardiser.size)
    for start in range(0, count, _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        vectors[part] = standardiser.vectors({name: values[part] for name, values in features.items()})
    return vectors


def load_or_compute(
    feature_map: FeatureMap, images: Tensor, cache_dir: Path, on_progress: OnShare | None = None
) -> dict[str, Tensor]:
    """Return the features of `images` by block, (n, size) each, from the cache or computed and cached.

    A file belongs to exactly these images and this map: each client has its own. It tells as much as the images do,
    so only its owner may read it.

    Args:
        feature_map: computes the features.
        images: (n, channels, side, side) bytes.
        cache_dir: folder of the cache.
        on_progress: called with the share that is done.
    """
    feature_map.check_images(images)
    path = cache_dir / f"{feature_map.value_key}-{digest(images)}.npz"  # the key has the shape of an image
    sizes = {block.name: (len(images), block.size) for block in feature_map.blocks}
    found = files.cached_arrays(path, list(sizes))
    if found and all(found[name].shape == sizes[name] and found[name].dtype == np.float32 for name in sizes):
        return {name: torch.from_numpy(values) for name, values in found.items()}
    features = feature_map.compute(images, on_progress)
    files.cache_arrays(path, {name: values.numpy() for name, values in features.items()}, is_private=True)
    return features


def digest(tensor: Tensor) -> str:
    """Return a hash of a tensor's values."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
