"""Versions and ranges of versions, in npm's grammar.

A version is semantic (`1.2.3-rc.1+build`) or what Python distributions write (`2.13`, `2.13.0rc1`,
`2.13.0.dev20260101+cu130`), read as the semantic version it means. A range is what node-semver reads:
comparators (`>=1.20 <2`), hyphens (`1.2 - 1.4`), wildcards (`1.x`, `*`), tilde, caret, alternatives (`||`);
source of the rules: https://github.com/npm/node-semver#ranges. Two things follow from it: a pre-release
satisfies a range only when a comparator with the same major.minor.patch has a pre-release itself; and the
local part (after `+`) never orders versions. Two things are ours: an exact comparator that names a local part
(`=2.13.0+cpu`) is satisfied by that build alone; and alternatives are alternatives even beside a `*`, where
node-semver forgets the others (`* || ^1.0.0-rc.1` holds for 1.0.0-rc.2 here, as its own manual says).
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from semver import Version

from schemas.errors import VersionError

_VERSION = re.compile(
    r"v?(?P<major>\d+)(?:\.(?P<minor>\d+))?(?:\.(?P<patch>\d+))?(?P<more>(?:\.\d+)*)"
    r"(?:-(?P<pre>[0-9A-Za-z.-]+)|[._-]?(?P<pep>a|b|rc|alpha|beta|c|dev|pre)\.?(?P<pepn>\d*))?"
    r"(?:\.?post(?P<post>\d+))?(?:\.dev(?P<dev>\d+))?(?:\+(?P<local>[0-9A-Za-z._-]+))?",
    re.ASCII,
)
_PARTIAL = re.compile(
    r"v?(?P<major>\d+|[xX*])(?:\.(?P<minor>\d+|[xX*]))?(?:\.(?P<patch>\d+|[xX*]))?"
    r"(?:-?(?P<pre>(?<=-)[0-9A-Za-z.-]+|(?:a|b|rc)\d+))?(?:\+(?P<local>[0-9A-Za-z._-]+))?",
    re.ASCII,
)
_OPERATOR = re.compile(r"(<=|>=|<|>|=|\^|~>|~)\s*")
_PRERELEASE = re.compile(
    r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*", re.ASCII
)
_MAX_LENGTH = 256
"""Of a version or of a range, as in node-semver: bounds the work a stranger's text can cause."""
_PEP_NAMES = {"a": "alpha", "b": "beta", "c": "rc", "pre": "rc", "dev": "0.dev"}


@lru_cache(maxsize=4096)
def parse_version(text: str) -> Version:
    """Return the semantic version that `text` means. Raises VersionError."""
    match = _VERSION.fullmatch(text.strip()) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise VersionError(f"{text[:_MAX_LENGTH]!r} is not a version such as 1.2.3, 2.0.0-rc.1 or 2.13.0+cpu")
    pre = match["pre"]
    if match["pep"]:
        pre = f"{_PEP_NAMES.get(match['pep'], match['pep'])}.{int(match['pepn'] or 0)}"
    if match["dev"]:
        # A number comes before every word, so that 2.0.dev5 < 2.0a1 as Python's own order has it.
        pre = f"{pre}.dev.{int(match['dev'])}" if pre else f"0.dev.{int(match['dev'])}"
    if pre is not None and not _PRERELEASE.fullmatch(pre):
        raise VersionError(f"{text!r} is not a version: {pre!r} has an empty identifier or a number that starts with 0")
    local = [
        part for part in (match["more"].lstrip("."), match["post"] and f"post.{match['post']}", match["local"]) if part
    ]
    try:
        return Version(
            int(match["major"]),
            int(match["minor"] or 0),
            int(match["patch"] or 0),
            pre,
            ".".join(local).replace("_", "-") or None,
        )
    except ValueError as error:
        raise VersionError(f"{text!r} is not a version: {error}") from error


@dataclass(frozen=True, slots=True)
class Comparator:
    """One bound: operator and version."""

    operator: str
    version: Version

    def holds(self, version: Version) -> bool:
        """Return whether `version` is within this bound, by precedence alone."""
        order = version.compare(self.version)
        if self.operator == "=":
            return order == 0 and self.version.build in (None, version.build)
        return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[self.operator]


@dataclass(frozen=True, slots=True)
class Range:
    """Alternatives, each a set of comparators that must all hold. An empty set holds for every release."""

    text: str
    alternatives: tuple[tuple[Comparator, ...], ...]

    def contains(self, version: str | Version) -> bool:
        """Return whether `version` satisfies this range."""
        candidate = parse_version(version) if isinstance(version, str) else version
        return any(_satisfies(candidate, comparators) for comparators in self.alternatives)


