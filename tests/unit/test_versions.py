"""Versions and ranges: npm's documented grammar, and what Python distributions write."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import VersionError
from schemas.versions import newest, parse_range, parse_version, satisfies

# What https://github.com/npm/node-semver documents (its README's own examples, and each rule at its edges).
# Every row was put to node-semver 7.8.5 and answered the same.
INSIDE = """
^1.2.3            | 1.2.3 1.2.4 1.9.0
^1.x              | 1.0.0 1.99.99
^0.2.3            | 0.2.3 0.2.9
^0.0.3            | 0.0.3
^0.0.3-beta       | 0.0.3-beta 0.0.3-pr.2 0.0.3
^1.2.3-beta.2     | 1.2.3-beta.2 1.2.3-beta.4 1.2.3 1.9.9
^1.2.x            | 1.2.0 1.9.9
^0.0.x            | 0.0.0 0.0.9
^0.0              | 0.0.0 0.0.9
^0.x              | 0.0.0 0.9.9
^0                | 0.0.0 0.9.9
~1.2.3            | 1.2.3 1.2.9
~1.2              | 1.2.0 1.2.9
~1                | 1.0.0 1.9.9
~0.2.3            | 0.2.3 0.2.9
~0                | 0.0.0 0.9.9
~1.2.3-beta.2     | 1.2.3-beta.2 1.2.3-beta.4 1.2.9
~>1.2.3           | 1.2.3 1.2.9
1.2.3 - 2.3.4     | 1.2.3 2.3.4 2.0.0
1.2 - 2.3.4       | 1.2.0 2.3.4
1.2.3 - 2.3       | 1.2.3 2.3.99
1.2.3 - 2         | 1.2.3 2.99.99
* - 2             | 0.0.0 2.9.9
1.2 - *           | 1.2.0 99.0.0
*                 | 0.0.0 1.2.3 99.99.99
""                | 0.0.0 1.2.3
1.x               | 1.0.0 1.99.0
1.2.*             | 1.2.0 1.2.99
1                 | 1.0.0 1.9.9
1.2               | 1.2.0 1.2.9
=1.2              | 1.2.0 1.2.9
v1.2.3            | 1.2.3
>=1.20 <2         | 1.20.0 1.99.0
>= 1.20   < 2     | 1.20.0 1.99.0
>1                | 2.0.0
>1.2              | 1.3.0
<=1.2             | 1.2.99 0.1.0
<1.2              | 1.1.99
>1.2.3-alpha.3    | 1.2.3-alpha.7 3.4.5
1.2.7 || >=1.2.9 <2.0.0 | 1.2.7 1.2.9 1.4.6
^1.2.3 || ^3      | 1.5.0 3.1.0
||                | 1.0.0
"""
OUTSIDE = """
^1.2.3            | 1.2.2 2.0.0 2.0.0-alpha 1.3.0-alpha 1.2.3-rc.1
^0.2.3            | 0.2.2 0.3.0 0.3.0-0
^0.0.3            | 0.0.2 0.0.4
^0.0.3-beta       | 0.0.3-alpha 0.0.4 0.0.4-beta
^1.2.3-beta.2     | 1.2.3-beta.1 1.2.4-beta.2 2.0.0
~1.2.3            | 1.2.2 1.3.0 1.3.0-0
~1                | 0.9.9 2.0.0
~1.2.3-beta.2     | 1.2.4-beta.2 1.3.0
1.2.3 - 2.3       | 1.2.2 2.4.0 2.4.0-0
1.2.3 - 2         | 3.0.0 3.0.0-0
*                 | 1.2.3-rc.1 0.0.0-0
1.x               | 2.0.0 0.9.9 1.0.0-rc.1
>=1.20 <2         | 1.19.9 2.0.0 2.0.0-rc.1
>1                | 1.0.0 1.9.9 2.0.0-rc.1
>1.2              | 1.2.9
<=1.2             | 1.3.0 1.3.0-0
<1.2              | 1.2.0 1.2.0-0
<*                | 0.0.0 1.0.0
>*                | 0.0.0 1.0.0
>1.2.3-alpha.3    | 3.4.5-alpha.9 1.2.3-alpha.3
1.2.7 || >=1.2.9 <2.0.0 | 1.2.8 2.0.0
1.2.3             | 1.2.4 1.2.3-rc.1
"""


def _rows(table: str) -> list[tuple[str, str]]:
    pairs = (line.rsplit("|", 1) for line in table.strip().splitlines())
    return [(wanted.strip().strip('"'), version) for wanted, versions in pairs for version in versions.split()]


@pytest.mark.parametrize(("wanted", "version"), _rows(INSIDE))
def test_what_npm_takes_is_taken(wanted: str, version: str) -> None:
    """A version that node-semver finds in a range is in it."""
    assert satisfies(version, wanted)


@pytest.mark.parametrize(("wanted", "version"), _rows(OUTSIDE))
def test_what_npm_refuses_is_refused(wanted: str, version: str) -> None:
    """A version that node-semver finds outside a range is outside."""
    assert not satisfies(version, wanted)


def test_precedence_is_that_of_the_semver_specification() -> None:
    """Semantic Versioning 2.0.0, clause 11: its own chain of examples, and numbers compared as numbers."""
    chain = "1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 1.0.0-rc.1 1.0.0 1.0.10"
    assert all(parse_version(low) < parse_version(high) for low, high in itertools.pairwise(chain.split()))
    assert parse_version("1.9.0") < parse_version("1.10.0")


def test_precedence_of_python_versions_is_that_of_python() -> None:
    """Order is dev < a < b < rc < release, each by number, as packaging orders them."""
    chain = "2.13.1 2.14.0.dev20260101 2.14.0.dev20260102+cu130 2.14.0a1 2.14.0b2 2.14.0rc2 2.14.0rc10 2.14.0"
    assert all(parse_version(low) < parse_version(high) for low, high in itertools.pairwise(chain.split()))


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("2.13.0rc1", "2.13.0-rc.1"),
        ("2.13.0-rc1", "2.13.0-rc1"),
        ("2.13", "2.13.0"),
        ("v2", "2.0.0"),
        ("4.14.0.94", "4.14.0+94"),
        ("1.0.post1", "1.0.0+post.1"),
        ("2.14.0.dev20260101+cu130", "2.14.0-0.dev.20260101+cu130"),
        ("2026.4.1-21432-a1b2c3d", "2026.4.1-21432-a1b2c3d"),
    ],
)
def test_what_frameworks_report_is_read_as_the_semantic_version_it_means(written: str, means: str) -> None:
    """Local parts, PEP 440 pre-releases, two or four numbers: all have a semantic version."""
    assert str(parse_version(written)) == means


@pytest.mark.parametrize("wanted", ["2.13.0", "^2", "~2.13", ">=2.13 <2.14", "2.x", "*", "=2.13.0+cpu", "2.13.0+cpu"])
def test_a_local_part_does_not_keep_a_version_out(wanted: str) -> None:
    """2.13.0+cpu is 2.13.0, for every range that does not ask for another build."""
    assert satisfies("2.13.0+cpu", wanted)


def test_an_exact_build_is_that_build_alone() -> None:
    """A range that names a local part exactly is satisfied by no other build."""
    assert not satisfies("2.13.0+cu130", "=2.13.0+cpu")
    assert not satisfies("2.13.0", "2.13.0+cpu")
    assert satisfies("2.13.1+cu130", ">=2.13.0+cpu")


def test_a_release_candidate_is_taken_only_when_asked_for() -> None:
    """It is npm's rule, also for how Python writes pre-releases."""
    assert not satisfies("2.13.0rc1", "*")
    assert not satisfies("2.13.0rc1", ">=2.12")
    assert not satisfies("2.14.0rc1", ">=2.13.0-rc.1")
    assert satisfies("2.13.0rc2", ">=2.13.0-rc.1")
    assert satisfies("2.13.0rc2", "^2.13.0rc1")


