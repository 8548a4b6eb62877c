"""The public data sets: their files, the checksums of these, and where they are published."""

from dataclasses import dataclass
from typing import NamedTuple


class KnownFile(NamedTuple):
    """A file of a data set. Its checksum is that of the unpacked contents: mirrors may compress differently."""

    name: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A public data set: its files, the folder that they belong in, and the site that has them."""

    name: str
    folder: str
    """Below a data directory."""
    layout: str = "torchvision"
    """Who defined the names in that folder: torchvision, or "binary" for the authors' binary files."""
    system_folder: str = ""
    """Where a Debian package puts the same files, if there is one."""
    base_url: str
    files: tuple[KnownFile, ...]
    """Training files first. On disk, each is unpacked or ends in `.gz`."""
    archive: str = ""
    """The .tar.gz file that holds all files. If empty, each file is a download of its own, gzipped."""
    archive_md5: str = ""
    megabytes: int
    """Approximate size of the download."""


def _idx_files(*checksums: str) -> tuple[KnownFile, ...]:
    names = (f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return tuple(KnownFile(name=name, sha256=checksum) for name, checksum in zip(names, checksums, strict=True))


MNIST = Source(
    name="mnist",
    folder="MNIST/raw",
    base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",  # the authors' own site refuses downloads
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    megabytes=12,
)

FASHION_MNIST = Source(
    name="fashion_mnist",
    folder="FashionMNIST/raw",
    system_folder="/usr/share/datasets/fashion-mnist",  # package dataset-fashion-mnist
    base_url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    megabytes=31,
)

CIFAR10 = Source(
    name="cifar10",
    folder="cifar-10-batches-bin",
    layout="binary",
    base_url="https://www.cs.toronto.edu/~kriz/",
    files=(
        KnownFile(name="data_batch_1.bin", sha256="cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        KnownFile(name="data_batch_2.bin", sha256="a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        KnownFile(name="data_batch_3.bin", sha256="bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        KnownFile(name="data_batch_4.bin", sha256="014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        KnownFile(name="data_batch_5.bin", sha256="755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        KnownFile(name="test_batch.bin", sha256="8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    ),
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    megabytes=170,
)

SOURCES = {source.name: source for source in (MNIST, FASHION_MNIST, CIFAR10)}
"""The data sets that can be downloaded, by name."""
