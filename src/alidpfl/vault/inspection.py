"""An instruction against the owner's policy: refused, granted, or granted in part. Pure, and touches no data."""

from alidpfl.types import UNACCOUNTED_SIGNALS
from alidpfl.vault.messages import RoundRequest
from alidpfl.vault.policy import SEEDED_NOISE, Policy
from alidpfl.vault.refusals import RefusalCode, refusal

_LEAST_RATE = 1e-9  # below, q n is a divisor that no weights survive


def check_plan(request: RoundRequest, policy: Policy) -> None:
    """Refuse what the policy does not allow whatever the number of steps."""
    terms, limits = policy.terms, policy.limits
    if request.release != terms.release:
        _refuse(f"noise on the {request.release} is asked for, and this vault puts it on the {terms.release}")
    if not _LEAST_RATE <= request.sample_rate <= terms.sample_rate:
        _refuse(f"sample_rate={request.sample_rate:g} must be at most {terms.sample_rate:g}, and at least 1e-9")
    if not terms.min_noise_multiplier <= request.noise_multiplier <= 1e6:  # noqa: PLR2004 - as in the accounting
        _refuse(f"noise_multiplier={request.noise_multiplier:g} must be at least {terms.min_noise_multiplier:g}")
    if not limits.min_clip_norm <= request.clip_norm <= limits.max_clip_norm:
        _refuse(
            f"clip_norm={request.clip_norm:g} must be between {limits.min_clip_norm:g} and {limits.max_clip_norm:g}"
        )
    if "raw" in request.signals and UNACCOUNTED_SIGNALS not in policy.unsafe:
        _refuse(
            f"un-noised signals are asked for, which no epsilon covers, and the owner has not admitted "
            f'unsafe = ["{UNACCOUNTED_SIGNALS}"]; use a policy that needs none, such as "ali"'
        )


def granted_steps(request: RoundRequest, policy: Policy, affordable: int) -> int:
    """How many of the steps asked for are run: min(asked, most a round, left), or a refusal."""
    if affordable < 1:
        raise refusal(RefusalCode.BUDGET, "the privacy budget of this data set is spent at this sample rate and noise")
    by_steps = policy.terms.release == "step"
    most = min(policy.limits.max_steps_per_round, affordable) if by_steps else policy.limits.max_steps_per_round
    if request.steps <= most:
        return request.steps
    if policy.limits.on_excess == "cut":
        return most
    if most < policy.limits.max_steps_per_round:
        raise refusal(RefusalCode.BUDGET, f"steps={request.steps}: the privacy budget pays for {most}")
    raise refusal(RefusalCode.POLICY, f"steps={request.steps} must be at most {most} a round")


def unsafe_uses(request: RoundRequest, policy: Policy) -> tuple[str, ...]:
    """What the answer will hold that no ε covers; the owner admitted it by name."""
    uses = [UNACCOUNTED_SIGNALS] if "raw" in request.signals else []
    return (*uses, *([SEEDED_NOISE] if policy.seed is not None else []))


def _refuse(message: str) -> None:
    raise refusal(RefusalCode.POLICY, message)
