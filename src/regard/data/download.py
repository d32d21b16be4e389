"""Download a file, resuming interrupted downloads. This is the only network code in the package."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from regard.errors import DataError, message, printable
from regard.files.atomic_io import naming_file, write_all

__all__ = ["download"]

TIMEOUT = 30.0
"""Seconds to wait for data from the server before an attempt to download a file fails."""

ATTEMPTS = 5
PAUSE = 1.0
"""Seconds to wait before the second attempt to download a file; doubled before each further attempt."""

LIMIT = 3600.0
"""Maximum duration of a download in seconds, all attempts together."""

BLOCK = 1 << 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")
RESUME = "call again to resume the partial download, or use source= with a folder that has the file"


def download(url: str, path: Path, most: int, reached: Callable[[int], None]) -> None:
    """Download a file to `path`. If the partial file `path`.part exists, resume its download.

    most: maximum size of the file in bytes.
    reached: function that is called with the number of bytes downloaded so far.

    `path` is created only when the download is complete. A download is resumed only if the server confirms
    that the file has not changed (If-Range). Raises DataError after LIMIT seconds, even if the server is
    still sending.
    """
    _check_address(url)
    part = path.with_name(f"{path.name}.part")
    clock = _Clock(url, LIMIT)
    for attempt in range(ATTEMPTS):
        try:
            if attempt:
                time.sleep(min(PAUSE * 2 ** (attempt - 1), max(clock.left(), 0)))
            clock.check()
            _attempt(url, part, most, reached, clock)
            break
        except urllib.error.HTTPError as error:
            with error:
                problem = f"the server answers {error.code} {printable(str(error.reason))}"
            if error.code not in (408, 416, 429) and error.code < 500:
                raise DataError(message(url, problem, hint="check whether the URL has changed")) from None
            if error.code == 416:
                _remove(part)
        except (OSError, http.client.HTTPException) as error:
            clock.check()
            problem = printable(str(getattr(error, "reason", None) or error) or type(error).__name__)
    else:
        problem = f"cannot be downloaded after {ATTEMPTS} attempts: {problem}"
        raise DataError(message(url, problem, hint=RESUME))
    with naming_file(path):
        os.replace(part, path)
        _remove(part)


class _Clock:
    """The time limit of a download.

    url: the URL, for the error message.
    limit: the seconds from the creation of this object until the limit.
    """

    def __init__(self, url: str, limit: float):
        self.url, self.limit, self.end = url, limit, time.monotonic() + limit

    def left(self) -> float:
        """Return the seconds left until the limit; 0 or less if it has passed."""
        return self.end - time.monotonic()

    def check(self) -> None:
        """Raise DataError if the limit has passed."""
        if self.left() <= 0:
            problem = f"the download took over {self.limit:,.0f} seconds"
            raise DataError(message(self.url, problem, hint=RESUME))


def _attempt(url: str, part: Path, most: int, reached: Callable[[int], None], clock: _Clock) -> None:
    """Request the missing bytes of the partial file `part`, and append them to the file.

    If the server sends the whole file instead, delete the content of `part` and write the whole file.

    most: maximum size of the file in bytes.
    reached: function that is called with the number of bytes downloaded so far.
    clock: the time limit.
    """
    have, tag = _partial(part)
    headers = {"User-Agent": "regard", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    with _opener(url).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
            _restart(part, answer.headers)
        length = answer.headers.get("Content-Length", "")
        whole = have + int(length) if length.isdecimal() else None
        with naming_file(part):
            file = part.open("ab" if have else "wb", buffering=0)
        with file:
            have = _receive(answer, file, _Limits(have, whole, most), reached, clock)
    if whole is not None and have < whole:
        raise OSError(f"the connection was closed after {have:,} of {whole:,} bytes")


class _Limits(NamedTuple):
    """The sizes, in bytes, of a file that is being downloaded.

    have: number of bytes downloaded already.
    whole: size of the complete file, or None if unknown.
    most: maximum size allowed.
    """

    have: int
    whole: int | None
    most: int


def _receive(
    answer: Any, file: IO[bytes], limits: _Limits, reached: Callable[[int], None], clock: _Clock
) -> int:
    """Append the body of a response to a file, and return the size of the file in bytes.

    If the file becomes larger than limits.most, it is deleted, and DataError is raised.
    """
    have, whole, most = limits
    part = Path(file.name)
    if whole is None or whole <= most:
        while data := answer.read1(BLOCK):  # returns what has arrived, without waiting for a whole block
            clock.check()
            have += len(data)
            if have > most:
                break
            with naming_file(part):
                write_all(file.fileno(), data)
            reached(have)
        else:
            return have
    part.unlink()
    raise DataError(message(clock.url, f"the file has more than {most:,} bytes, the maximum"))


def _partial(part: Path) -> tuple[int, str]:
    """Return the size of a partial file in bytes and its saved ETag; (0, "") if either is missing."""
    try:
        return part.stat().st_size, _tag(part).read_text(encoding="latin-1")
    except FileNotFoundError:
        return 0, ""


def _restart(part: Path, headers: Any) -> None:
    """Delete the partial file `part`, and save the ETag of the new download in a file next to it.

    headers: the headers of the response. If there is no ETag, the header Last-Modified is saved instead.
    """
    tag = headers.get("ETag") or headers.get("Last-Modified")
    with naming_file(part):
        _remove(part)
    # A weak ETag ("W/...") does not guarantee the same bytes. So it is not saved, and the download is never
    # resumed.
    if tag and not tag.startswith("W/"):
        with naming_file(_tag(part)):
            _tag(part).write_text(tag, encoding="latin-1", errors="replace")


def _remove(part: Path) -> None:
    """Delete the partial file `part` and the file with its ETag."""
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}-tag")


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return
    raise DataError(
        message(printable(url), "this URL is not allowed: it is not https", expected="https://...")
    )


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only if _check_address() allows its URL."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        fp.close()  # otherwise urllib would read the whole body of the redirect, however long or slow it is
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_SafeRedirect()]
    if urllib.parse.urlsplit(url).hostname in LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)
