from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import UsageError
from modeld.library.refs import HubRef, LocalRef, PackageRef, Ref, parse


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("/m/x.gguf", LocalRef(Path("/m/x.gguf"))),
        ("./x", LocalRef(Path("x"))),
        ("../x", LocalRef(Path("../x"))),
        ("x.gguf", LocalRef(Path("x.gguf"))),
        ("a/b.gguf", LocalRef(Path("a/b.gguf"))),
        ("a/b/c.gguf", LocalRef(Path("a/b/c.gguf"))),
        ("file:///m/a%20b.gguf", LocalRef(Path("/m/a b.gguf"))),
        ("file://localhost/m", LocalRef(Path("/m"))),
        ("org/repo", HubRef("org/repo")),
        ("org/repo:*Q4_K_M.gguf", HubRef("org/repo", "*Q4_K_M.gguf")),
        ("org/repo.v2:sub/*.gguf", HubRef("org/repo.v2", "sub/*.gguf")),
        ("pypi:A_b.c==1.0.post1+x/p/m.gguf", PackageRef("a-b-c", "1.0.post1+x", "p/m.gguf")),
    ],
)
def test_forms(text: str, ref: Ref) -> None:
    """Each form of reference is read as what it is."""
    assert parse(text, None) == ref


def test_paths_follow_the_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths are taken from the base; something that exists there is no hub repository."""
    (tmp_path / "org" / "repo").mkdir(parents=True)
    assert parse("./m", tmp_path) == LocalRef(tmp_path / "m")
    assert parse("m.gguf", tmp_path) == LocalRef(tmp_path / "m.gguf")
    assert parse("org/repo", tmp_path) == LocalRef(tmp_path / "org/repo")
    assert parse("org/other", tmp_path) == HubRef("org/other")
    monkeypatch.setenv("HOME", "/home/u")
    assert parse("~/m", tmp_path) == LocalRef(Path("/home/u/m"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("llama3", "names no model"),
        ("a/b/c", "names no model"),
        ("https://user:secret@host/x.gguf", "addresses are not read"),
        ("file://host/x", "expected file:///"),
        ("file:///%00", "expected file:///"),
        ("file:///%ff", "expected file:///"),
        ("file://", "expected file:///"),
        ("x\0y", "control characters"),
        ("x\n.gguf", "control characters"),
        ("\ud800.gguf", "control characters"),
        ("x" * 5000, "at most 4096"),
        ("org/repo:", "after the colon"),
        ("org/repo:../x", "after the colon"),
        ("org/repo:/etc/passwd", "after the colon"),
        ("pypi:p/m", "one exact version"),
        ("pypi:p==/m", "one exact version"),
        ("pypi:p==1.*/m", "one exact version"),
        ("pypi:p>=1/m", "not a package name"),
        ("pypi:-p==1/m", "not a package name"),
        ("pypi:--index-url==1/m", "not a package name"),
        ("pypi:p[x]==1/m", "not a package name"),
        ("pypi:p @ file==1/m", "not a package name"),
        ("pypi:ｐ==1/m", "not a package name"),
        ("pypi:p==1", "is missing"),
        ("pypi:p==1/", "is missing"),
        ("pypi:p==1//m", "not a plain path"),
        ("pypi:p==1/../m", "not a plain path"),
        ("pypi:p==1/a/../../m", "not a plain path"),
        ("pypi:p==1/a/./m", "not a plain path"),
        ("pypi:p==1/.m.lock", "not a plain path"),
        ("pypi:p==1/a\\m", "not a plain path"),
        ("pypi:p==1/" + "x" * 201, "over 200 bytes"),
        ("~no-such-user-here/x", "home directory"),
    ],
)  # fmt: skip
def test_hostile_input_is_refused(text: str, words: str) -> None:
    """What is no reference is refused in words, with the form wanted, and without repeating a password."""
    with pytest.raises(UsageError, match=words) as caught:
        parse(text, None)
    assert "secret" not in str(caught.value)


NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,10}\Z")
REFERENCES = st.one_of(
    st.text(max_size=40),
    st.builds("{}/{}".format, NAMES, NAMES),
    st.builds("{}/{}:{}".format, NAMES, NAMES, st.text(max_size=10)),
    st.builds("pypi:{}=={}/{}".format, NAMES, NAMES, st.text(alphabet="ab./\\-_é ", max_size=12)),
    st.builds("{}{}".format, st.sampled_from(["./", "../", "/", "//", "file:///"]), st.text(max_size=20)),
)


@given(REFERENCES)
def test_a_reference_is_read_the_same_from_its_own_text(text: str) -> None:
    """parse(str(parse(x))) is parse(x); nothing but UsageError is ever raised."""
    try:
        ref = parse(text, None)
    except UsageError:
        return
    assert parse(str(ref), None) == ref


@given(st.builds("pypi:{}=={}/{}".format, NAMES, NAMES, st.text(alphabet="ab./\\", max_size=12)))
def test_a_member_never_leaves_its_folder(text: str) -> None:
    """Joined to a folder, the member of every accepted reference lies inside that folder."""
    try:
        ref = parse(text, None)
    except UsageError:
        return
    assert isinstance(ref, PackageRef)
    folder = Path("/cache") / ref.package / ref.version
    inside = Path("/cache").joinpath(ref.package, ref.version, ref.member)
    assert inside.is_relative_to(folder)
    assert ".." not in inside.parts
