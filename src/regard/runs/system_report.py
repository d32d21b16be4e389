"""The machine, as `regard doctor` finds it: facts in sections, each well, lacking or wrong."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import struct
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from regard.errors import install_command

__all__ = ["SECTIONS", "Fact", "version"]

LITTLE_SPACE = 1 << 30
"""Bytes on a disk below which a run may not find room for its checkpoints."""

VARIABLES = (
    r"REGARD_\w+",
    r"(OMP|MKL|OPENBLAS)_NUM_THREADS",
    r"CUDA_\w+|NVIDIA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|NCCL_\w+|GLOO_\w+",
    r"(PY)?TORCH\w*_\w+|TRITON_\w+|KMP_\w+",
    r"(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_PORT",
    r"PYTHON(PATH|UTF8|IOENCODING|WARNINGS|HASHSEED)|NO_COLOR|FORCE_COLOR|COLUMNS|TERM|LC_ALL|LANG",
)
"""The environment variables that change what runs or what is shown."""


@dataclass(frozen=True)
class Fact:
    """One thing about this machine. state: "well", "lacking" what is of use, or "wrong": it cannot work so.

    >>> Fact("triton", "not installed", "lacking", install_command("kernels")).state
    'lacking'
    """

    name: str
    value: str
    state: str = "well"
    hint: str = ""


def version(package: str) -> str | None:
    """The version of an installed package; None where it is not installed.

    >>> version("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def software() -> Iterator[Fact]:
    """Python, Regard, and the packages without which it does nothing."""
    bits = struct.calcsize("P") * 8
    system = f"{platform.system()} {platform.machine()}"
    yield Fact("Python", f"{platform.python_version()}, {bits} bits, {system}")
    yield Fact("regard", version("regard") or "run from its source without being installed")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    if torch.version.hip:
        built = f"ROCm {torch.version.hip}"
    for each in requirements().get("", []):
        needed = f"at least {each.least}"
        found = version(each.package)
        value = f"{found}, built for {built}" if each.package == "torch" else str(found)
        if found is None:
            yield Fact(each.package, "not installed", "wrong", f"pip install '{each.package}>={each.least}'")
        elif each.newer_than(found):
            yield Fact(each.package, f"{value}: {needed} is needed", "wrong", "pip install -U .")
        else:
            yield Fact(each.package, value)


def devices() -> Iterator[Fact]:
    """What can compute, and the memory it has."""
    cores, threads = usable_cores(), torch.get_num_threads()
    value = f"{cores} cores, torch takes {threads} threads, {torch.backends.cpu.get_cpu_capability()}"
    busy = threads > cores
    yield Fact("cpu", value, "lacking" if busy else "well", f"OMP_NUM_THREADS={cores}" if busy else "")
    whole, free = memory()
    yield Fact("memory", f"{size(free)} free of {size(whole)}" if whole else "not known")
    if torch.cuda.is_available():
        yield from map(_cuda, range(torch.cuda.device_count()))
    elif torch.version.cuda or torch.version.hip:
        hint = "no GPU, no driver for it, or CUDA_VISIBLE_DEVICES hides it: see nvidia-smi"
        yield Fact("cuda", "torch is built for it and finds none", "lacking", hint)
    if torch.backends.mps.is_available():
        yield Fact("mps", f"Apple GPU, {size(torch.mps.recommended_max_memory())} for torch")


def _cuda(index: int) -> Fact:
    try:
        free, whole = torch.cuda.mem_get_info(index)
        made = torch.cuda.get_device_properties(index)
    except RuntimeError as error:
        return Fact(f"cuda:{index}", str(error).splitlines()[0], "wrong", "is another program holding it?")
    half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
    able = f"compute capability {made.major}.{made.minor}, {half}"
    return Fact(f"cuda:{index}", f"{made.name}, {size(free)} free of {size(whole)}, {able}")


def compiling() -> Iterator[Fact]:
    """What torch.compile and the kernels are made with."""
    found = next((name for name in (os.environ.get("CXX", ""), "g++", "clang++", "cl") if _there(name)), None)
    hint = "apt install g++ (macOS: xcode-select --install)"
    if found is None:
        yield Fact("C++ compiler", "none: no torch.compile on the CPU", "lacking", hint)
    else:
        yield Fact("C++ compiler", Path(found).name)
    headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    hint = "" if headers else "apt install python3-dev"
    yield Fact("Python.h", "there" if headers else "missing", "well" if headers else "lacking", hint)
    triton = version("triton") or version("pytorch-triton-rocm")
    needed = torch.cuda.is_available() and triton is None
    hint = install_command("kernels") if needed else ""
    yield Fact("triton", triton or "not installed", "lacking" if needed else "well", hint)


def _there(program: str) -> bool:
    return bool(program) and shutil.which(program) is not None


def extras() -> Iterator[Fact]:
    """The optional parts of Regard, as its own metadata names them."""
    asked = {name: each for name, each in requirements().items() if name}
    if not asked:
        yield Fact("extras", "not known: regard is not installed", "lacking", "pip install .")
    for name, packages in asked.items():
        if any(each.package == "regard" for each in packages):
            continue  # it only gathers others
        here = [each for each in packages if each.system in ("", platform.system())]
        lacking = [each.package for each in here if each.newer_than(version(each.package))]
        if not here:
            yield Fact(name, f"not for {platform.system()}")
        elif lacking:
            yield Fact(name, f"lacks {', '.join(lacking)}", "lacking", install_command(name))
        else:
            yield Fact(name, ", ".join(f"{each.package} {version(each.package)}" for each in here))


def storage() -> Iterator[Fact]:
    """Room on the disks; the folders themselves are not named, so that a report can be shown to anyone."""
    for name, folder in (("working folder", "."), ("temporary folder", tempfile.gettempdir())):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Fact(name, error.strerror or "cannot be used", "lacking")
            continue
        if not os.access(folder, os.W_OK):
            yield Fact(name, f"{size(free)} free, and nothing can be written", "lacking")
        elif free < LITTLE_SPACE:
            yield Fact(name, f"{size(free)} free", "lacking", "a run keeps several checkpoints: make room")
        else:
            yield Fact(name, f"{size(free)} free")


def terminal() -> Iterator[Fact]:
    """What pictures in the terminal are drawn with."""
    console = Console()
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    if encoding.lower().replace("-", "").startswith("utf"):
        yield Fact("encoding", encoding)
    else:
        hint = "PYTHONUTF8=1, or LANG=C.UTF-8"
        yield Fact("encoding", f"{encoding}: Korean and shades come out as ?", "lacking", hint)
    kind = "a terminal" if console.is_terminal else "a file or a pipe"
    colours = console.color_system or "no colours"
    yield Fact("output", f"{kind}, {console.width} columns, {colours}")


def environment() -> Iterator[Fact]:
    """The variables that are set and matter; of a path only that there is one."""
    for name in sorted(os.environ):
        if any(re.fullmatch(pattern, name) for pattern in VARIABLES):
            value = os.environ[name]
            path = "/" in value or "\\" in value or name == "PYTHONPATH"
            yield Fact(name, "(a path)" if path else value or "(empty)")


SECTIONS = {
    "software": software,
    "devices": devices,
    "compiling": compiling,
    "extras": extras,
    "storage": storage,
    "terminal": terminal,
    "environment": environment,
}


@dataclass(frozen=True)
class Requirement:
    """A package that Regard asks for: at least which version, on which system, for which extra.

    >>> read_requirement("triton>=3.6; platform_system == 'Linux' and extra == 'kernels'")
    Requirement(package='triton', least='3.6', system='Linux', extra='kernels')
    """

    package: str
    least: str
    system: str = ""
    extra: str = ""

    def newer_than(self, found: str | None) -> bool:
        """Whether this is not what was found: nothing, or an older version."""
        return found is None or _numbers(found) < _numbers(self.least)


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", re.split(r"[+a-z]", written)[0])))


def read_requirement(line: str) -> Requirement:
    """What a line of a package's metadata asks for; only of the kinds of condition that ours has."""
    package = re.match(r"[\w.-]+", line)
    least = re.search(r">=\s*([\d.]+)", line.partition(";")[0])
    system, extra = (
        re.search(rf"{name}\s*==\s*['\"](\w+)", line) for name in ("platform_system", r"\bextra")
    )
    return Requirement(
        *(found[found.lastindex or 0] if found else "" for found in (package, least, system, extra))
    )


def requirements() -> dict[str, list[Requirement]]:
    """What each extra asks for, the base install under an empty name; from our metadata, or our source."""
    try:
        lines = importlib.metadata.requires("regard") or []
    except importlib.metadata.PackageNotFoundError:
        lines = _from_source(Path(__file__).parents[3] / "pyproject.toml")
    found: dict[str, list[Requirement]] = {}
    for each in map(read_requirement, lines):
        found.setdefault(each.extra, []).append(each)
    return found


def _from_source(settings: Path) -> list[str]:
    try:
        project = tomllib.loads(settings.read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, ValueError):
        return []
    lines = list(project.get("dependencies", []))
    for extra, asked in project.get("optional-dependencies", {}).items():
        joined = (f"{line} and" if ";" in line else f"{line} ;" for line in asked)
        lines += [f"{each} extra == '{extra}'" for each in joined]
    return lines


def usable_cores() -> int:
    """The cores this process may use: fewer than the machine has, in a container or under taskset."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(round(int(quota) / int(period)), 1))
    return cores


def memory() -> tuple[int, int]:
    """The bytes of memory that there are and that are free, as far as this process may use them; or zeros."""
    listed = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    if "MemTotal" not in listed:
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), 0
        except (AttributeError, ValueError, OSError):
            return 0, 0
    whole, free = (1024 * int(listed.get(name, 0)) for name in ("MemTotal", "MemAvailable"))
    most, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if most.isdigit() and used.isdigit() and int(most) < whole:
        return int(most), min(free, max(int(most) - int(used), 0))
    return whole, free


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def size(count: int) -> str:
    """A number of bytes as people say it.

    >>> size(3 << 29)
    '1.5 GiB'
    """
    return f"{count / 2**30:.1f} GiB"
