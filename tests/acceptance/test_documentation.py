"""What the documentation says is so: commands, options, failure codes, and the README's own program."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer

from mlmodelscope.cli import app, exit_codes
from schemas.codec import registered
from schemas.failure import FailureCode
from schemas.settings import PREFIX, Settings
from tests.acceptance.test_main_job import command
from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONTROL = ("#", "&", "|", ">", ";")


def documented_commands() -> list[tuple[str, list[str]]]:
    """Every `mlmodelscope ...` line of a code block, as page and words."""
    found = []
    for page in PAGES:
        for block in BLOCK.findall(page.read_text()):
            for line in block.splitlines():
                text = line.strip().removeprefix(".venv/bin/")
                if text.startswith("mlmodelscope "):
                    words = shlex.split(text, comments=True)
                    end = next((i for i, word in enumerate(words) if word in CONTROL), len(words))
                    found.append((page.name, words[1:end]))
    return found


def resolve(words: list[str]) -> tuple[object, list[str]]:
    """The command that the words name, and what is left of them."""
    current = typer.main.get_command(app)
    rest = list(words)
    while hasattr(current, "commands"):
        name = rest.pop(0)
        assert name in current.commands, f"there is no command {name!r}"
        current = current.commands[name]
    return current, rest


@pytest.mark.parametrize(("page", "words"), documented_commands(), ids=lambda value: str(value)[:60])
def test_every_documented_command_exists_with_its_options(page: str, words: list[str]) -> None:
    """A reader who copies a line is not told that there is no such thing."""
    found, rest = resolve(words)
    options = {name for parameter in found.params for name in parameter.opts}  # type: ignore[attr-defined]
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{page}: {words}"


def test_there_are_commands_to_look_at() -> None:
    """The search above finds them."""
    assert len(documented_commands()) > 12


def test_links_between_pages_lead_somewhere() -> None:
    """No dead end in the documentation."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_documented_exit_codes_are_the_ones_there_are() -> None:
    """Scripts rely on them."""
    text = (REPOSITORY / "docs/evaluating.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {value for value in vars(exit_codes).values() if isinstance(value, int)}


def test_documented_settings_and_failure_codes_exist() -> None:
    """A name that is written anywhere is a name that works."""
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {f"{PREFIX}CONFIG"}
    for page in PAGES:
        for name in re.findall(r"\bMLMODELSCOPE_[A-Z_]+\b", page.read_text()):
            assert name in known, f"{page.name}: {name}"
    failures = (REPOSITORY / "docs/evaluating.md").read_text().split("## When it fails")[1]
    for code in re.findall(r"`([a-z]+_[a-z_]+)`", failures):
        assert code in get_args(FailureCode), code


def test_documented_messages_exist() -> None:
    """The protocol page names types that travel."""
    text = (REPOSITORY / "docs/protocol.md").read_text()
    names = set(re.findall(r"`((?:evaluation|task|predictions|queries|spans|metrics)_[a-z]+)`", text))
    assert len(names) > 8
    assert names <= {type_ for type_, _ in registered()}


@pytest.mark.slow
def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    """Word for word, from another directory."""
    (program,) = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"onnxruntime", "pytorch"}


@pytest.mark.slow
def test_the_demo_prints_its_table(tmp_path: Path) -> None:
    """`make demo` is this command in a fresh environment."""
    makefile = (REPOSITORY / "Makefile").read_text()
    assert "mlmodelscope demo" in makefile
    done = subprocess.run(
        [sys.executable, "-m", "mlmodelscope", "demo"], capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for word in ("onnxruntime", "pytorch", "top-1 [95 %]", "p99 ms", "items/s", "cold start ms"):
        assert word in done.stdout
    assert "measure" in done.stderr, "progress is shown"


def test_help_of_every_command_works() -> None:
    """Without a server, too."""
    done = command("evaluate", "--help", url="http://127.0.0.1:9")
    assert done.returncode == 0
    assert "--targets" in done.stdout
