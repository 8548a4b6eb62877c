"""The filters of the scattering transform: Morlet wavelets of two scales and eight angles, and a Gaussian.

A Morlet wavelet is a plane wave under an elongated Gaussian, less as much of that Gaussian as makes its mean zero. All
filters live on a torus, the padded image, where they are given by their Fourier transforms; these are real, because
each filter is the complex conjugate of its point reflection. The constants are those of kymatio 0.3, whose values
the transform gives.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCALES, ANGLES = 2, 8
FIRST_ANGLE = ANGLES // 2 - 1
"""Filter i has the angle (FIRST_ANGLE − i) π / ANGLES, so that this one lies along the rows."""

_WIDTH = 0.8  # standard deviation at the finest scale, pixels
_FREQUENCY = 3 / 4 * math.pi  # of the plane wave at the finest scale
_SLANT = 4 / ANGLES  # width along the wave over width across it
_PI = 3.1415  # kymatio's, in the filters' height; with π all would be 3e-5 lower
_WRAPS = 2  # periods on either side whose tails are added: the widest Gaussian ends well within them

Floats = NDArray[np.float64]


def wavelet_spectra(side: int, scale: int) -> Floats:
    """(8, side, side): Fourier transforms of the wavelets of one `scale`, 0 or 1, on a torus of `side` pixels."""
    return np.stack([_wavelet_spectrum(side, scale, (FIRST_ANGLE - i) * math.pi / ANGLES) for i in range(ANGLES)])


def smoothing(side: int, halvings: int) -> Floats:
    """(side/4 − 2, side/2^halvings): along one axis, the Gaussian at every fourth pixel, without those of the padding.

    `side` is that of the torus before it was subsampled by 2 for `halvings` times; the Gaussian's spectrum is cut to
    the frequencies that are left. A Gaussian is the product of one along each axis: in two dimensions, apply it twice.
    """
    width = _WIDTH * 2 ** (SCALES - 1)
    place = np.arange(-_WRAPS * side, (_WRAPS + 1) * side)
    gaussian = np.exp(-(place**2) / (2 * width**2)) / (math.sqrt(2 * _PI) * width)
    spectrum = np.fft.fft(_wrapped(gaussian, side)).real
    left = side >> halvings
    kernel = np.fft.ifft(np.concatenate([spectrum[: left // 2], spectrum[-(left // 2) :]])).real
    kept = np.arange(1, side // 2**SCALES - 1) * 2 ** (SCALES - halvings)
    matrix: Floats = kernel[(kept[:, None] - np.arange(left)[None]) % left]
    return matrix


def _wavelet_spectrum(side: int, scale: int, angle: float) -> Floats:
    width, frequency = _WIDTH * 2**scale, _FREQUENCY / 2**scale
    place = np.arange(-_WRAPS * side, (_WRAPS + 1) * side)
    rows, columns = place[:, None], place[None]
    along = rows * math.cos(angle) + columns * math.sin(angle)
    across = columns * math.cos(angle) - rows * math.sin(angle)
    envelope = np.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * width**2)) / (2 * _PI * width**2 / _SLANT)
    wave = envelope * np.exp(1j * frequency * along)
    wavelet = wave - wave.sum() / envelope.sum() * envelope
    return np.fft.fft2(_wrapped(_wrapped(wavelet, side).T, side).T).real


def _wrapped(values: NDArray[Any], side: int) -> NDArray[Any]:
    """Sum over the periods of the first axis."""
    wrapped: NDArray[Any] = values.reshape(-1, side, *values.shape[1:]).sum(0)
    return wrapped
