"""Defaults for runs on tables: what a schema makes public is enough to choose model, clip norm and step size.

Softmax regression on rows of norm at most B, with a bias, has gradients of norm at most √(2(B² + 1)) and a loss that is
L-smooth with L ≤ (B² + 1)/2 (Böhning 1992). Both are public. At this clip norm nothing is clipped, so that predicted
probabilities are not biased.
"""

import math
from typing import Any

from alidpfl.config.schema import Config
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.tables.schema import Schema, read_schema

_GROUP = 128  # records that a clipper adds in float32, by default
_STEP = 4.0
"""Step size times the bound on L. Rows are seldom as long as B, all in one direction: the real L of a table is several
times smaller. Of 1, 2, 4, 8 and 16, this one was best or next to best in `benchmarks/tables.py`. A step that is too
large cannot diverge far: gradients are bounded, and the schedule makes the last steps small."""


def with_table_defaults(config: Config) -> Config:
    """Return the configuration with defaults that suit a table, for settings that are not set. Others are unchanged."""
    if config.data.name != "table" or config.data.schema_file is None:
        return config
    changes: dict[str, dict[str, Any]] = {"model": {"name": "linear"}, "method": {"policy": "ratio"}, "run": {}}
    if config.model.name == "linear" or "name" not in config.model.model_fields_set:
        schema = read_schema(config.data.schema_file)
        bound = default_clip_norm(schema, "linear")
        changes["method"] |= {"clip_norm": bound, "learning_rate": _STEP / smoothness_bound(schema)}
    else:
        changes["method"]["learning_rate"] = 1.0
    if "seed" not in config.run.model_fields_set:  # a seed is set to repeat a run
        changes["run"]["randomness"] = "secure"
    updated = {}
    for name, defaults in changes.items():
        section = getattr(config, name)
        new = {key: value for key, value in defaults.items() if key not in section.model_fields_set}
        updated[name] = section.model_copy(update=new)
    return config.model_copy(update=updated)


def plans_itself(config: Config) -> bool:
    """Return whether the planner chooses q and σ though nobody asked: for tables, if they are not set."""
    is_free = config.privacy.noise_multiplier is None and config.privacy.max_steps is None
    is_possible = config.release == "step" and config.federation.clients_per_round is None
    return config.data.name == "table" and is_free and is_possible


def default_clip_norm(schema: Schema, model: str) -> float:
    """Return C of a run that sets none. Only the gradients of `linear` have a public bound."""
    return gradient_bound(schema) if model == "linear" else float(Config().method.clip_norm)


def gradient_bound(schema: Schema) -> float:
    """Return the largest norm of any row's gradient: (p - e_y)(x, 1)ᵀ, where |p - e_y| ≤ √2.

    It is raised by the margin of the clipper, which clips a little below C, and rounded up. So nothing is clipped.
    """
    margin = 1 - rounding(_GROUP, GROUPS_IN_A_FAMILY)
    return math.ceil(1e4 * math.sqrt(2.0 * (schema.norm_bound**2 + 1.0)) / margin) / 1e4


def smoothness_bound(schema: Schema) -> float:
    """Return a bound on L: the Hessian of softmax is at most 1/2, times the squared norm of (x, 1)."""
    return (schema.norm_bound**2 + 1.0) / 2.0
