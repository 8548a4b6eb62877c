"""Defaults for runs on tables: what a schema makes public is enough to choose model, clip norm and step size.

A linear model of a row x of norm at most B, with a bias, has the gradient r (x, 1)ᵀ. The residual r is the derivative
of the loss by the outputs o. At the start all outputs are 0, and no residual is longer than S. If no residual is ever
longer than R, no gradient is longer than R √(B² + 1). If K bounds the second derivative by o, the loss is L-smooth with
L = K (B² + 1). All of these are public.

| loss | r | S | R | K |
| --- | --- | --- | --- | --- |
| `cross_entropy`, c classes | p - e_y | √(1 - 1/c) | √2 | 1/2 (Böhning 1992) |
| `binary`, the mean over k labels | (p - y) / k | 1/(2√k) | 1/√k | 1/(4 k) |
| `huber` | o - y, at most 1 in size | 1 | 1 | 1 |
| `quantile` at level a | -a or 1 - a | max(a, 1 - a) | max(a, 1 - a) | none; 1 is taken |
| `squared` | o - y | 1 | 2, while o is between the target's bounds | 1 |
| `poisson` | e^o - y | 1 | 2, while e^o is between the target's bounds | 1, for means e^o up to their middle |

Numbers are scaled by their public bounds, to [-1, 1], and to [0, 2] for `poisson`.

C is S √(B² + 1) by default: nothing is clipped at the start, and later only what is predicted far from the truth. With
R instead of S nothing is clipped at all, but the noise is up to twice as large (`alidpfl.runs.clip_norms`).
"""

import math
from typing import Any

from alidpfl.config.schema import Config
from alidpfl.dpsgd.losses import HUBER_WIDTH
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.privacy import PrivacyBudget
from alidpfl.privacy.gaussian_dp import gaussian_parameter
from alidpfl.tables.schema import Schema, read_schema
from alidpfl.types import loss_for

_GROUP = 128  # records that a clipper adds in float32, by default
_STEP = 4.0
"""Step size times the bound on L. Rows are seldom as long as B, all in one direction: the real L of a table is several
times smaller. Of 1, 2, 4, 8 and 16, this one was best or next to best in `benchmarks/tables.py`. A step that is too
large cannot diverge far: gradients are bounded, and the schedule makes the last steps small."""
_STATISTICS_SHARE = 0.01
"""Share of the budget that standardising takes, in the square of the parameter of Gaussian privacy, which adds up. The
training then needs 0.5 % more noise, σ / √(1 - 0.01)."""
_STATISTICS_ROOM = 1.01


def with_table_defaults(config: Config) -> Config:
    """Return the configuration with defaults that suit a table, for settings that are not set. Others are unchanged."""
    if config.data.name != "table" or config.data.schema_file is None:
        return config
    changes: dict[str, dict[str, Any]] = {"method": {"policy": "ratio"}, "run": {}}
    is_linear = False
    if config.model.is_named:
        changes["model"] = {"name": "linear"}
        is_linear = config.model.name == "linear" or "name" not in config.model.model_fields_set
    schema = read_schema(config.data.schema_file) if is_linear else None
    loss = None if schema is None else loss_for(schema.target.kind, config.model.loss)
    if (standardise := config.data.standardise) is None:
        standardise = "private" if schema is not None and schema.target.kind != "class" else "none"
        changes["data"] = {"standardise": standardise}
    if standardise == "private":
        changes["privacy"] = {"statistics_noise": default_statistics_noise(config.budget)}
    if schema is not None and loss in _residuals(schema):
        changes["method"]["clip_norm"] = default_clip_norm(schema, "linear", loss, config.model.quantile)
        changes["method"]["learning_rate"] = default_learning_rate(schema, loss)
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


def default_clip_norm(schema: Schema, model: str, loss: str | None = None, quantile: float = 0.5) -> float:
    """Return C of a run that sets none: the largest norm of a row's gradient at the start, S √(B² + 1).

    Args:
        schema: gives B, the bound on the norm of a row.
        model: name of the model. Only the gradients of `linear` have a public bound.
        loss: name of a loss that ships; None for the default of the target.
        quantile: level of the loss `quantile`.
    """
    if model != "linear":
        return float(Config().method.clip_norm)
    at_start, _, _ = _residuals(schema, quantile)[loss_for(schema.target.kind, loss)]
    return _norm(schema, at_start)


def default_statistics_noise(budget: PrivacyBudget) -> float:
    """Return σ of the release that standardises rows, from the budget alone.

    >>> default_statistics_noise(PrivacyBudget(epsilon=2.0, delta=1e-5))
    19.94
    """
    return round(1 / (gaussian_parameter(budget) * math.sqrt(_STATISTICS_SHARE)), 2)


def enrolled_statistics_noise(noise_multiplier: float) -> float:
    """Return σ for a vault that is asked for one release at `noise_multiplier`.

    It is a little smaller: the release must fit into the vault's account in spite of rounding.
    """
    return float(f"{noise_multiplier / _STATISTICS_ROOM:.4g}")


def gradient_bound(schema: Schema, loss: str = "cross_entropy", quantile: float = 0.5) -> float:
    """Return the largest norm of any row's gradient, R √(B² + 1)."""
    _, largest, _ = _residuals(schema, quantile)[loss]
    return _norm(schema, largest)


def default_learning_rate(schema: Schema, loss: str = "cross_entropy") -> float:
    """Return the step size of a run that sets none."""
    return _STEP / smoothness_bound(schema, loss)


def smoothness_bound(schema: Schema, loss: str = "cross_entropy") -> float:
    """Return the bound K (B² + 1) on L, the curvature of the loss of any row."""
    _, _, curvature = _residuals(schema)[loss]
    return (schema.norm_bound**2 + 1.0) * curvature


def _norm(schema: Schema, residual: float) -> float:
    """Return a gradient's norm, raised by the margin of the clipper, which clips a little below C, and rounded up."""
    margin = 1 - rounding(_GROUP, GROUPS_IN_A_FAMILY)
    return math.ceil(1e4 * residual * math.sqrt(schema.norm_bound**2 + 1.0) / margin) / 1e4


def _residuals(schema: Schema, quantile: float = 0.5) -> dict[str, tuple[float, float, float]]:
    """Return S, R and K of every loss."""
    outputs, level = schema.num_outputs, max(quantile, 1 - quantile)
    return {
        "cross_entropy": (math.sqrt(1 - 1 / outputs), math.sqrt(2.0), 1 / 2),
        "binary": (1 / (2 * math.sqrt(outputs)), 1 / math.sqrt(outputs), 1 / (4 * outputs)),
        "huber": (HUBER_WIDTH, HUBER_WIDTH, 1.0),
        "quantile": (level, level, 1.0),
        "squared": (1.0, 2.0, 1.0),
        "poisson": (1.0, 2.0, 1.0),
    }
