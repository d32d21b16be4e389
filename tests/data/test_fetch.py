"""Public datasets are downloaded completely and verified, or not at all; the tests use a local server."""

from __future__ import annotations

import gzip
import hashlib
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regard.data import fetch as fetching
from regard.data.fetch import SETS, Piece, PublicSet, download, fetch
from regard.errors import DataError, UnknownName
from tests.facts import facts

TEXT = "".join(f"sentence {i}\t문장 {i}\tCC BY\n" for i in range(5000)).encode()


class Server:
    """A file server that can simulate failures and records the requests it gets."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cut = 0
        self.cuts = 0
        self.status = 200
        self.elsewhere = ""
        self.length = True


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Server = self.server.settings
        server.requests.append(self.path)
        if server.elsewhere or server.status != 200:
            self.send_response(302 if server.elsewhere else server.status)
            self.send_header("Location", server.elsewhere)
            self.end_headers()
            return
        data = server.files[self.path]
        self.send_response(200)
        if server.length:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if server.cuts:
            server.cuts, data = server.cuts - 1, data[: server.cut]
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.settings = settings = Server()
        settings.address = f"http://127.0.0.1:{running.server_address[1]}"
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield settings
        running.shutdown()
        thread.join()


def public(address: str, packed: str, member: str = "", editions: bool = False) -> PublicSet:
    piece = Piece("a.tsv", f"{address}/{packed}", len(TEXT), hashlib.sha256(TEXT).hexdigest(), member)
    return PublicSet(
        "a set", "[bold]free[/bold]", "nowhere", "family", (piece,), {"all": {"tsv": "a.tsv"}}, editions
    )


def zipped(**members: bytes) -> bytes:
    page = io.BytesIO()
    with zipfile.ZipFile(page, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_txt", ".txt"), data)
    return page.getvalue()


def left(folder: Path) -> set[str]:
    return {
        path.name for path in folder.rglob("*") if path.is_file() and not path.name.endswith("licence.txt")
    }


@pytest.mark.parametrize(
    "name, packed, member",
    [("a.tsv", TEXT, ""), ("a.gz", gzip.compress(TEXT), ""), ("a.zip", zipped(a_txt=TEXT, b=b"?"), "a.txt")],
    ids=["plain", "gzip", "zip"],  # not the bytes: gzip's hold the time, and workers must agree on names
)
def test_dataset_is_downloaded_unpacked_verified_and_read(
    server, tmp_path, monkeypatch, capsys, name, packed, member
):
    monkeypatch.setitem(SETS, "test", public(server.address, name, member))
    server.files[f"/{name}"] = packed
    fetched = fetch("test", tmp_path)
    assert (tmp_path / "family" / "a.tsv").read_bytes() == TEXT and left(tmp_path) == {"a.tsv"}
    assert len(fetched.pairs("all")) == 5000 and fetched.parts == ("all",)
    printed = capsys.readouterr()
    assert "[bold]free[/bold]" in printed.err and printed.out == ""
    assert "licence: [bold]free[/bold]" in (fetched.folder / "test.licence.txt").read_text()
    fetch("test", tmp_path)
    assert len(server.requests) == 1, "existing files are not downloaded again"
    with pytest.raises(UnknownName, match="'train'"):
        fetched.pairs("train")


def test_interrupted_download_is_repeated(server, tmp_path):
    server.files["/a"], server.cut, server.cuts = TEXT, 70_000, 2
    progress: list[int] = []
    download(f"{server.address}/a", tmp_path / "a", len(TEXT), progress.append)
    assert (tmp_path / "a").read_bytes() == TEXT and left(tmp_path) == {"a"}
    assert len(server.requests) == 3 and progress[-1] == len(TEXT)


def test_failed_download_leaves_no_file(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    server.files["/a"], server.cut, server.cuts = TEXT, 100_000, 1
    with pytest.raises(DataError, match=r"closed|IncompleteRead"):
        download(f"{server.address}/a", tmp_path / "a", len(TEXT), len_of_nothing)
    assert left(tmp_path) == set()


def len_of_nothing(_: int) -> None:
    """Ignore the progress."""


@pytest.mark.parametrize("length", [True, False])
def test_a_too_large_file_raises(server, tmp_path, length):
    server.files["/a"], server.length = TEXT, length
    with pytest.raises(DataError, match=facts(1_000)):
        download(f"{server.address}/a", tmp_path / "a", 1000, len_of_nothing)
    assert "a" not in left(tmp_path)


@pytest.mark.parametrize("status, attempts", [(404, 1), (403, 1), (503, 5), (429, 5)])
def test_error_has_the_http_status(server, tmp_path, status, attempts):
    server.status = status
    with pytest.raises(DataError, match=rf"\b{status}\b"):
        download(f"{server.address}/a", tmp_path / "a", 1000, len_of_nothing)
    assert len(server.requests) == attempts


def test_unreachable_server_raises(tmp_path, server, monkeypatch):
    monkeypatch.setattr(fetching, "ATTEMPTS", 2)
    with pytest.raises(DataError, match=facts("2 attempts", "hint", "source=")):
        download("http://127.0.0.1:1/a", tmp_path / "a", 1000, len_of_nothing)


@pytest.mark.parametrize("url", ["http://example.org/a", "file:///etc/hosts", "ftp://example.org/a", "a"])
def test_only_https_urls_and_redirects_are_allowed(server, tmp_path, url):
    with pytest.raises(DataError, match="allowed"):
        download(url, tmp_path / "a", 1000, len_of_nothing)
    if "/" in url:
        server.elsewhere = url
        with pytest.raises(DataError, match="allowed"):
            download(f"{server.address}/a", tmp_path / "a", 1000, len_of_nothing)
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    "served",
    [TEXT[:-1] + b"!", TEXT[:-1], gzip.compress(TEXT)[:-3], gzip.compress(TEXT + b"+")],
    ids=["altered", "short", "cut gzip", "longer gzip"],
)
def test_wrong_content_raises_and_leaves_no_file(server, tmp_path, monkeypatch, served):
    monkeypatch.setitem(SETS, "test", public(server.address, "a.gz"))
    server.files["/a.gz"] = served
    with pytest.raises(DataError, match=r"SHA-256|unpacked|[0-9,]+ b"):
        fetch("test", tmp_path, edition="any")
    assert left(tmp_path) == set()


def test_a_damaged_file_is_downloaded_again(server, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public(server.address, "a.gz"))
    server.files["/a.gz"] = gzip.compress(TEXT)
    (fetch("test", tmp_path).folder / "a.tsv").write_bytes(b"damaged")
    assert len(fetch("test", tmp_path).pairs("all")) == 5000


def test_another_edition_needs_edition_any(server, tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public(server.address, "a.zip", "a.txt", editions=True))
    server.files["/a.zip"] = zipped(a_txt=b"new\tedition\n")
    with pytest.raises(DataError, match=facts("hint", 'edition="any"')):
        fetch("test", tmp_path)
    assert left(tmp_path) == set()
    assert len(fetch("test", tmp_path, edition="any").pairs("all")) == 1
    requests = len(server.requests)
    fetch("test", tmp_path, edition="any")
    assert len(server.requests) == requests
    with pytest.raises(UnknownName, match="'new'"):
        fetch("test", tmp_path, edition="new")


def test_names_inside_an_archive_are_never_used(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public("https://example.org", "a.zip", "a.txt"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.zip").write_bytes(zipped(**{"..__..__evil_txt": b"evil", "a_txt": TEXT}))
    fetch("test", tmp_path / "into", source=source)
    assert left(tmp_path) == {"a.zip", "a.tsv"}
    (source / "a.zip").write_bytes(zipped(**{"..__a_txt": TEXT}))
    with pytest.raises(DataError, match=facts("'a.txt'", "../a.txt")):
        fetch("test", tmp_path / "again", source=source)
    assert left(tmp_path / "again") == set()


def test_unpacking_too_much_raises(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public("https://example.org", "a.zip", "a.txt", editions=True))
    monkeypatch.setattr(fetching, "LARGEST", 10_000)
    (tmp_path / "a.zip").write_bytes(zipped(a_txt=b"\0" * 100_000))
    with pytest.raises(DataError, match="10,000 bytes"):
        fetch("test", tmp_path / "into", source=tmp_path, edition="any")
    assert left(tmp_path / "into") == set()


def test_a_damaged_bzip2_member_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public("https://example.org", "a.zip", "a.txt"))
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.txt", TEXT)
    content = path.read_bytes()
    at = content.index(b"1AY&SY") + 20
    path.write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
    with pytest.raises(DataError) as error:
        fetch("test", tmp_path / "into", source=tmp_path)
    assert str(error.value).startswith(str(path)) and "'a.txt'" in str(error.value)


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.txt", "a.txt.gz", "packed.zip", "family/a.tsv"])
def test_source_folder_may_have_the_file_under_any_of_its_names(tmp_path, monkeypatch, name):
    monkeypatch.setitem(SETS, "test", public("https://example.org", "packed.zip", "a.txt"))
    place = tmp_path / "source" / name
    place.parent.mkdir(parents=True)
    packed = {".gz": gzip.compress(TEXT), ".zip": zipped(a_txt=TEXT)}
    place.write_bytes(packed.get(place.suffix, TEXT))
    assert len(fetch("test", tmp_path / "into", source=tmp_path / "source").pairs("all")) == 5000
    assert place.exists()


def test_unusable_folders_raise(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "test", public("https://example.org", "a.zip", "a.txt"))
    with pytest.raises(DataError, match=facts("a.tsv", "expected", "a.tsv", "a.zip")):
        fetch("test", tmp_path, source=tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="used"):
        fetch("test", tmp_path / "file", source=tmp_path)


@pytest.mark.parametrize("name", sorted(SETS))
def test_known_datasets_are_described_completely(name):
    dataset = SETS[name]
    assert dataset.about and dataset.licence and dataset.home.startswith("https://")
    for piece in dataset.pieces:
        assert piece.url.startswith("https://") and len(piece.sha256) == 64 and piece.size > 0
        assert bool(piece.member) == piece.url.endswith(".zip")
    names = {piece.name for piece in dataset.pieces}
    used = {
        part[key] for part in dataset.parts.values() for key in ("source", "target", "tsv") if key in part
    }
    assert used == names
    assert replace(dataset, editions=not dataset.editions) != dataset


class Slow(BaseHTTPRequestHandler):
    """Sends the body one byte at a time, endlessly."""

    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/body")
        elif self.path == "/body":
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b".")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            pass  # the client has disconnected

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("path", ["body", "elsewhere"])
def test_a_slow_server_cannot_exceed_the_time_limit(tmp_path, monkeypatch, path):
    monkeypatch.setattr(fetching, "LIMIT", 0.6)
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        url, began = f"http://127.0.0.1:{http.server_port}/{path}", time.monotonic()
        with pytest.raises(DataError) as error:
            download(url, tmp_path / "file", 10**7, len_of_nothing)
        assert url in str(error.value) and "seconds" in str(error.value)
        assert time.monotonic() - began < 60  # at this speed, the file takes 14 hours
        http.shutdown()
    assert not (tmp_path / "file").exists()
