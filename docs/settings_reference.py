"""The reference of all settings, from the models themselves, so that it cannot be out of date.

python -m docs.settings_reference > docs/reference/configuration.md
"""

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from pydantic.fields import FieldInfo

from alidpfl.config.schema import Config
from alidpfl.flower.config import FlowerOptions
from alidpfl.inputs.wording import kind, limits, toml
from alidpfl.methods import METHODS
from alidpfl.policies import POLICIES
from alidpfl.runs.prepare import method_options
from alidpfl.vault.policy import PINNED, Policy

_HEAD = """# Settings

A run is described by a TOML file; what is left out takes the default, and the defaults together are what `make run`
runs. On the command line `--set section.key=value` changes a setting (`--set seed=3` where the key is in one section
only). The effective settings are kept in the run's `config.toml`. This page is generated: `make docs`.
"""

_FLOWER = """## A run on Flower

In the `pyproject.toml` that `alidpfl flower init` writes ([deploy](deploy.md#a-run)), beside the settings above, which
stand there by their full names (`privacy.epsilon`).
"""

_VAULT = """## The vault's policy

`policy.toml` in a vault's folder is the owner's: read when [the vault](vault.md) starts, and beyond the reach of
whoever asks it for rounds. Unknown keys and wrong types are refused. What may not change is what the ledger was begun
with: the vault refuses to serve if it does.
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
        parts.append(_head("key", "type", "default", "meaning"))
        parts += [_line(f"{name}.{key}", setting) for key, setting in section.model_fields.items()]
        parts.append("")
        if name == "method":
            parts += _options("method", "options", _method_rows())
            parts += _options("policy", "policy_options", _policy_rows())
    return "\n".join([*parts, *_flower_options(), *_vault_policy()]).rstrip() + "\n"


def _flower_options() -> list[str]:
    rows = (_line(str(field.alias), field) for field in FlowerOptions.model_fields.values())
    return [_FLOWER, _head("key", "type", "default", "meaning"), *rows, ""]


def _vault_policy() -> list[str]:
    """The owner's file, which no run's configuration can change."""
    lines = [_VAULT, _head("key", "type", "default", "may change", "meaning")]
    for name, field in Policy.model_fields.items():
        section: Any = field.annotation
        settings = getattr(section, "model_fields", None)
        rows = {name: field} if settings is None else {f"{name}.{key}": part for key, part in settings.items()}
        changes = "no" if name in PINNED else "yes"
        lines += [_line(key, setting, changes) for key, setting in rows.items()]
    return lines


def _options(owner: str, key: str, rows: Iterable[tuple[str, str, Any, object]]) -> list[str]:
    """What a setting may hold whose keys depend on the method or policy."""
    told = f"A {owner} that is not named here has none. On the command line: `--set method.{key}.key=value`.\n"
    lines = [f"### method.{key}\n", told, _head(owner, "key", "type", "default", "meaning")]
    for name, option, annotation, default in rows:
        shown = "" if default is None else f"`{toml(default)}`"
        lines.append(f"| `{name}` | `{option}` | {kind(annotation)} | {shown} | {_MEANINGS[f'{name}.{option}']} |")
    return [*lines, ""]


def _method_rows() -> Iterable[tuple[str, str, Any, object]]:
    return (
        (name, key, option.annotation, option.default)
        for name in METHODS
        for key, option in method_options(name).items()
    )


def _policy_rows() -> Iterable[tuple[str, str, Any, object]]:
    return (
        (name, field.name, field.type, field.default)
        for name, policy in POLICIES.items()
        for field in fields(policy)
        if field.name != "local_steps"  # which is a setting of its own
    )


def _head(*names: str) -> str:
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def _line(key: str, field: FieldInfo, *more: str) -> str:
    """Key, type, default, `more`, meaning."""
    value = field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else "" if value is None else f"`{toml(value)}`"
    within = f" {limits(field)}" if limits(field) else ""
    meaning = str(field.description).replace("|", "\\|")
    return f"| {' | '.join([f'`{key}`', kind(field.annotation) + within, default, *more, meaning])} |"


if __name__ == "__main__":
    print(reference(), end="")
