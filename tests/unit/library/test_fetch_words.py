from __future__ import annotations

import pytest

from modeld.library.fetch import announced, explained, without_credentials

COLLECTING = "Collecting m==1\n  Downloading m-1-py3-none-any.whl.metadata (2.6 kB)\n"


@pytest.mark.parametrize(
    ("output", "size"),
    [
        ("", None),
        (COLLECTING, None),
        (COLLECTING + "  Downloading m-1-py3-none-any.whl (92.9 MB)\n", 92_900_000),
        ("Downloading m-1-py3-none-any.whl (812 bytes)", 812),
        ("Downloading m-1-py3-none-any.whl (14 kB)", 14_000),
    ],
)
def test_the_announced_size_is_the_wheels(output: str, size: int | None) -> None:
    """The size is taken from the wheel's own line, not from that of its metadata."""
    assert announced(output) == size


NONE_FOUND = "ERROR: Could not find a version that satisfies the requirement m==1 (from versions: none)\n"
RETRYING = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/m/\n"
)


@pytest.mark.parametrize(
    ("output", "words", "permanent"),
    [
        (NONE_FOUND + "ERROR: No matching distribution found for m==1\n", "no such version", True),
        (RETRYING + NONE_FOUND, "does not answer", False),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "full",
            True,
        ),
        ("ERROR: HTTP error 503\nERROR: 503 Server Error: busy", "does not answer", False),
        ("something\nodd at the end\n", "pip says: odd at the end", False),
        ("", "pip says: nothing", False),
    ],
)
def test_pips_failures_in_a_sentence(output: str, words: str, permanent: bool) -> None:
    """The sentence names the package and the cause, and only what trying again may cure is not permanent."""
    message, lasting = explained("m==1", output)
    assert message.startswith("m==1 cannot be fetched")
    assert words in message
    assert lasting is permanent


def test_credentials_of_an_index_never_show() -> None:
    """User, password and query of every address are left out."""
    text = "see https://user:pa:ss@host/simple/m/?token=t and http://tok@h: no"
    assert without_credentials(text) == "see https://host/simple/m/ and http://h: no"
    output = "ERROR: 403 Client Error: no for url: https://u:secret@h/x.whl?sig=secret"
    assert "secret" not in explained("m==1", output)[0]
