"""The hub, by way of huggingface-hub, which nothing else imports: a repository's files, and the bytes of one.

The usual variables hold: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE. What is in the last
is taken from there, and nothing is written there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status

from modeld.library.fetch import without_credentials
from modeld.library.pull import shared
from modeld.library.pull.transfer import Passing
from modeld.library.wheel import Refused

_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers that another try may better."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file at the hub. `etag`: its sha256 (64 digits), or git's sha1 of it (40); None where not told."""

    name: str
    size: int | None
    etag: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]


def endpoint() -> str:
    """Return the hub's address, without a password."""
    return without_credentials(constants.ENDPOINT)


def shared_cache() -> Path:
    """Return the folder that other programs pull into."""
    return Path(constants.HF_HUB_CACHE)


def kept(repo: str) -> Listing | None:
    """Return what other programs have pulled of a repository, for when the hub cannot be asked."""
    found = shared.files(shared_cache(), repo)
    if found is None:
        return None
    commit, files = found
    return Listing(repo, commit, tuple(HubFile(name, *files[name]) for name in sorted(files)))


def listing(repo: str, stall: float) -> Listing:
    """Ask which files there are; an answer may take `stall` seconds. Raises Passing or Refused."""
    with _explained(repo):
        info = HfApi().model_info(repo, files_metadata=True, timeout=stall)
    commit = info.sha or ""
    if not _COMMIT.fullmatch(commit):
        raise Refused(f"{repo}: {endpoint()} names no commit; it does not speak the hub's protocol")
    files = []
    for each in info.siblings or ():
        etag = each.lfs.sha256 if each.lfs else each.blob_id
        files.append(HubFile(each.rfilename, each.size, etag if etag and _ETAG.fullmatch(etag) else None))
    return Listing(repo, commit, tuple(files))


def completed(at: Listing, file: HubFile, stall: float) -> HubFile:
    """Return the file with its size and checksum, which are asked for when the listing had none.

    Raises Passing, or Refused where there is no checksum to check by.
    """
    if file.size is not None and file.etag:
        return file
    with _explained(at.repo):
        told = get_hf_file_metadata(hf_hub_url(at.repo, file.name, revision=at.commit), timeout=stall)
    if told.size is None or not told.etag or not _ETAG.fullmatch(told.etag):
        raise Refused(
            f"{at.repo}: {endpoint()} tells no size or no checksum of {file.name}; use another mirror"
        )
    return HubFile(file.name, told.size, told.etag)


@contextmanager
def opened(at: Listing, file: HubFile, start: int, stall: float) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Open a file from byte `start` on; gives where the bytes do begin (`start`, or 0), and them.

    Raises Passing (also while reading: after `stall` seconds without a byte) or Refused.
    """
    headers = build_hf_headers() | {"accept-encoding": "identity"}
    if start:
        headers["range"] = f"bytes={start}-"
    url = hf_hub_url(at.repo, file.name, revision=at.commit)
    with (
        _explained(at.repo, file.name),
        get_session().stream("GET", url, headers=headers, timeout=stall, follow_redirects=True) as answer,
    ):
        if answer.status_code == 416:
            # What is there is not what we have a part of: from the beginning.
            yield 0, iter(())
            return
        hf_raise_for_status(answer)
        begins = _begins(answer, start, file)
        yield begins, answer.iter_raw()


def _begins(answer: httpx2.Response, start: int, file: HubFile) -> int:
    if answer.status_code != 206:
        return 0
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("content-range", ""))
    if not told or int(told[1]) != start or told[2] not in ("*", str(file.size)):
        raise Passing(f"asked for {file.name} from byte {start} on, it sent another part")
    return start


@contextmanager
def _explained(repo: str, file: str | None = None) -> Iterator[None]:
    what = f"{repo} cannot be pulled"
    try:
        yield
    except OfflineModeIsEnabled:
        raise Refused(
            f"{what}: HF_HUB_OFFLINE is set and it is not on this disk; unset it for the daemon, "
            "or pull the model once where there is a network"
        ) from None
    except GatedRepoError:
        raise Refused(
            f"{what}: its authors give it to whom they know; accept their terms at {endpoint()}/{repo} and "
            f"set HF_TOKEN for the daemon{' (the one that it has was not enough)' if get_token() else ''}"
        ) from None
    except DisabledRepoError:
        raise Refused(f"{what}: {endpoint()} has closed this repository") from None
    except RepositoryNotFoundError:
        raise Refused(_unknown(what, repo)) from None
    except HfHubHTTPError as error:
        raise _refusal(what, repo, file, error) from None
    except httpx2.TimeoutException:
        raise Passing(f"{endpoint()} fell silent") from None
    except (httpx2.RemoteProtocolError, httpx2.ReadError) as error:
        raise Passing(f"{endpoint()} broke off: {_words(error)}") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, ConnectionError) as error:
        raise Passing(f"{endpoint()} does not answer: {_words(error)}", unreached=True) from None


def _refusal(what: str, repo: str, file: str | None, error: HfHubHTTPError) -> Exception:
    status = error.response.status_code
    if status in _PASSING:
        asked = error.response.headers.get("retry-after", "")
        return Passing(f"{endpoint()} answers {status}", float(asked) if asked.isdecimal() else 0.0)
    if status == 404 and file:
        return Refused(f"{what}: {file} is not there any more; pull it again", permanent=False)
    if status in (401, 404):
        return Refused(_unknown(what, repo))
    if status == 403:
        return Refused(
            f"{what}: {endpoint()} forbids it (403); give the daemon an HF_TOKEN that may read {repo}"
        )
    return Refused(f"{what}: {endpoint()} answers {status}")


def _unknown(what: str, repo: str) -> str:
    fix = "if it is private, set HF_TOKEN for the daemon"
    if get_token():
        fix = "the daemon's HF_TOKEN may not read it"
    return f"{what}: {endpoint()} has no repository {repo} for us; check the name, and {fix}"


def _words(error: Exception) -> str:
    return without_credentials(str(error) or type(error).__name__).splitlines()[0][:200]
