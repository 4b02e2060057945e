"""What is installed: version, pins, types, documentation, examples."""

import importlib.metadata
import importlib.resources
import inspect
import re
import subprocess
import sys
import tomllib
import typing
from pathlib import Path

import flash_kda
import pytest
from problem import states, tensors

ROOT = Path(__file__).parents[2]


def test_version_is_the_one_of_the_header():
    header = (ROOT / "include/flash_kda/version.h").read_text()
    version = re.search(r'FLASH_KDA_VERSION "(.*)"', header)[1]
    assert flash_kda.__version__ == importlib.metadata.version("flash_kda") == flash_kda.info()["version"] == version


def test_pins_are_those_of_dependencies_txt():
    rows = (line.split() for line in (ROOT / "dependencies.txt").read_text().splitlines())
    pinned = {f"{row[1]}=={row[2]}" for row in rows if row[0] == "pip"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [name for group in project["project"]["optional-dependencies"].values() for name in group]
    used = {name for name in project["build-system"]["requires"] + extras if not name.startswith("flash_kda[")}
    assert used == pinned
    assert project["project"]["dependencies"] == []


def test_types_are_shipped():
    files = importlib.resources.files("flash_kda")
    assert (files / "py.typed").is_file() and (files / "_native.pyi").is_file()


@pytest.mark.parametrize("name", ["fwd", "forward", "decode"])
def test_every_argument_is_documented_and_typed(name):
    function = getattr(flash_kda, name)
    signature = inspect.signature(function)
    text = inspect.getdoc(flash_kda.forward) + inspect.getdoc(function)
    documented = {word for line in re.findall(r"^ {4}([\w, ]+): ", text, re.M) for word in line.split(", ")}
    assert set(signature.parameters) <= documented
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    for section in ("Args:", "Raises:"):
        assert section in function.__doc__


@pytest.mark.parametrize("option", ["gate", "beta_form", "backend"])
@pytest.mark.parametrize("name", ["forward", "decode"])
def test_types_and_documentation_name_every_accepted_word(name, option):
    """The accepted ones are those that the refusal of a wrong one names."""
    function, x = getattr(flash_kda, name), tensors(T=1)
    more = {"state": states()} if name == "decode" else {}
    with pytest.raises(ValueError) as caught:
        function(**x, **more, **{option: "wrong"})
    accepted = re.findall("'([^']+)'", str(caught.value).partition("accepted is")[2])
    hint = typing.get_type_hints(function)[option]
    literals = [hint] if typing.get_origin(hint) is typing.Literal else typing.get_args(hint)
    assert sorted(accepted) == sorted(word for literal in literals for word in typing.get_args(literal))
    documentation = inspect.getdoc(flash_kda.forward)
    assert all(f'"{word}"' in documentation for word in accepted)


def test_forward_and_decode_take_the_same_options():
    forward, decode = (inspect.signature(f).parameters for f in (flash_kda.forward, flash_kda.decode))
    for name in forward.keys() & decode.keys() - {"backend"}:  # forward has paths besides
        assert forward[name] == decode[name]
    assert decode.keys() - forward.keys() == {"state"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples/python").glob("*.py")), ids=lambda path: path.stem)
def test_example(path, tmp_path):
    run = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    if run.stdout.startswith("skipped: "):
        pytest.skip(run.stdout.removeprefix("skipped: ").strip())
    assert run.stdout


def test_examples_are_all_there():
    names = {path.stem for path in (ROOT / "examples/python").glob("*.py")}
    assert names >= {"basic", "packed", "streaming", "state_pool", "jax_or_cupy"}