@lru_cache(maxsize=4096)
def parse_range(text: str) -> Range:
    """Return the range that `text` means; empty text, `*` and `latest` mean any release. Raises VersionError."""
    if len(text) > _MAX_LENGTH:
        raise VersionError(f"a range of versions has at most {_MAX_LENGTH} characters, this has {len(text)}")
    cleaned = text.strip()
    if cleaned in ("", "latest"):
        cleaned = "*"
    return Range(text, tuple(_comparators(part.strip(), text) for part in cleaned.split("||")))


def satisfies(version: str, range_: str) -> bool:
    """Return whether `version` is in `range_`. Raises VersionError when either does not parse."""
    return parse_range(range_).contains(version)


def newest(versions: list[str], range_: str = "*") -> str | None:
    """Return the newest of `versions` that is in `range_`, or None."""
    wanted = parse_range(range_)
    fitting = [version for version in versions if wanted.contains(version)]
    return max(fitting, key=parse_version, default=None)


def _satisfies(version: Version, comparators: tuple[Comparator, ...]) -> bool:
    if not all(comparator.holds(version) for comparator in comparators):
        return False
    if version.prerelease is None:
        return True
    core = version.to_tuple()[:3]
    return any(c.version.prerelease is not None and c.version.to_tuple()[:3] == core for c in comparators)


def _comparators(part: str, whole: str) -> tuple[Comparator, ...]:
    hyphen = re.fullmatch(r"(\S+)\s+-\s+(\S+)", part)
    if hyphen:
        low, high = (_partial(side, whole) for side in hyphen.groups())
        upper = Comparator("<=", high[0]) if high[1] == 3 else Comparator("<", _bump(high[0], high[1] - 1))
        lower = (Comparator(">=", low[0]),) if low[1] else ()
        return lower if high[1] == 0 else (*lower, upper)
    found: list[Comparator] = []
    for word in _OPERATOR.sub(r"\1", part.replace(",", " ")).split():
        operator = _OPERATOR.match(word)
        name = operator.group(1) if operator else ""
        version, given = _partial(word[len(name) :], whole)
        found += _bounds(name, version, given)
    return tuple(found)


def _bounds(operator: str, version: Version, given: int) -> list[Comparator]:
    """Return the comparators of one word; `given` is how many of major, minor, patch were written."""
    if given == 0:
        return [Comparator("<", Version(0, 0, 0, "0"))] if operator in ("<", ">") else []
    if operator == "^":
        leading = next((i for i, n in enumerate(version.to_tuple()[:3]) if n), given - 1)
        return [Comparator(">=", version), Comparator("<", _bump(version, min(leading, given - 1)))]
    if operator in ("~", "~>"):
        return [Comparator(">=", version), Comparator("<", _bump(version, min(1, given - 1)))]
    if given == 3:
        return [Comparator(operator or "=", version)]
    above = _bump(version, given - 1)
    return {
        "": [Comparator(">=", version), Comparator("<", above)],
        "=": [Comparator(">=", version), Comparator("<", above)],
        ">": [Comparator(">=", above.replace(prerelease=None))],
        ">=": [Comparator(">=", version)],
        "<": [Comparator("<", version.replace(prerelease="0"))],
        "<=": [Comparator("<", above)],
    }[operator]


def _bump(version: Version, position: int) -> Version:
    """Return the lowest version above all that agree with `version` up to `position`, pre-releases included."""
    major, minor, patch = version.to_tuple()[:3]
    bumped = ((major + 1, 0, 0), (major, minor + 1, 0), (major, minor, patch + 1))[position]
    return Version(*bumped, prerelease="0")


def _partial(text: str, whole: str) -> tuple[Version, int]:
    match = _PARTIAL.fullmatch(text)
    if match is None:
        try:
            return parse_version(text), 3
        except VersionError:
            raise VersionError(
                f"{text!r} in {whole!r} is not a version; ranges are written as ^1.2, ~1.2, >=1.20 <2"
            ) from None
    numbers: list[int] = []
    for name in ("major", "minor", "patch"):
        if match[name] is None or not match[name].isdigit():
            break
        numbers.append(int(match[name]))
    given = len(numbers)
    if given == 3:
        return parse_version(text), 3
    return Version(*numbers, *[0] * (3 - given)), given
