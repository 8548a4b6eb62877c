"""Settings for all tests."""

import os
import warnings
from pathlib import Path

import hypothesis
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer asks click 8.3 for a name that click deprecates
    import typer.testing  # noqa: F401

# The same examples every time: CI must not be red by chance. `make fuzz` sets ALIDPFL_FUZZ and draws new ones.
hypothesis.settings.register_profile("same", derandomize="ALIDPFL_FUZZ" not in os.environ, deadline=None)
hypothesis.settings.load_profile("same")

# These take minutes, or wait for other processes. Begun last, they would keep one process busy alone.
LONGEST = (
    "tests/flower/test_deployment.py",
    "tests/test_documented_commands.py",
    "tests/packaging/",
    "tests/reproduction/test_reproduce.py",
    "tests/flower/test_demo.py",  # not beside the deployment: a dozen processes of Flower keep two cores busy
    "tests/dpsgd/test_clipping.py",
    "tests/flower/test_tables.py",
    "tests/reproduction/",
    "tests/examples/",
    "tests/test_site.py",
    "tests/replay/",
    "tests/fuzz/",
    "tests/runs/",
    "tests/vault/",
)

_skipped_real_data: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest modules."""
    places = {start: place for place, start in enumerate(LONGEST)}
    items.sort(key=lambda item: next((places[start] for start in LONGEST if item.nodeid.startswith(start)), 99))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread in each process, as training does. Two threads on small tensors mostly wait for each other."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Vaults of tests keep their state heads here, not in the home of the user who runs the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the real data sets are; only for tests marked `real_data`."""
    path = Path(os.environ.get("ALIDPFL_DATA_DIR", ""))
    if not os.environ.get("ALIDPFL_DATA_DIR") or not path.is_dir():
        pytest.skip(f"needs the real data sets: set ALIDPFL_DATA_DIR to their folder (now {str(path)!r})")
    return path


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, started and stopped here; skipped where there is none."""
    import shutil

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs Chromium: install Debian's packages chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        yield started
    finally:
        started.quit()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.skipped and "real_data" in item.keywords:
        _skipped_real_data.append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Where CI has the data, a test of them that was skipped is a failure."""
    if os.environ.get("ALIDPFL_REQUIRE_REAL_DATA") and _skipped_real_data:
        print(f"\nALIDPFL_REQUIRE_REAL_DATA is set, but these tests were skipped: {', '.join(_skipped_real_data)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
