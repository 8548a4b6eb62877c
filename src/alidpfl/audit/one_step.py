"""The one-step audit: thousands of real steps with a canary in the batch, as many without, and one threshold.

One Gaussian step is μ-GDP with μ = 1/σ, so the errors of a threshold bound μ from below (Dong, Roth & Su 2022; Nasr et
al. 2023, "Tight auditing of differentially private machine learning"). Error rates near a half say little about a large
σ. So the canary comes in copies, and the bound for the group is divided by their number. Every other step is the second
of its round, because a bug may give noise to first steps only. noise.py checks the noise off the line of the canary.
"""

from dataclasses import dataclass, field

from scipy.special import ndtri

from alidpfl.audit.arms import Arms, make_arms
from alidpfl.audit.bounds import caught_ratio, gaussian_parameter_bound
from alidpfl.audit.noise import NoiseAudit, NoiseMeter
from alidpfl.audit.subject import Subject, stream
from alidpfl.inputs import checks
from alidpfl.types import OnProgress

_CANARY, _DRAWS = 1, 2  # numbers of random streams
_MOST_DRAWS, _FEWEST_DRAWS, _NUMBERS = 10_000, 2_000, 400_000_000  # fewer for a large model, enough to find σ/1.25
_REPORT_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class StepAudit:
    """Findings about single steps."""

    noise_multiplier: float
    """σ of the claim: a step is 1/σ-GDP."""
    lower_bound: float
    """Lower bound on μ of a step."""
    confidence: float
    """Probability that the lower bound holds."""
    estimate: float
    """Best estimate of μ of a step."""
    draws: int
    """Steps with the canary, and as many without."""
    false_positives: int
    """Steps without the canary that were guessed to have it."""
    false_negatives: int
    """Steps with the canary that were guessed not to have it."""
    copies: int
    """Number of copies of the canary."""
    strength: float
    """Contribution of one canary, as a share of the largest that the claim allows."""
    catches: float | None
    """Factor by which σ must be too small for 999 of 1000 such audits to refute it; None if none is enough."""
    claimed_epsilon: float
    """ε that the run claims."""
    epsilon_lower_bound: float
    """ε of the run if μ of its steps is `lower_bound`."""
    noise: NoiseAudit
    """The noise, weight by weight."""
    without: tuple[float, ...] = field(repr=False)
    """Observations without the canary, in units of the claimed sensitivity."""
    with_canary: tuple[float, ...] = field(repr=False)
    """Observations with the canary, in the same units."""
    threshold: float = field(repr=False)
    """An observation above it is guessed to have the canary."""

    @property
    def claimed(self) -> float:
        """Return μ that the claim allows a step."""
        return 1 / self.noise_multiplier

    @property
    def is_refuted(self) -> bool:
        """Return whether a step shows more than σ allows, or has other noise than claimed."""
        return self.lower_bound > self.claimed or self.noise.problem is not None


def check_options(*, draws: int | None = None, canaries: int = 1000, confidence: float = 0.95) -> None:
    """Refuse options with which an audit would show nothing, or not end."""
    if draws is not None:
        checks.whole("draws", draws, low=100, high=1_000_000)
    checks.whole("canaries", canaries, low=50, high=100_000)
    checks.real("confidence", confidence, low=0.5, below=1, rule="must be at least 0.5 and less than 1, such as 0.99")


def audit_step(
    subject: Subject,
    *,
    draws: int | None = None,
    confidence: float = 0.9999,
    seed: int | None = None,
    on_progress: OnProgress | None = None,
) -> StepAudit:
    """Bound how much one step of the subject shows of a record.

    Args:
        subject: what to audit.
        draws: steps with the canary, and as many without; None chooses by the size of the model.
        confidence: probability that the bound holds, and that correct noise is not refuted.
        seed: repeats an audit; None for fresh entropy.
        on_progress: called with the current task and the share that is done.

    Returns:
        The bound, the errors that it follows from, and the audit of the noise.

    Raises:
        ConfigError: `draws` or `confidence` is out of range.
    """
    check_options(draws=draws, confidence=confidence)
    arms = make_arms(subject, stream(seed, _CANARY))
    draws = draws or min(_MOST_DRAWS, max(_FEWEST_DRAWS, _NUMBERS // len(arms.params)))
    meter = NoiseMeter(arms.params, arms.noise_scale, is_exact=arms.is_exact)
    without, with_canary = _observed(arms, meter, draws, seed, on_progress or (lambda *_: None))
    false_positives = sum(value > arms.threshold for value in without)
    false_negatives = sum(not value > arms.threshold for value in with_canary)
    bound = gaussian_parameter_bound(false_positives, false_negatives, draws, confidence) / arms.copies
    sigma = subject.noise_multiplier
    rates = [min(max(count, 0.5), draws - 0.5) / draws for count in (false_positives, false_negatives)]
    return StepAudit(
        noise_multiplier=sigma,
        lower_bound=bound,
        confidence=confidence,
        estimate=max(0.0, -sum(float(ndtri(rate)) for rate in rates)) / arms.copies,  # no error counts as half a one
        draws=draws,
        false_positives=false_positives,
        false_negatives=false_negatives,
        copies=arms.copies,
        strength=arms.distance / arms.copies,
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


def _observed(
    arms: Arms, meter: NoiseMeter, draws: int, seed: int | None, report: OnProgress
) -> tuple[tuple[float, ...], ...]:
    """Return the observations of both arms. The arms take turns, so that changes over time affect both."""
    random = stream(seed, _DRAWS)
    observed: dict[bool, list[float]] = {False: [], True: []}
    for number in range(draws):
        for is_in, values in observed.items():
            change = arms.released(is_in, number, random)
            values.append(float(change @ arms.reader))
            if is_in in arms.unnoised:
                meter.add(change, arms.unnoised[is_in])
        if number % _REPORT_EVERY == 0:
            report("one step", number / draws)
    return tuple(observed[False]), tuple(observed[True])
