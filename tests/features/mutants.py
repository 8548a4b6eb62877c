"""Bugs that would make features depend on other people's images, or on another map; `tests/mutants.py` runs them."""

SCATTERING, BASES, ORIENTED, MAPS = (
    f"tests/features/test_{name}.py" for name in ("scattering", "bases", "oriented", "maps")
)
CACHE = "tests/data/test_feature_cache.py"
FEATURES = "src/alidpfl/features"

SOFTMAX, SOFTMAX_TESTS = "src/alidpfl/dpsgd/softmax.py", "tests/dpsgd/test_softmax.py"
RELEASE, RELEASE_TESTS = "src/alidpfl/dpsgd/release.py", "tests/dpsgd/test_release.py"
BUILD, FEATURED = "src/alidpfl/runs/build.py", "src/alidpfl/runs/featured.py"
SCATTER_TESTS = "tests/runs/test_scatter_linear.py"

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
    (
        "softmax: nobody is clipped, kernels",
        SOFTMAX,
        "torch.mul(residuals, clip_factors(norms, limit).float()[:, None], out=scores[:, :classes])",
        "scores[:, :classes] = residuals",
        SOFTMAX_TESTS,
    ),
    (
        "softmax: nobody is clipped, PyTorch",
        SOFTMAX,
        "        residuals *= clip_factors(norms, limit).float()[:, None]\n",
        "",
        SOFTMAX_TESTS,
    ),
    (
        "softmax: the norm of the residual alone",
        SOFTMAX,
        "squared_norms(residuals.double()) * squared_inputs",
        "squared_norms(residuals.double())",
        SOFTMAX_TESTS,
    ),
    (
        "softmax: samples that are not finite stay",
        SOFTMAX,
        "is None else ~dropped",
        "is None else torch.ones_like(dropped)",
        SOFTMAX_TESTS,
    ),
    (
        "softmax: all rows instead of the batch's",
        SOFTMAX,
        "torch.arange(len(inputs)) if rows is None else rows.long().contiguous()",
        "torch.arange(len(inputs))",
        SOFTMAX_TESTS,
    ),
    (
        "softmax: tiny residuals count as zero",
        SOFTMAX,
        "squared_norms(residuals.double())",
        "squared_norms(residuals)",
        SOFTMAX_TESTS,
    ),
    ("softmax: all in float32", SOFTMAX, "places.div(size,", "places.div(10**9,", SOFTMAX_TESTS),
    (
        "softmax: groups by position in the batch",
        SOFTMAX,
        "places = rows if places is None else places.long().contiguous()",
        "places = torch.arange(len(rows))",
        SOFTMAX_TESTS,
    ),
    ("softmax: clipped at C itself", SOFTMAX, "clip_norm * _MARGIN)", "clip_norm * (1 + 3e-6))", SOFTMAX_TESTS),
    (
        "softmax: dropped samples stay in the product, PyTorch",
        SOFTMAX,
        "residuals, x = (t.masked_fill(dropped[:, None], 0) for t in (residuals, x))",
        "residuals = residuals.masked_fill(dropped[:, None], 0)",
        SOFTMAX_TESTS,
    ),
    ("release: clipped at C itself", RELEASE, "clip_norm * SAFETY", "clip_norm * (1 + 3e-6)", RELEASE_TESTS),
    (
        "release: records are not clipped",
        RELEASE,
        "total += factors @ piece.double()",
        "total += piece.double().sum(0)",
        RELEASE_TESTS,
    ),
    (
        "release: noise without the clip norm",
        RELEASE,
        "noise_multiplier * clip_norm, random",
        "noise_multiplier, random",
        RELEASE_TESTS,
    ),
    (
        "scatter_linear: the releases are not charged",
        BUILD,
        "            releases=releases_before(config),\n",
        "",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: one release is charged of two",
        BUILD,
        "privacy.statistics_noise, count=STATISTICS)",
        "privacy.statistics_noise, count=1)",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: statistics cost no round",
        "src/alidpfl/runs/config.py",
        "(STATISTICS if self.has_statistics else 0)",
        "0",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: both releases with one noise",
        FEATURED,
        "random = _random(config, 1, client)",
        "random = _random(config, 0, client)",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: noise of a release is that of a round",
        FEATURED,
        "release, client, _STREAM)",
        "release, client)",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: released again when a run goes on",
        "src/alidpfl/runs/execute.py",
        "statistics=_released_before(config, directory)",
        "statistics=None",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: a killed start's statistics are taken over",
        "src/alidpfl/runs/execute.py",
        "        return None\n    if found is None:\n",
        "        return found\n    if found is None:\n",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: a killed start releases again",
        "src/alidpfl/runs/execute.py",
        'if found is not None and config.run.randomness == "secure":',
        "if False:",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: other statistics are not noticed",
        "src/alidpfl/runs/execute.py",
        "return {**settings, **statistics, ",
        "return {**settings, ",
        SCATTER_TESTS,
    ),
    (
        "scatter_linear: seeded statistics in a secure run",
        FEATURED,
        'if config.run.randomness == "secure":',
        "if False:",
        SCATTER_TESTS,
    ),
    (
        "upright: slanted the other way",
        f"{FEATURES}/upright.py",
        "clamp(-_STEEPEST, _STEEPEST)",
        "clamp(-_STEEPEST, _STEEPEST).neg()",
        "tests/features/test_upright.py",
    ),
)