def test_newest_is_the_newest_and_not_the_last_or_the_longest() -> None:
    """`latest`, `*` and a range give the newest release whatever the order; None when there is none."""
    versions = ["1.2.0", "1.10.0", "1.9.0", "2.0.0-rc.1", "0.99.0"]
    assert newest(versions) == newest(versions, "latest") == newest(versions[::-1], "*") == "1.10.0"
    assert newest(versions, "~1.9") == "1.9.0"
    assert newest(versions, ">=2.0.0-0") == "2.0.0-rc.1"
    assert newest(versions, "^3") is None
    assert newest([], "*") is None


@pytest.mark.parametrize(
    "text",
    ["", "a", "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.3+", "1..2", "1.2.3 4", "-1.2.3", "\u0663.1.0", "1" * 300],
)
def test_what_is_no_version_is_refused(text: str) -> None:
    """VersionError, never another exception and never a guess."""
    with pytest.raises(VersionError):
        parse_version(text)


@pytest.mark.parametrize(
    "text", ["^", ">", "newest", "^latest", "!=1.2", ">=1.2 - 3", "1 .2", "~=1.4", "^" + "9" * 5000, "1.2.3 && 2"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    """VersionError with a message that shows how ranges are written or how long they may be."""
    with pytest.raises(VersionError, match=r"ranges are written as|at most 256"):
        parse_range(text)


_NUMBER = st.integers(0, 30)
_CORE = st.tuples(_NUMBER, _NUMBER, _NUMBER)
_PRE = st.sampled_from(["", "-alpha", "-alpha.1", "-rc.1", "-rc.10", "-0"])
_VERSION = st.builds(lambda core, pre: ".".join(map(str, core)) + pre, _CORE, _PRE)
_OPERATOR = st.sampled_from(["", "^", "~", ">=", ">", "<", "<=", "="])
_RANGE = st.builds(lambda operator, version: operator + version, _OPERATOR, _VERSION)


@given(_VERSION, st.sampled_from(["^", "~", "=", ">=", "<=", ""]))
def test_a_version_satisfies_the_range_made_of_itself(version: str, operator: str) -> None:
    """Caret, tilde, equality and both inclusive bounds contain their own version."""
    assert satisfies(version, operator + version)


@given(_VERSION, _VERSION)
def test_bounds_split_the_versions(version: str, bound: str) -> None:
    """For releases, exactly one of <, = and > holds."""
    version, bound = version.partition("-")[0], bound.partition("-")[0]
    assert [satisfies(version, operator + bound) for operator in "<=>"].count(True) == 1


@given(_CORE, _CORE)
def test_caret_keeps_the_leftmost_number_that_is_not_zero(
    core: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    """For releases: other in ^core exactly when it is not older and agrees up to the first non-zero number."""
    leading = next((position for position, number in enumerate(core) if number), 2)
    expected = other >= core and other[: leading + 1] == core[: leading + 1]
    assert satisfies(".".join(map(str, other)), "^" + ".".join(map(str, core))) is expected


@given(_VERSION, _RANGE, _RANGE)
def test_alternatives_are_or_and_spaces_are_and(version: str, left: str, right: str) -> None:
    """`a || b` is the union; for releases `a b` is the intersection."""
    assert satisfies(version, f"{left} || {right}") == (satisfies(version, left) or satisfies(version, right))
    if "-" not in version:
        assert satisfies(version, f"{left} {right}") == (satisfies(version, left) and satisfies(version, right))


@given(st.lists(_VERSION, max_size=8), _RANGE)
def test_newest_is_the_greatest_that_satisfies(versions: list[str], wanted: str) -> None:
    """Nothing in the range is newer than what `newest` returns, and what it returns is in the range."""
    found = newest(versions, wanted)
    inside = [version for version in versions if satisfies(version, wanted)]
    assert (found is None) == (not inside)
    assert found is None or (found in inside and all(parse_version(v) <= parse_version(found) for v in inside))


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text makes either parser raise anything but VersionError."""
    for parse in (parse_version, parse_range):
        with contextlib.suppress(VersionError):
            parse(text)
