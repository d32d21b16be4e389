"""Downloading: a file from the network, taken up again where it broke off. The only network code there is."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from regard.data.reading import printable
from regard.errors import DataError, message

__all__ = ["download"]

TIMEOUT = 30.0
ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt; twice as long before each one after it."""

BLOCK = 1 << 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def download(url: str, path: Path, most: int, reached: Callable[[int], None]) -> None:
    """Bring a file here, whole or not at all; what was loaded before in `path`.part is not loaded again.

    most: no more bytes than this are taken. reached: told how many there are by now. A part is taken up
    again only if the server says that the file is still the same (If-Range).
    """
    _check_address(url)
    part = path.with_name(f"{path.name}.part")
    for attempt in range(ATTEMPTS):
        try:
            if attempt:
                time.sleep(PAUSE * 2 ** (attempt - 1))
            _take_up(url, part, most, reached)
            break
        except urllib.error.HTTPError as error:
            with error:
                problem = f"the server answers {error.code} {printable(str(error.reason))}"
            if error.code not in (408, 416, 429) and error.code < 500:
                raise DataError(message(url, problem, hint="the address may have changed")) from None
            if error.code == 416:
                _forget(part)
        except (OSError, http.client.HTTPException) as error:
            problem = printable(str(getattr(error, "reason", None) or error) or type(error).__name__)
    else:
        hint = (
            "what was loaded is kept: call again to go on; or give a folder that has the file, with source="
        )
        raise DataError(message(url, f"cannot be fetched, after {ATTEMPTS} attempts: {problem}", hint=hint))
    os.replace(part, path)
    _forget(part)


def _take_up(url: str, part: Path, most: int, reached: Callable[[int], None]) -> None:
    """One attempt: ask for what is missing and add it, or for all where the server cannot go on."""
    have, same = _known(part)
    headers = {"User-Agent": "regard", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": same}
    with _opener(url).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
            _remember(part, answer.headers)
        length = answer.headers.get("Content-Length", "")
        whole = have + int(length) if length.isdecimal() else None
        with open(part, "ab" if have else "wb") as file:
            have = _pour(answer, file, have, whole, most, reached, url)
    if whole is not None and have < whole:
        raise OSError(f"the connection broke off after {have:,} of {whole:,} bytes")


def _pour(
    answer: IO[bytes],
    file: IO[bytes],
    have: int,
    whole: int | None,
    most: int,
    reached: Callable[[int], None],
    url: str,
) -> int:
    if whole is None or whole <= most:
        while data := answer.read(BLOCK):
            have += len(data)
            if have > most:
                break
            file.write(data)
            reached(have)
        else:
            return have
    Path(file.name).unlink()
    raise DataError(message(url, f"over {most:,} bytes, which is more than this file should have"))


def _known(part: Path) -> tuple[int, str]:
    """How many bytes there are of a part, and the tag of the file; none where the server gave no tag."""
    try:
        return part.stat().st_size, _tag(part).read_text(encoding="latin-1")
    except FileNotFoundError:
        return 0, ""


def _remember(part: Path, headers: Any) -> None:
    same = headers.get("ETag") or headers.get("Last-Modified")
    _forget(part)
    # A weak tag ("W/...") does not promise the same bytes.
    if same and not same.startswith("W/"):
        _tag(part).write_text(same, encoding="latin-1", errors="replace")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag(part).unlink(missing_ok=True)


def _tag(part: Path) -> Path:
    return part.with_name(f"{part.name}-tag")


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return
    raise DataError(message(printable(url), "this address is not taken", expected="https://..."))


class _SafeRedirect(urllib.request.HTTPRedirectHandler):
    """Follows a server elsewhere only where we would have gone ourselves."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_SafeRedirect()]
    if urllib.parse.urlsplit(url).hostname in LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)
