"""Finding frameworks by name, and what is said when one cannot be had."""

import builtins
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from predictors.errors import FrameworkUnavailableError
from predictors.frameworks import registry as frameworks
from predictors.frameworks.registry import OWN, framework_names, load_framework

ROOT = Path(__file__).resolve().parents[2]


def test_the_built_in_table_is_what_the_distribution_declares() -> None:
    """A source tree and an installed platform find the same frameworks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"][frameworks.GROUP] == {point.name: point.value for point in OWN}


def test_loading_one_by_name_imports_no_framework() -> None:
    """Only a framework's methods may import it: an agent that lists them stays light."""
    assert {"null", "onnxruntime", "pytorch"} <= set(framework_names())
    for name in ("null", "onnxruntime", "pytorch"):
        assert load_framework(name).name == name


def test_an_unknown_name_is_told_with_the_known_ones() -> None:
    """A typo is corrected from the error."""
    with pytest.raises(FrameworkUnavailableError, match="'onnx'") as caught:
        load_framework("onnx")
    assert "onnxruntime" in caught.value.hint


def test_a_predictor_that_does_not_import_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is Python's own, and the module is named."""
    broken = EntryPoint("broken", "no_such_module_at_all:Thing", frameworks.GROUP)
    monkeypatch.setattr(frameworks, "OWN", (*OWN, broken))
    with pytest.raises(FrameworkUnavailableError, match="No module named 'no_such_module_at_all'"):
        load_framework("broken")


@pytest.mark.parametrize(("name", "module"), [("onnxruntime", "onnxruntime"), ("pytorch", "torch")])
def test_a_framework_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch, name: str, module: str) -> None:
    """version() raises and unavailable() returns the import's own words."""
    imported = builtins.__import__

    def without(wanted: str, *args: object, **kwargs: object) -> object:
        if wanted == module:
            raise ModuleNotFoundError(f"No module named '{module}'")
        return imported(wanted, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    framework = load_framework(name)
    with pytest.raises(FrameworkUnavailableError, match=f"No module named '{module}'"):
        framework.version()
    assert f"No module named '{module}'" in str(framework.unavailable("cpu"))
