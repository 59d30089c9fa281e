"""Names and addresses from outside."""

from pathlib import PurePosixPath

import pytest

from predictors.data.meter import Meter
from predictors.data.paths import confined
from predictors.data.urls import file_name, scheme, shown
from predictors.errors import CancelledError


@pytest.mark.parametrize("name", ["a", "a/b.txt", "./a//b.txt", "..a/b..", "a b/ü"])
def test_a_name_below_is_kept(name: str) -> None:
    """Ordinary relative names, odd ones included, stay what they are."""
    assert confined(name) == PurePosixPath(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("//host/share", "absolute"),
        ("C:/windows", "absolute"),
        ("..", "'..'"),
        ("a/../../b", "'..'"),
        ("..\\b", "backslash"),
        ("a\0b", "NUL"),
    ],
)
def test_a_name_that_could_lead_outside_is_refused(name: str, why: str) -> None:
    """Every way out is refused, with the reason."""
    with pytest.raises(ValueError, match=why):
        confined(name)


def test_an_address_is_shown_without_its_secrets() -> None:
    """Passwords and signatures of an address do not reach messages, which are stored and sent."""
    assert shown("https://user:secret@host:8/a/b.tar?X-Signature=secret#f") == "https://host:8/a/b.tar?..."
    assert shown("repo:digits.onnx") == "repo:digits.onnx"
    assert file_name("https://host/a/my%20model.onnx?x=1") == "my model.onnx"
    assert file_name("repo:digits.onnx") == "digits.onnx"


def test_a_path_has_no_scheme() -> None:
    """A plain path and a drive letter are not taken for schemes."""
    assert [scheme(text) for text in ("/a/b", "C:/a", "S3://b", "file:/a", "a/b:c")] == ["", "", "s3", "file", ""]


def test_progress_is_told_seldom_and_at_the_end() -> None:
    """However small the pieces, progress is told ten times a second at most, and the last figure always is."""
    now = [0.0]
    told: list[tuple[int, int]] = []
    meter = Meter("x", lambda done, total: told.append((done, total)), clock=lambda: now[0])
    for done in range(100):
        now[0] = done / 256
        meter.report(done, None)
    meter.report(100, 100, last=True)
    assert told == [(0, 0), (26, 0), (52, 0), (78, 0), (100, 100)]


def test_a_cancellation_ends_a_pause() -> None:
    """A wait between attempts is not sat out once nobody wants the result."""
    with pytest.raises(CancelledError, match=r"m\.onnx"):
        Meter("m.onnx", cancelled=lambda: True).pause(3600)
