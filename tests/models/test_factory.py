"""Networks of the user's own, named in a configuration: for runs, plans and audits."""

import copy
import json
import re
import sys
import zipfile

import pytest
import torch
from torch import nn

import alidpfl
from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs import imports
from alidpfl.inputs.imports import code_files
from alidpfl.models import make_from_factory
from alidpfl.runs import execute, load_config, resume
from alidpfl.runs.execute import Listener
from alidpfl.runs.prepare import build_model
from alidpfl.store import RunDirectory
from tests.runs.command import alidpfl as command
from tests.runs.command import config, overrides


def settings(own, function="two_layers", **changes):
    """A small configuration with one of these networks."""
    named = [one for one in overrides(model__factory=own(function), **changes) if not one.startswith("model.name")]
    return load_config(overrides=named)


def arguments(own, function="two_layers", *more):
    given = [f"model.factory={own(function)}", "data.name=synthetic", "data.clients=3", "privacy.accountant=rdp"]
    return [part for one in (*given, *more) for part in ("--set", one)]


def test_a_factory_builds_what_the_function_builds_with_seeded_weights(own):
    state = torch.get_rng_state()
    built = build_model(settings(own, model__options__width=5, run__seed=3), (60,), 10)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(3)
    expected = nn.Sequential(nn.Flatten(), nn.Linear(60, 5), nn.Tanh(), nn.Linear(5, 10))
    for (name, values), (other, same) in zip(built.named_parameters(), expected.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(values, same)


def test_a_class_is_a_factory_too(own):
    assert isinstance(build_model(settings(own, "Wide", model__options__width=5), (60,), 10).layers[1], nn.Linear)


MISTAKES = {
    "no such package": ({"factory": "no_such_package.nets:make"}, "no_such_package.*install its package"),
    "no such function": ({"function": "nothing"}, "nothing"),
    "not a function": ({"function": "NO_FUNCTION"}, "is a int, not a function"),
    "a module that is built": ({"function": "BUILT"}, "is a Linear, not a function"),
    "makes no module": ({"function": "no_module"}, "returned a list"),
    "fails": ({"function": "broken"}, "RuntimeError: no such file"),
    "an option that it has not": ({"options": {"widht": 3}}, "widht.*did you mean 'width'"),
    "an option of a wrong value": ({"options": {"activation": "rleu"}}, "KeyError: 'rleu'"),
    "an option given twice": ({"options": {"num_outputs": 3}}, "multiple values"),
    "the standard library": ({"factory": "subprocess:call"}, "standard library"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(own, mistake):
    given, says = MISTAKES[mistake]
    name = given.get("factory") or own(given.get("function", "two_layers"))
    with pytest.raises(ConfigError, match=says):
        make_from_factory(name, (4,), 3, options=given.get("options", {}), seed=0)


def test_code_that_does_not_compile_is_a_mistake_of_the_user(own):
    own.edit("import math", "import")
    with pytest.raises(ConfigError, match="SyntaxError"):
        make_from_factory(own("two_layers"), (4,), 3, options={}, seed=0)


def test_a_factory_may_refuse_in_our_words(own):
    own.edit('raise RuntimeError("no such file")', 'from alidpfl.errors import DataError; raise DataError("too small")')
    with pytest.raises(DataError, match=r"^too small$"):
        make_from_factory(own("broken"), (4,), 3, options={}, seed=0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["model.factory=nets"], "model.factory='nets'"),
        (["model.factory=a b:c"], "model.factory"),
        (["model.factory=nets:make", "model.name=mlp"], "exclude each other"),
        (["model.options={width=3}"], "model.options"),
    ],
)
def test_settings_that_contradict_each_other(given, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_config(overrides=given)


def test_settings_of_other_models_are_refused(own):
    with pytest.raises(ConfigError, match=re.escape(f"model.hidden is for mlp; {own('two_layers')}")):
        execute(settings(own, model__hidden=5), own.folder / "run")


def test_a_run_is_that_of_the_same_model_from_python(own, tmp_path):
    """And the run says which code built the model."""
    outcome = execute(settings(own, model__options__width=5), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    tensors, metadata = run.read_model()
    assert {name: tuple(values.shape) for name, values in tensors.items()}["1.weight"] == (5, 60)
    assert run.config()["model"] == {"factory": own("two_layers"), "options": {"width": 5}, "hidden": 128}
    assert metadata["model"] == own("two_layers")
    code = run.environment()["model_code"]
    found = code_files(own("two_layers"))
    assert code == {"package": own.package, "sha256": found.sha256, "files": dict(found.files)}
    assert metadata["model_code_sha256"] == found.sha256
    assert list(code["files"]) == [f"{own.package}/__init__.py", f"{own.package}/nets.py"]
    facts = json.loads(command("show", tmp_path / "run", "--json").stdout)
    assert facts["model"] == own("two_layers")
    assert own("two_layers") in command("show", tmp_path / "run").stdout.replace("\n", "")
    assert outcome.accuracy is not None
    own.forget()
    model = alidpfl.load_model(tmp_path / "run")
    assert torch.equal(model[1].weight, tensors["1.weight"])


def test_a_model_that_ships_leaves_no_word_of_code(tmp_path):
    execute(config(federation__max_rounds=1), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    assert "model_code" not in run.environment()
    assert "model_code_sha256" not in run.read_model()[1]
    assert {"factory", "options"}.isdisjoint(run.config()["model"])


def test_a_run_goes_on_with_the_same_code_only(own, tmp_path):
    def kill(record, _seconds):
        if record.number == 2:
            raise RuntimeError("killed")

    whole = settings(own)
    execute(whole, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="killed"):
        execute(whole, tmp_path / "run", listener=Listener(on_round=kill))
    text = own.file.read_text()
    own.edit("import math", "import math  # a word more")
    with pytest.raises(ConfigError, match=r"model\.code was"):
        resume(tmp_path / "run")
    own.edit(own.file.read_text(), text)
    resume(tmp_path / "run")
    trained, expected = (RunDirectory.open(tmp_path / name).read_model()[0] for name in ("run", "whole"))
    assert all(torch.equal(trained[name], expected[name]) for name in expected)


def test_a_loaded_model_warns_of_other_code(own, tmp_path):
    execute(settings(own, federation__max_rounds=1), tmp_path / "run")
    own.edit("import math", "import math  # a word more")
    with pytest.warns(UserWarning, match=own.package):
        alidpfl.load_model(tmp_path / "run")


@pytest.mark.parametrize("shape", ['["rm", 3]', "[true]", '"60"', "{}"])
def test_a_shape_in_a_model_file_is_numbers(own, tmp_path, shape):
    """It goes to a function that the run's own configuration names."""
    execute(settings(own, federation__max_rounds=1), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    tensors, metadata = run.read_model()
    run.write_model(tensors, metadata | {"input_shape": shape})
    with pytest.raises(DataError, match=r"model\.safetensors"):
        alidpfl.load_model(tmp_path / "run")


def test_the_commands_take_a_factory_from_the_current_folder(own):
    run = command("run", *arguments(own, "two_layers", "model.options.width=4", "max_rounds=1"), "--out", "out")
    assert run.exit_code == 0, run.stderr
    planned = command("run", *arguments(own, "two_layers", "max_rounds=20"), "--plan", "auto", "--out", "planned")
    assert planned.exit_code == 0, planned.stderr
    audited = command(
        "audit", *arguments(own, "two_layers", "privacy.max_steps=3"), "--one-step", "--draws", "100", "--json"
    )
    assert audited.exit_code == 0, audited.stderr


@pytest.mark.parametrize("mistake", ["nothing", "NO_FUNCTION", "no_module", "broken", "mixing"])
def test_the_command_ends_with_status_2_on_a_mistake(own, mistake):
    done = command("run", *arguments(own, mistake), "--out", "out")
    assert done.exit_code == 2
    assert done.stderr.startswith("alidpfl: ")
    assert not (own.folder / "out").exists()


PLAN = ("--sample-rate", "0.015", "--noise-multiplier", "1.1", "--accountant", "rdp", "--json")


def planned_size(done) -> int:
    """The number of parameters that a plan counts the traffic of: four bytes each, in both directions."""
    plan = json.loads(done.stdout)
    return plan["bytes"] // (8 * 10 * plan["max_rounds"])


def test_a_plan_counts_the_parameters_of_a_model_of_ones_own(own, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(own.folder / "cache"))
    (own.folder / "run.toml").write_text(f'[model]\nfactory = "{own("two_layers")}"\noptions = {{ width = 3 }}\n')
    sizes = []
    for model in (own("two_layers"), "run.toml", "linear"):
        done = command("plan", "--model", model, "--input-shape", "20", "--classes", "4", *PLAN)
        assert done.exit_code == 0, done.stderr
        sizes.append(planned_size(done))
    assert sizes == [20 * 8 + 8 + 8 * 4 + 4, 20 * 3 + 3 + 3 * 4 + 4, 7_850]
    own.edit("width=8", "width=9")  # nothing stale comes from the cache
    done = command("plan", "--model", own("two_layers"), "--input-shape", "20", "--classes", "4", *PLAN)
    assert planned_size(done) == 20 * 9 + 9 + 9 * 4 + 4


@pytest.mark.parametrize("given", [("--classes", "0"), ("--input-shape", "3x4"), ("--schema", "s.toml")])
def test_a_plan_of_a_model_of_ones_own_names_mistakes(own, given):
    done = command("plan", "--model", own("two_layers"), *given)
    assert done.exit_code == 2
    assert given[1] in done.stderr or "--schema" in done.stderr


def test_the_hash_covers_every_file_of_the_package_and_no_compiled_copy(own):
    name, package = own("two_layers"), own.folder / own.package
    before = code_files(name)
    for folder in (package, package / "data"):
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "__pycache__" / "nets.cpython-311.pyc").touch()
    assert code_files(name) == before
    seen = {before.sha256}
    for change in (
        lambda: (package / "data" / "weights.bin").write_bytes(b"1"),
        lambda: (package / "data" / "weights.bin").write_bytes(b"2"),
        lambda: (package / "data" / "weights.bin").rename(package / "data" / "other.bin"),
        (package / "data" / "other.bin").unlink,
        lambda: (package / "__init__.py").write_text("x = 1"),
    ):
        change()
        seen.add(code_files(name).sha256)
    assert len(seen) == 5  # the file that is gone again gives the first hash
    assert before.sha256 in seen


def test_a_module_without_a_package_is_one_file(own):
    (own.folder / f"{own.package}_alone.py").write_text("def make(input_shape, num_outputs): pass")
    assert [path for path, _ in code_files(f"{own.package}_alone:make").files] == [f"{own.package}_alone.py"]


@pytest.fixture
def odd(own):
    """A package that can be made odd in several ways."""
    sys.path.insert(0, str(own.folder))
    return own


def test_odd_packages_are_refused(odd, monkeypatch):
    name, package = odd("two_layers"), odd.folder / odd.package
    with pytest.raises(ConfigError, match="no package"):
        code_files("no_such_package:make")
    with pytest.raises(ConfigError, match="no files"):
        code_files("sys:exit")
    (package / "linked").symlink_to(odd.folder)
    with pytest.raises(ConfigError, match="linked is a link"):
        code_files(name)
    (package / "linked").unlink()
    (package / "gone.py").symlink_to(odd.folder / "nowhere")
    with pytest.raises(ConfigError, match=r"gone\.py"):
        code_files(name)
    (package / "gone.py").unlink()
    for limit in ("_MOST_FILES", "_MOST_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(imports, limit, 1)
            with pytest.raises(ConfigError, match="too much"):
                code_files(name)
    with zipfile.ZipFile(odd.folder / "zipped.zip", "w") as archive:
        archive.writestr("zipped_nets/__init__.py", "")
    sys.path.insert(0, str(odd.folder / "zipped.zip"))
    with pytest.raises(ConfigError, match="not as an archive"):
        code_files("zipped_nets:make")


def test_a_table_keeps_the_users_network(own, tmp_path):
    """The default of tables is a linear model, with a clip norm that is for linear models."""
    from alidpfl.runs.tables import with_table_defaults
    from tests.tables.parts import hospitals

    files = hospitals(tmp_path, (60, 60, 60))
    given = [f"model.factory={own('two_layers')}", "data.name=table", f"data.schema_file={tmp_path / 'schema.toml'}"]
    found = with_table_defaults(load_config(overrides=[*given, f"data.files={json.dumps([str(f) for f in files])}"]))
    assert found.model.factory == own("two_layers")
    assert found.to_dict()["model"].get("name") is None
    assert found.method.clip_norm == 1.0
    assert found.data.standardise == "none"


def test_the_record_is_a_copy(own):
    """Settings are shared by all who read a configuration: a factory that changes its options changes its own."""
    own.edit("def two_layers(", "def careless(input_shape, num_outputs, widths):\n    widths.append(3)\n"
             "    return two_layers(input_shape, num_outputs, width=len(widths))\n\ndef two_layers(")  # fmt: skip
    given = settings(own, "careless", model__options__widths=[1])
    before = copy.deepcopy(given.to_dict())
    first, second = (build_model(given, (60,), 10) for _ in range(2))
    assert first[1].out_features == second[1].out_features == 2
    assert given.to_dict() == before
