"""Fixed image features. Linear models on them learn more than networks at the same privacy.

>>> from alidpfl.features import FeatureMap
>>> photographs = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5)
>>> sum(block.size for block in photographs.blocks)
10554
"""

from alidpfl.features.blocks import Block
from alidpfl.features.learned import LearnedFilters
from alidpfl.features.maps import FeatureMap
from alidpfl.features.standardiser import Standardiser, vector_size

__all__ = ["Block", "FeatureMap", "LearnedFilters", "Standardiser", "vector_size"]
