"""Bugs that would make features depend on other people's images, or on another map; `tests/mutants.py` runs them."""

SCATTERING, BASES, ORIENTED, MAPS = (
    f"tests/features/test_{name}.py" for name in ("scattering", "bases", "oriented", "maps")
)
CACHE = "tests/data/test_feature_cache.py"
FEATURES = "src/alidpfl/features"

FEATURE_MUTANTS = (
    (
        "features: centred by the mean of the batch",
        f"{FEATURES}/maps.py",
        "scaled = images[part].float() / _MAX_BYTE\n",
        "scaled = images[part].float() / _MAX_BYTE\n            scaled = scaled - scaled.mean(0)\n",
        MAPS,
    ),
    (
        "features: contrast of the whole batch",
        f"{FEATURES}/oriented.py",
        "contrast = pooled.flatten(1).norm(dim=1).view(-1, 1, 1, 1, 1)",
        "contrast = pooled.norm()",
        MAPS,
    ),
    (
        "features: two angles change places",
        f"{FEATURES}/morlet.py",
        "(FIRST_ANGLE - i) * math.pi / ANGLES) for i",
        "(i - FIRST_ANGLE) * math.pi / ANGLES) for i",
        SCATTERING,
    ),
    (
        "features: π in place of kymatio's",
        f"{FEATURES}/morlet.py",
        "_PI = 3.1415 ",
        "_PI = math.pi ",
        SCATTERING,
    ),
    (
        "features: an aliased frequency is forgotten",
        f"{FEATURES}/scattering.py",
        "zip(aliases[1:], self._coarse[1:], strict=True)",
        "zip(aliases[1:3], self._coarse[1:3], strict=True)",
        SCATTERING,
    ),
    (
        "features: the border stands twice in the padding",
        f"{FEATURES}/scattering.py",
        "    period = 2 * (side - 1)\n    place = torch.arange(-margin, side + margin) % period\n"
        "    return torch.minimum(place, period - place)\n",
        "    place = torch.arange(-margin, side + margin) % (2 * side)\n"
        "    return torch.minimum(place, 2 * side - 1 - place)\n",
        SCATTERING,
    ),
    (
        "features: sines counted as even",
        f"{FEATURES}/bases.py",
        "parities += [0, 1]",
        "parities += [0, 0]",
        f"{BASES} {MAPS}",
    ),
    (
        "features: angles counted from the first filter",
        f"{FEATURES}/bases.py",
        "dtype=torch.float64) - FIRST_ANGLE",
        "dtype=torch.float64)",
        BASES,
    ),
    (
        "features: edges flipped as if they had no sign",
        f"{FEATURES}/oriented.py",
        "[(4 - i) % 8 for i in range(8)]",
        "[(8 - i) % 8 for i in range(8)]",
        f"{ORIENTED} {MAPS}",
    ),
    (
        "features: the same file for other images",
        "src/alidpfl/data/feature_cache.py",
        "images.contiguous().numpy().data",
        "images[:4].contiguous().numpy().data",
        CACHE,
    ),
    (
        "features: the same file for another version",
        f"{FEATURES}/maps.py",
        "features-v{VERSION}-",
        "features-",
        CACHE,
    ),
    (
        "features: anybody may read the file",
        "src/alidpfl/data/feature_cache.py",
        "is_private=True",
        "is_private=False",
        CACHE,
    ),
)
