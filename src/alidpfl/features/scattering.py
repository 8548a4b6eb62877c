"""The scattering transform of Bruna and Mallat (2013) with two scales, eight angles and orders 0 to 2.

The modulus of a wavelet says how much of a scale and an angle there is around a pixel. The second wavelet says how that
varies. The Gaussian at the end makes it stable to small shifts. Nothing is learned, and the map is contractive: close
images have close features. Values are those of kymatio 0.3, `Scattering2D(J=2, shape=(s, s), L=8)`.

A Morlet wavelet is a plane wave under an elongated Gaussian, minus as much of that Gaussian as makes its mean zero. All
filters live on a torus, the padded image, and are given by their Fourier transforms. These are real, because each
filter is the complex conjugate of its point reflection.

Convolutions are products of Fourier transforms. Measured on one core (Xeon, 2.8 GHz, shared with others) for a 28x28
image: this code takes 430 to 540 µs, kymatio 2,160 µs, and the second order alone as one dense matrix 840 µs. Few
images and one angle are processed at a time, so that data stay in the processor's cache. No two images share a
transform: otherwise rounding in one of them would depend on the other.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import ConfigError
from alidpfl.features.blocks import ANGLES, FIRST_ANGLE, SCALES, on_both_axes

STRIDE = 2**SCALES  # pixels of the image for one of the output, along each axis
PATHS = 1 + SCALES * ANGLES + ANGLES**2

_IMAGES_AT_A_TIME = 64
_WIDTH = 0.8  # standard deviation at the finest scale, pixels
_FREQUENCY = 3 / 4 * math.pi  # of the plane wave at the finest scale
_SLANT = 4 / ANGLES  # width along the wave over width across it
_PI = 3.1415  # kymatio's value, in the filters' height; with π all would be 3e-5 lower
_WRAPS = 2  # periods that are added on either side; the widest Gaussian ends well within them

Floats = NDArray[np.float64]


def wavelet_spectra(side: int, scale: int) -> Floats:
    """Return the Fourier transforms (8, side, side) of the wavelets of one `scale`, 0 or 1."""
    return np.stack([_wavelet_spectrum(side, scale, (FIRST_ANGLE - i) * math.pi / ANGLES) for i in range(ANGLES)])


def smoothing(side: int, halvings: int) -> Floats:
    """Return the matrix (side/4 − 2, side/2^halvings) of the Gaussian along one axis, at every fourth pixel.

    Pixels of the padding are left out. `side` is the torus before `halvings` subsamplings by 2, and the Gaussian's
    spectrum is cut to the remaining frequencies. In two dimensions, apply the matrix along both axes.
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
    """Add up the periods of the first axis."""
    wrapped: NDArray[Any] = values.reshape(-1, side, *values.shape[1:]).sum(0)
    return wrapped


class Scattering:
    """Scattering of square images of `side` pixels."""

    def __init__(self, side: int) -> None:
        if side < STRIDE or side % STRIDE:
            raise ConfigError(f"images of side {side}: the side must be a multiple of {STRIDE}; crop or pad them")
        self.side = side
        padded = side + 2 * STRIDE
        self._mirrored = _mirrored(side, STRIDE)
        self._fine = _as_factors(torch.from_numpy(wavelet_spectra(padded, 0)))  # (8, P * P * 2)
        coarse = torch.from_numpy(wavelet_spectra(padded, 1))
        # Divided by 4: four frequencies fall onto one, and subsampling gives their mean.
        self._coarse = _as_factors(_by_alias(coarse) / 4)  # (4, 8, P/2 * P/2 * 2)
        self._smooth_full, self._smooth_half = (torch.from_numpy(smoothing(padded, n)).float() for n in (0, 1))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Map (..., s, s) float32 to (..., 81, s/4, s/4).

        The paths are the mean, the eight angles of the finer and then of the coarser scale, and the 64 pairs of both.
        """
        flat = images.reshape(-1, self.side, self.side)
        out = flat.new_empty(len(flat), PATHS, self.side // STRIDE, self.side // STRIDE)
        for start in range(0, len(flat), _IMAGES_AT_A_TIME):
            part = slice(start, start + _IMAGES_AT_A_TIME)
            self._transform(flat[part], out[part])
        return out.reshape(*images.shape[:-2], *out.shape[1:])

    def _transform(self, images: Tensor, out: Tensor) -> None:
        padded = images[:, self._mirrored][:, :, self._mirrored]  # (n, P, P)
        spectrum = torch.fft.fft2(padded)
        product = torch.view_as_real(spectrum).reshape(len(images), 1, -1) * self._fine
        fine = _modulus_of_inverse(product.view(len(images), ANGLES, *spectrum.shape[1:], 2))  # (n, 8, P, P)
        out[:, 0] = on_both_axes(self._smooth_full, padded)
        out[:, 1 : 1 + ANGLES] = on_both_axes(self._smooth_full, fine)
        out[:, 1 + ANGLES : 1 + 2 * ANGLES] = on_both_axes(self._smooth_half, self._coarse_modulus(spectrum))
        spectra = torch.fft.fft2(fine)
        for angle, paths in enumerate(out[:, 1 + 2 * ANGLES :].split(ANGLES, dim=1)):
            paths.copy_(on_both_axes(self._smooth_half, self._coarse_modulus(spectra[:, angle])))

    def _coarse_modulus(self, spectrum: Tensor) -> Tensor:
        """Map (n, P, P) complex to (n, 8, P/2, P/2): every second pixel only."""
        count, half = len(spectrum), spectrum.shape[-1] // 2
        aliases = torch.view_as_real(_by_alias(spectrum)).view(4, count, 1, -1)
        folded = aliases[0] * self._coarse[0]
        for alias, wavelets in zip(aliases[1:], self._coarse[1:], strict=True):
            folded.addcmul_(alias, wavelets)
        return _modulus_of_inverse(folded.view(count, ANGLES, half, half, 2))


def _mirrored(side: int, margin: int) -> Tensor:
    """Return the source of each pixel of a padded axis, reflected at the first and last pixel, which occur once."""
    period = 2 * (side - 1)
    place = torch.arange(-margin, side + margin) % period
    return torch.minimum(place, period - place)


def _by_alias(spectra: Tensor) -> Tensor:
    """Map (n, P, P) to (4, n, P/2, P/2): the four frequencies that fall onto one when every second pixel is kept."""
    count, side = len(spectra), spectra.shape[-1]
    layers = spectra.reshape(count, 2, side // 2, 2, side // 2).permute(1, 3, 0, 2, 4)
    return layers.reshape(4, count, side // 2, side // 2)


def _as_factors(spectra: Tensor) -> Tensor:
    """Map (..., s, s) to (..., s * s * 2): each value twice, to multiply a real and an imaginary part."""
    return spectra.float().flatten(-2).repeat_interleave(2, dim=-1)


def _modulus_of_inverse(spectra: Tensor) -> Tensor:
    """Return the modulus (..., s, s) of the inverse Fourier transform; four times as fast as complex abs."""
    squares = torch.view_as_real(torch.fft.ifft2(torch.view_as_complex(spectra))).square_()
    return (squares[..., 0] + squares[..., 1]).sqrt_()
