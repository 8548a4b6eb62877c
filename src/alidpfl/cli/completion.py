"""What shells offer after an option or as a name.

Written down here, and held to what the program knows by a test: asked for there, every press of Tab would wait for
torch. Nothing is refused by these: a wrong value gets our own error, with what was meant.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias, get_args

from alidpfl.types import AccountantName, VaultModel

Completion: TypeAlias = Callable[[str], list[str]]

ACCOUNTANTS: tuple[str, ...] = get_args(AccountantName)
MODELS: tuple[str, ...] = get_args(VaultModel)
REAL_DATA = ("mnist", "fashion_mnist", "cifar10")
DATA = ("strokes", *REAL_DATA, "synthetic", "npz")
PARTITIONS = ("iid", "dirichlet", "natural")
GRIDS = ("small", "medium", "large", "heterogeneity", "tuning")
FORMATS = ("markdown", "latex", "csv")
SETTINGS = {
    "data": "name data_dir partition dirichlet_beta clients min_samples validation pixel_range num_classes alpha beta",
    "model": "name hidden frequencies upright positions learned deviation_clip",
    "privacy": "epsilon delta accountant sample_rate noise_multiplier max_steps noise statistics_noise unsafe",
    "method": "name policy local_steps clip_norm learning_rate schedule heterogeneity options policy_options",
    "federation": "max_rounds clients_per_round time_limit traffic_limit momentum averaging quorum max_client_weight "
    "weight_exponent dropout_rate straggler_rate",
    "run": "seed randomness processes device evaluate_every evaluate_on",
}


def one_of(names: Iterable[str]) -> Completion:
    """One of `names`; where none begins so, shells offer files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def several_of(names: Iterable[str]) -> Completion:
    """A list such as mnist,cifar10: what is there stays, and is not offered again."""

    def complete(incomplete: str) -> list[str]:
        *given, last = incomplete.split(",")
        return [",".join([*given, name]) for name in names if name.startswith(last) and name not in given]

    return complete


complete_setting = one_of([f"{section}.{key}=" for section, keys in SETTINGS.items() for key in keys.split()])
