"""Builds the optional native kernels; everything else is in pyproject.toml.

`optional=True`: where there is no C compiler the package installs all the same and uses its PyTorch path.
The library is loaded through ctypes, so that neither Python's nor torch's headers are needed.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "alidpfl.dpsgd._native",
            sources=["src/alidpfl/dpsgd/_native.c"],
            depends=["src/alidpfl/dpsgd/_native_kernels.h"],
            # After what CFLAGS says: fast math takes NaN for impossible, and the kernels look for it.
            # Without debug information, which Python's own flags ask for and which is most of the file.
            extra_compile_args=["-g0", "-O3", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ]
)
