"""Archives that nobody vouches for: what is in them comes out, and nothing gets out of the directory."""

import io
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.data.archive import unpack
from predictors.data.meter import Meter
from predictors.errors import AssetRefusedError, CancelledError

FILES = {"labels.csv": b"file,label\n", "images/1.jpg": b"one" * 1000, "images/deep/2.jpg": b"two" * 1000}


def tar_member(
    name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> Callable[[tarfile.TarFile], None]:
    def add(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, len(content)
        tar.addfile(member, io.BytesIO(content))

    return add


def tar_bytes(*members: Callable[[tarfile.TarFile], None], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        for add in members:
            add(tar)
    return buffer.getvalue()


def zip_bytes(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in members:
            zipped.writestr(name, content)
    return buffer.getvalue()


def unpacked(
    tmp_path: Path, content: bytes, *, max_bytes: int = 10**7, max_members: int = 100, meter: Meter | None = None
) -> Path:
    archive, directory = tmp_path / "archive", tmp_path / "inner" / "directory"
    archive.write_bytes(content)
    directory.mkdir(parents=True)
    meter = meter or Meter("a")
    unpack(archive, directory, name="a.tar", max_bytes=max_bytes, max_members=max_members, meter=meter)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


ARCHIVES = {
    **{mode: tar_bytes(*(tar_member(*item) for item in FILES.items()), mode=mode) for mode in ("w", "w:gz", "w:xz")},
    "zip": zip_bytes(*FILES.items()),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_what_is_packed_comes_out(tmp_path: Path, kind: str) -> None:
    """Each format gives its files, whatever the archive is called."""
    assert contents(unpacked(tmp_path, ARCHIVES[kind])) == FILES


def test_links_inside_become_files(tmp_path: Path) -> None:
    """A link to a file of the archive is that file's content, in whatever order they come, and no link on disk."""
    directory = unpacked(
        tmp_path,
        tar_bytes(
            tar_member("b/soft", kind=tarfile.SYMTYPE, link="../a/file"),
            tar_member("chain", kind=tarfile.SYMTYPE, link="b/soft"),
            tar_member("a/file", b"content"),
            tar_member("hard", kind=tarfile.LNKTYPE, link="a/file"),
        ),
    )
    assert contents(directory) == dict.fromkeys(("a/file", "b/soft", "chain", "hard"), b"content")
    assert not any(path.is_symlink() for path in directory.rglob("*"))


def test_the_later_of_two_members_counts_and_leaves_its_links_alone(tmp_path: Path) -> None:
    """An archive that was appended to gives the newest content."""
    directory = unpacked(tmp_path, tar_bytes(tar_member("a", b"old"), tar_member("a", b"new")))
    assert contents(directory) == {"a": b"new"}


def _zip_link() -> bytes:
    link = zipfile.ZipInfo("link")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return zip_bytes((link, b"/etc/passwd"))


def _encrypted() -> bytes:
    content = bytearray(zip_bytes(("a", b"x")))
    content[6] |= 1  # the flag in the local header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    return bytes(content)


HOSTILE = {
    "absolute": (tar_bytes(tar_member("/tmp/evil", b"x")), "absolute"),
    "dots": (tar_bytes(tar_member("../evil", b"x")), "'..'"),
    "dots inside": (tar_bytes(tar_member("a/../../evil", b"x")), "'..'"),
    "symlink out": (tar_bytes(tar_member("l", kind=tarfile.SYMTYPE, link="../../evil")), "'..'"),
    "symlink absolute": (tar_bytes(tar_member("l", kind=tarfile.SYMTYPE, link="/etc/passwd")), "absolute"),
    "hardlink out": (tar_bytes(tar_member("l", kind=tarfile.LNKTYPE, link="../evil")), "'..'"),
    "through a link": (
        tar_bytes(tar_member("d", kind=tarfile.SYMTYPE, link="."), tar_member("d/../../evil", b"x")),
        "'..'",
    ),
    "link to a directory": (
        tar_bytes(tar_member("d", kind=tarfile.DIRTYPE), tar_member("l", kind=tarfile.SYMTYPE, link="d")),
        "no file of it",
    ),
    "link to itself": (
        tar_bytes(tar_member("l", b"x"), tar_member("l", kind=tarfile.SYMTYPE, link="l")),
        "no file of it",
    ),
    "links in a ring": (
        tar_bytes(tar_member("a", kind=tarfile.SYMTYPE, link="b"), tar_member("b", kind=tarfile.SYMTYPE, link="a")),
        "no file of it",
    ),
    "device": (tar_bytes(tar_member("null", kind=tarfile.CHRTYPE)), "neither file nor directory"),
    "pipe": (tar_bytes(tar_member("pipe", kind=tarfile.FIFOTYPE)), "neither file nor directory"),
    "file as directory": (tar_bytes(tar_member("a", b"x"), tar_member("a/b", b"x")), "beside each other"),
    "the directory itself": (tar_bytes(tar_member(".", b"x")), "beside each other"),
    "long name": (tar_bytes(tar_member("n" * 300, b"x")), "beside each other"),
    "zip dots": (zip_bytes(("../evil", b"x")), "'..'"),
    "zip absolute": (zip_bytes(("/evil", b"x")), "absolute"),
    "zip backslash": (zip_bytes(("..\\evil", b"x")), "backslash"),
    "zip symlink": (_zip_link(), "neither file nor directory"),
    "zip encrypted": (_encrypted(), "encrypted"),
    "no archive": (b"<html>not found</html>", "not a readable archive"),
    "empty": (b"", "not a readable archive"),
    "cut tar.gz": (ARCHIVES["w:gz"][:-40], "not a readable archive"),
    "cut tar": (ARCHIVES["w"][:2000], "not a readable archive"),
    "cut zip": (ARCHIVES["zip"][:-40], "not a readable archive"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path: Path, kind: str) -> None:
    """Each way out of the directory, and each damage, is refused by name; nothing appears beside the directory."""
    content, why = HOSTILE[kind]
    with pytest.raises(AssetRefusedError, match=why) as caught:
        unpacked(tmp_path, content)
    assert "a.tar" in caught.value.message
    assert sorted(os.listdir(tmp_path)) == ["archive", "inner"]
    assert os.listdir(tmp_path / "inner") == ["directory"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


@pytest.mark.parametrize("pack", ["w:gz", "w:xz", "zip"])
def test_a_decompression_bomb_is_refused_before_it_is_written(tmp_path: Path, pack: str) -> None:
    """A few kilobytes that unpack to more than the limit are refused, and the limit is not written either."""
    zeros = bytes(20_000_000)
    content = zip_bytes(("z", zeros)) if pack == "zip" else tar_bytes(tar_member("z", zeros), mode=pack)
    assert len(content) < 100_000
    with pytest.raises(AssetRefusedError, match="more than 1000000 bytes"):
        unpacked(tmp_path, content, max_bytes=1_000_000)
    assert sum(map(len, contents(tmp_path / "inner").values())) == 0


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    """An archive of countless empty files is refused at the limit."""
    with pytest.raises(AssetRefusedError, match="more than 10 members"):
        unpacked(tmp_path, tar_bytes(*(tar_member(str(i)) for i in range(11))), max_members=10)


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """A tar header of any size is read in one piece by the library, so a large one is refused."""
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2**33
    with pytest.raises(AssetRefusedError, match="header of"):
        unpacked(tmp_path, header.tobuf(tarfile.GNU_FORMAT) + bytes(2048))


def test_unpacking_can_be_cancelled(tmp_path: Path) -> None:
    """It is asked at every member whether the result is still wanted."""
    asked = iter([False, True])
    with pytest.raises(CancelledError):
        unpacked(tmp_path, ARCHIVES["w"], meter=Meter("a", cancelled=lambda: next(asked)))


@given(st.sampled_from(sorted(ARCHIVES)), st.data())
@settings(max_examples=150, deadline=None)
def test_damage_is_refused_or_harmless(kind: str, data: st.DataObject) -> None:
    """Whatever bytes of an archive are changed, it unpacks inside its directory or is refused: nothing else."""
    content = bytearray(ARCHIVES[kind])
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as directory:
        with suppress(AssetRefusedError):
            unpacked(Path(directory), bytes(content))
        assert sorted(os.listdir(directory)) == ["archive", "inner"]
        assert os.listdir(f"{directory}/inner") == ["directory"]
