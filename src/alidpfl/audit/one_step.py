"""The one-step audit: thousands of real steps with a canary in the batch, thousands without, and one threshold.

One Gaussian step is μ-GDP with μ = 1/σ, so how often a threshold errs bounds μ from below (Dong, Roth & Su 2022;
Nasr et al. 2023, "Tight auditing of differentially private machine learning"). Errors near a half say little about a
large σ: the canary therefore comes in copies, and what they show of the group is divided by their number. Every other
step is the second one of its round: noise that only first steps have would show. What the line of the canary does not
touch is looked at by itself, see noise.py.
"""

from dataclasses import dataclass, field

from scipy.special import ndtri

from alidpfl.audit.arms import Arms, make_arms
from alidpfl.audit.bounds import caught_ratio, gaussian_parameter_bound
from alidpfl.audit.noise import NoiseAudit, NoiseMeter
from alidpfl.audit.subject import Subject, stream
from alidpfl.inputs import checks
from alidpfl.inputs.checks import whole
from alidpfl.types import OnProgress

_CANARY, _DRAWS = 1, 2  # numbers of streams
_LARGEST_ASKED = 1_000_000
_MOST_DRAWS, _FEWEST_DRAWS, _NUMBERS = 10_000, 2_000, 400_000_000
_TELL_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """What one step shows of a record."""

    noise_multiplier: float
    """σ, the claim; a step that is as private as claimed is 1/σ-GDP."""
    lower_bound: float
    """μ of a step, at least."""
    confidence: float
    """Probability with which the lower bound holds."""
    estimate: float
    """μ of a step, most likely."""
    draws: int
    """Steps in each arm: so many with the canary, so many without."""
    false_positives: int
    """Steps without the canary that were taken for steps with it."""
    false_negatives: int
    """Steps with the canary that were taken for steps without it."""
    copies: int
    """How many copies of the canary are in, where it is."""
    strength: float
    """What one canary contributed, of the most that the claim allows."""
    catches: float | None
    """By how much σ may be too small before 999 of 1000 such audits refute it."""
    claimed_epsilon: float
    """ε of the run, the claim."""
    epsilon_lower_bound: float
    """ε of the run, were its steps as private as `lower_bound` says and no more."""
    noise: NoiseAudit
    """The noise, looked at weight by weight."""
    without: tuple[float, ...] = field(repr=False)
    """What was observed without the canary, in units of its arm's claimed sensitivity."""
    with_canary: tuple[float, ...] = field(repr=False)
    """What was observed with it, in the same units."""
    threshold: float = field(repr=False)
    """Observations above it are taken for steps with the canary."""

    @property
    def claimed(self) -> float:
        """μ of a step, at most."""
        return 1 / self.noise_multiplier

    @property
    def is_refuted(self) -> bool:
        """True if a step shows more than its σ allows, or its noise is not what is claimed."""
        return self.lower_bound > self.claimed or self.noise.problem is not None


def check_draws(draws: int | None) -> None:
    """Enough to say something, and few enough to end."""
    if draws is not None:
        whole("draws", draws, low=100, high=_LARGEST_ASKED)


def default_draws(num_params: int) -> int:
    """Draws an arm: 10,000, fewer where the noise of each takes long; enough to find σ/1.25 in every step.

    >>> default_draws(26_010), default_draws(582_026)
    (10000, 2000)
    """
    return min(_MOST_DRAWS, max(_FEWEST_DRAWS, _NUMBERS // num_params))


def audit_step(
    subject: Subject,
    *,
    draws: int | None = None,
    confidence: float = 0.9999,
    seed: int | None = None,
    on_progress: OnProgress | None = None,
) -> StepAudit:
    """Bound what one step of the subject shows of a record.

    Args:
        subject: what is audited.
        draws: real steps in each arm; None for as many as the model's size allows.
        confidence: probability that the bound holds, and that honest noise is not refuted.
        seed: to repeat an audit; None for noise from the operating system's entropy.
        on_progress: told of the share that is done.
    """
    check_confidence(confidence)
    check_draws(draws)
    arms = make_arms(subject, stream(seed, _CANARY))
    draws = draws or default_draws(len(arms.params))
    meter = NoiseMeter(arms.params, arms.noise_scale, is_exact=arms.is_exact)
    without, with_canary = _observed(arms, meter, draws, seed, on_progress or (lambda _what, _share: None))
    false_positives = sum(value > arms.threshold for value in without)
    false_negatives = sum(not value > arms.threshold for value in with_canary)
    bound = gaussian_parameter_bound(false_positives, false_negatives, draws, confidence) / arms.copies
    sigma = subject.noise_multiplier
    return StepAudit(
        noise_multiplier=sigma,
        lower_bound=bound,
        confidence=confidence,
        estimate=_estimate(false_positives, false_negatives, draws) / arms.copies,
        draws=draws,
        false_positives=false_positives,
        false_negatives=false_negatives,
        copies=arms.copies,
        strength=arms.strength,
        catches=caught_ratio(
            claimed=1 / sigma, distance=arms.distance / sigma, copies=arms.copies, draws=draws, confidence=confidence
        ),
        claimed_epsilon=subject.budget.epsilon,
        epsilon_lower_bound=subject.epsilon_at(1 / bound) if bound > 0 else 0.0,
        noise=meter.audit(confidence),
        without=without,
        with_canary=with_canary,
        threshold=arms.threshold,
    )


def check_confidence(confidence: float) -> None:
    """Refuse what says nothing, or can never be reached."""
    checks.real("confidence", confidence, low=0.5, below=1, rule="must be at least 0.5 and less than 1, such as 0.99")


def _observed(
    arms: Arms, meter: NoiseMeter, draws: int, seed: int | None, tell: OnProgress
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """In turns, so that whatever changes in the course of time changes in both arms."""
    random = stream(seed, _DRAWS)
    observed: dict[bool, list[float]] = {False: [], True: []}
    for number in range(draws):
        for is_in, values in observed.items():
            change = arms.released(is_in, number, random)
            values.append(arms.read(change))
            if is_in in arms.unnoised:
                meter.add(change, arms.unnoised[is_in])
        if number % _TELL_EVERY == 0:
            tell("one step", number / draws)
    return tuple(observed[False]), tuple(observed[True])


def _estimate(false_positives: int, false_negatives: int, draws: int) -> float:
    """μ at the rates as they were; half an error where there was none."""
    rates = [(min(max(count, 0.5), draws - 0.5)) / draws for count in (false_positives, false_negatives)]
    return max(0.0, -sum(float(ndtri(rate)) for rate in rates))
