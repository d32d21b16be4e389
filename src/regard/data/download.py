"""Downloading: a file from the network, taken up again where it broke off. The only network code there is."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
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
ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt; twice as long before each one after it."""

LIMIT = 3600.0
"""Seconds that a download may take in all, with all its attempts."""

BLOCK = 1 << 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")
KEPT = "what was loaded is kept: call again to go on; or give a folder that has the file, with source="


def download(url: str, path: Path, most: int, reached: Callable[[int], None]) -> None:
    """Bring a file here, whole or not at all; what was loaded before in `path`.part is not loaded again.

    most: no more bytes than this are taken. reached: told how many there are by now. A part is taken up
    again only if the server says that the file is still the same (If-Range). After LIMIT seconds it ends
    with an error, however slowly the server sends.
    """
    _check_address(url)
    part = path.with_name(f"{path.name}.part")
    clock = _Clock(url, LIMIT)
    for attempt in range(ATTEMPTS):
        try:
            if attempt:
                time.sleep(min(PAUSE * 2 ** (attempt - 1), max(clock.left(), 0)))
            clock.check()
            _take_up(url, part, most, reached, clock)
            break
        except urllib.error.HTTPError as error:
            with error:
                problem = f"the server answers {error.code} {printable(str(error.reason))}"
            if error.code not in (408, 416, 429) and error.code < 500:
                raise DataError(message(url, problem, hint="the address may have changed")) from None
            if error.code == 416:
                _forget(part)
        except (OSError, http.client.HTTPException) as error:
            clock.check()
            problem = printable(str(getattr(error, "reason", None) or error) or type(error).__name__)
    else:
        problem = f"cannot be fetched, after {ATTEMPTS} attempts: {problem}"
        raise DataError(message(url, problem, hint=KEPT))
    with naming_file(path):
        os.replace(part, path)
        _forget(part)


class _Clock:
    """The time that is left for a download."""

    def __init__(self, url: str, limit: float):
        self.url, self.limit, self.end = url, limit, time.monotonic() + limit

    def left(self) -> float:
        """Seconds until the limit; 0 or less after it."""
        return self.end - time.monotonic()

    def check(self) -> None:
        """Raise when the time is over."""
        if self.left() <= 0:
            problem = f"the download took over {self.limit:,.0f} seconds"
            raise DataError(message(self.url, problem, hint=KEPT))


def _take_up(url: str, part: Path, most: int, reached: Callable[[int], None], clock: _Clock) -> None:
    """One attempt: ask for what is missing and add it, or for all where the server cannot go on."""
    have, same = _known(part)
    headers = {"User-Agent": "regard", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": same}
    with _opener(url, clock).open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as answer:
        clock.check()  # headers that were cut look like headers that ended
        if answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0
            _remember(part, answer.headers)
        length = answer.headers.get("Content-Length", "")
        whole = have + int(length) if length.isdecimal() else None
        with naming_file(part):
            file = part.open("ab" if have else "wb", buffering=0)
        with file:
            have = _pour(answer, file, _Limits(have, whole, most), reached, clock)
    if whole is not None and have < whole:
        raise OSError(f"the connection broke off after {have:,} of {whole:,} bytes")


class _Limits(NamedTuple):
    """Bytes: those that are there already, those of the whole file where known, the most that are taken."""

    have: int
    whole: int | None
    most: int


def _pour(
    answer: Any, file: IO[bytes], limits: _Limits, reached: Callable[[int], None], clock: _Clock
) -> int:
    have, whole, most = limits
    part = Path(file.name)
    if whole is None or whole <= most:
        while data := answer.read1(BLOCK):  # what has arrived, without waiting for a whole block
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
    raise DataError(message(clock.url, f"over {most:,} bytes, which is more than this file should have"))


def _known(part: Path) -> tuple[int, str]:
    """How many bytes there are of a part, and the tag of the file; none where the server gave no tag."""
    try:
        return part.stat().st_size, _tag(part).read_text(encoding="latin-1")
    except FileNotFoundError:
        return 0, ""


def _remember(part: Path, headers: Any) -> None:
    same = headers.get("ETag") or headers.get("Last-Modified")
    with naming_file(part):
        _forget(part)
    # A weak tag ("W/...") does not promise the same bytes.
    if same and not same.startswith("W/"):
        with naming_file(_tag(part)):
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
        fp.close()  # otherwise the body would be read to its end, however long or slow it is
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _LimitedHTTP(urllib.request.HTTPHandler):
    """Opens an address; a connection whose headers have not arrived in time is cut."""

    def __init__(self, clock: _Clock):
        super().__init__()
        self.clock = clock

    def http_open(self, req: urllib.request.Request) -> Any:
        return _cut_after(self.clock, lambda kind: self.do_open(kind, req), http.client.HTTPConnection)


class _LimitedHTTPS(urllib.request.HTTPSHandler):
    """The same over TLS."""

    def __init__(self, clock: _Clock):
        super().__init__()
        self.clock = clock

    def https_open(self, req: urllib.request.Request) -> Any:
        return _cut_after(self.clock, lambda kind: self.do_open(kind, req), http.client.HTTPSConnection)


def _cut_after(clock: _Clock, open_: Callable[[Any], Any], kind: type[http.client.HTTPConnection]) -> Any:
    """Open a connection; when the time of the clock is over before the headers have arrived, shut it down."""
    made: list[http.client.HTTPConnection] = []

    def connection(*arguments: Any, **options: Any) -> http.client.HTTPConnection:
        made.append(kind(*arguments, **options))
        return made[-1]

    def cut() -> None:
        for each in made:
            if each.sock is not None:
                with contextlib.suppress(OSError):
                    each.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(clock.left(), 0), cut)
    timer.daemon = True
    timer.start()
    try:
        return open_(connection)
    finally:
        timer.cancel()


def _opener(url: str, clock: _Clock) -> urllib.request.OpenerDirector:
    handlers: list[Any] = [_SafeRedirect(), _LimitedHTTP(clock), _LimitedHTTPS(clock)]
    if urllib.parse.urlsplit(url).hostname in LOOPBACK:
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)
