"""Writes reference.npz: what kymatio 0.3 gives for a few images. Run once, in an environment of its own:

    python3 -m venv /tmp/kym
    /tmp/kym/bin/pip install -c constraints.txt kymatio==0.3.0 torch scipy
    /tmp/kym/bin/python tests/features/make_reference.py

The file holds, for each shape, `images_CxS` (uint8) and `scattering_CxS` (float32).
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "reference.npz"
SHAPES = ((1, 28), (3, 32), (2, 8), (1, 4))  # channels, side


def images(channels: int, side: int) -> np.ndarray:
    """Two images: noise, where all frequencies are, and a curved grating with a hard edge, which is more like one."""
    noise = np.random.default_rng(side).integers(0, 256, (channels, side, side))
    row, column, colour = np.mgrid[:side, :side, :channels].astype(float)
    grating = 127 + 127 * np.sin(0.9 * row + 0.02 * column**2 + colour)
    grating[row + 2 * column > 1.8 * side] = 0
    return np.stack([noise, grating.transpose(2, 0, 1)]).astype(np.uint8)


def main() -> None:
    import scipy.special
    import torch

    scipy.special.sph_harm = None  # kymatio's 3-D part imports this name, which SciPy no longer has
    from kymatio.torch import Scattering2D

    arrays = {}
    for channels, side in SHAPES:
        pixels = images(channels, side)
        transform = Scattering2D(J=2, shape=(side, side), L=8)
        arrays[f"images_{channels}x{side}"] = pixels
        arrays[f"scattering_{channels}x{side}"] = transform(torch.from_numpy(pixels).float() / 255).numpy()
    np.savez_compressed(FILE, **arrays)


if __name__ == "__main__":
    main()
