"""The reference of all settings, from the models themselves, so that it cannot be out of date.

python -m alidpfl.runs.reference > docs/configuration.md
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from pydantic.fields import FieldInfo

from alidpfl.inputs.wording import kind, limits, toml
from alidpfl.methods import METHODS
from alidpfl.policies import POLICIES
from alidpfl.runs.build import method_options
from alidpfl.runs.config import Config

_HEAD = """# Configuration

A run is described by a TOML file; what is left out takes the default, and the defaults together are what `make run`
runs. On the command line `--set section.key=value` changes a setting (`--set seed=3` where the key is in one section
only). The effective settings are kept in the run's `config.toml`. This page is generated: `make docs`.
"""

_PACE_LIMIT = "τ is at most this times ⌈steps left / rounds left⌉, 1 or more; left out: no limit."

_MEANINGS = {
    "adap_dpfl.clip_factor": "α: a client's next C is this times the mean norm of its gradients, by noised ones.",
    "adap_dpfl.noise_decay": "β: σ is multiplied by it when the public loss fell three times in a row; in (0, 1].",
    "adap_dpfl.smallest_clip_norm": "C never falls below.",
    "adap_dpfl.largest_clip_norm": "C never rises above.",
    "pe_dpfl.regularisation": "λ: weight of the loss under a perturbed classifier.",
    "pe_dpfl.perturbation": "s: standard deviation of the perturbation.",
    "pe_dpfl.draws": "Perturbations a step, 1 or more.",
    "pe_dpfl.variant": "`dpsgd`: noise on every step. `output`: plain SGD, and noise on a round's whole update.",
    "ali.pace_limit": "τ is at most this times ⌈steps left / rounds left⌉; 1 or more.",
    "corrected.bound": '"B" holds for η ≤ 1/(2L), "A" for η ≤ 1/(2μ); beyond, τ is the even pace.',
    "corrected.strong_convexity": "μ, held to at most L; left out: L/100.",
    "corrected.initial_distance": "‖w₀ − w*‖; left out: C/μ.",
    "corrected.dissimilarity": "ζ; left out: min(C, √(2LΓ)).",
    "fixed.pace_limit": _PACE_LIMIT,
    "paper.pace_limit": _PACE_LIMIT,
    "reference.pace_limit": _PACE_LIMIT,
}
"""Of every key of `method.options` and `method.policy_options`, by method or policy."""


def reference() -> str:
    """The page, in Markdown."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        title, _, meaning = str(section.__doc__).partition(": ")
        parts.append(f"## {title}\n\n{meaning[:1].upper()}{meaning[1:]}\n")
        parts.append("| key | type | default | meaning |\n| --- | --- | --- | --- |")
        parts += [_row(f"{name}.{key}", setting) for key, setting in section.model_fields.items()]
        parts.append("")
        if name == "method":
            parts += _options("method", "options", _method_rows())
            parts += _options("policy", "policy_options", _policy_rows())
    return "\n".join(parts).rstrip() + "\n"


def _options(owner: str, key: str, rows: Iterable[tuple[str, str, object]]) -> list[str]:
    """What a setting may hold whose keys depend on the method or policy."""
    told = f"A {owner} that is not named here has none. On the command line: `--set method.{key}.key=value`.\n"
    lines = [f"### method.{key}\n", told, f"| {owner} | key | default | meaning |\n| --- | --- | --- | --- |"]
    for name, option, default in rows:
        shown = "" if default is None else f"`{toml(default)}`"
        lines.append(f"| `{name}` | `{option}` | {shown} | {_MEANINGS[f'{name}.{option}']} |")
    return [*lines, ""]


def _method_rows() -> Iterable[tuple[str, str, object]]:
    return ((name, key, option.default) for name in METHODS for key, option in method_options(name).items())


def _policy_rows() -> Iterable[tuple[str, str, object]]:
    return (
        (name, field.name, field.default)
        for name, policy in POLICIES.items()
        for field in fields(policy)
        if field.name != "local_steps"  # which is a setting of its own
    )


def _row(key: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f"`{toml(field.default)}`"
    meaning = str(field.description).replace("|", "\\|")
    within = f" {limits(field)}" if limits(field) else ""
    return f"| `{key}` | {kind(field.annotation)}{within} | {default} | {meaning} |"


if __name__ == "__main__":
    print(reference(), end="")
