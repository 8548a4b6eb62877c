"""The arithmetic of secants between noised gradients g̃ = g + n, g̃' = g' + n', Var n = s² I, at weights w, w'.

What is wanted is ‖g' − g‖². What is seen is ‖g̃' − g̃‖², larger by two things:

- the noises' own size, Σ s² d: known;
- a cross term. The step from w to w' was made of g̃, so it contains −c n (c the step size), and the curvature H turns
  that into a part of g' − g that goes with n: 2 c s² tr(H) on average. Where most of a step is noise, this is most of
  the signal, and an estimate that ignores it is far too high.

tr(H) is not known, but ⟨g̃' − g̃, w' − w⟩ − c s² d estimates (w' − w)ᵀ H (w' − w), and the noise's part of that,
c² s² tr(H), is about its share f in the step's length. Taking the estimate off leaves a variance of
(8 − 16f + 12f²) d s⁴ for each pair, at most the 8 d s⁴ of ‖n' − n‖² itself.
"""

import torch
from torch import Tensor


def crossed_noise(inner_product: float, displacement: float, noise: float, step_size: float) -> float:
    """The cross term 2 c s² tr(H), estimated without bias.

    Args:
        inner_product: ⟨g̃' − g̃, w' − w⟩.
        displacement: ‖w' − w‖².
        noise: s² d, of the earlier gradient.
        step_size: c.
    """
    if displacement <= 0:
        return 0.0
    along = inner_product - step_size * noise
    share = min(1.0, step_size**2 * noise / displacement)
    return 2 / step_size * share * along


def inner(a: Tensor, b: Tensor) -> float:
    """⟨a, b⟩, summed in double."""
    return float(torch.dot(a.double(), b.double()))


def squared_norm(vector: Tensor) -> float:
    """‖v‖², summed in double."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64)) ** 2
