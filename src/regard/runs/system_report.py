"""System report of `regard doctor`: facts about this machine, in sections."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from regard.files.requirements import CLONE, install_command, pip_command, requirements

LITTLE_SPACE = 1 << 30
"""If a disk has fewer free bytes than this, the report warns that checkpoints may not fit."""

VARIABLES = (
    r"REGARD_\w+",
    r"(OMP|MKL|OPENBLAS)_NUM_THREADS",
    r"CUDA_\w+|NVIDIA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|NCCL_\w+|GLOO_\w+",
    r"(PY)?TORCH\w*_\w+|TRITON_\w+|KMP_\w+",
    r"(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_PORT",
    r"PYTHON(PATH|UTF8|IOENCODING|WARNINGS|HASHSEED)|NO_COLOR|FORCE_COLOR|COLUMNS|TERM|LC_ALL|LANG",
)
"""Patterns of environment variables that affect training or output. The report lists the variables that are
set."""


@dataclass(frozen=True)
class Fact:
    """One fact about this machine.

    name: what the fact is about, such as "triton".
    value: the fact as text, such as "not installed".
    hint: what the user can do if the state is not "well".
    state: "well" (no problem), "lacking" (Regard works, but something is missing or not ideal) or "wrong"
        (Regard cannot work).

    >>> Fact("triton", "not installed", "lacking", install_command("kernels")).state
    'lacking'
    """

    name: str
    value: str
    state: str = "well"
    hint: str = ""


def version(package: str) -> str | None:
    """Return the version of a Python package as text, or None if the package is not installed.

    >>> version("no-such-package") is None
    True
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def software() -> Iterator[Fact]:
    """Return facts about Python, Regard, and the packages that Regard requires."""
    bits = struct.calcsize("P") * 8
    system = f"{platform.system()} {platform.machine()}"
    yield Fact("Python", f"{platform.python_version()}, {bits} bits, {system}")
    yield Fact("regard", version("regard") or "not installed; running from its source")
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    if torch.version.hip:
        built = f"ROCm {torch.version.hip}"
    for each in requirements().get("", []):
        needed = f"at least {each.least}"
        installed = version(each.package)
        value = f"{installed}, built for {built}" if each.package == "torch" else str(installed)
        if installed is None:
            yield Fact(each.package, "not installed", "wrong", pip_command(str(each)))
        elif each.newer_than(installed):
            yield Fact(each.package, f"{value}: {needed} is required", "wrong", pip_command(str(each)))
        else:
            yield Fact(each.package, value)


def devices() -> Iterator[Fact]:
    """Return facts about the CPU and the GPUs, and their memory."""
    cores, threads = usable_cores(), torch.get_num_threads()
    counts = (f"{n} {name}{'' if n == 1 else 's'}" for n, name in ((cores, "core"), (threads, "thread")))
    value = f"{', torch uses '.join(counts)}, {torch.backends.cpu.get_cpu_capability()}"
    busy = threads > cores
    yield Fact("cpu", value, "lacking" if busy else "well", f"OMP_NUM_THREADS={cores}" if busy else "")
    from regard.training.precision import CPU_FLAGS, cpu_flags

    flags = ", ".join(sorted(cpu_flags()))
    missing = f"float32, without {' or '.join(CPU_FLAGS)}"
    yield Fact("cpu training", f"bfloat16 for large models, with {flags}" if flags else missing)
    whole, free = memory()
    yield Fact("memory", f"{size(free)} free of {size(whole)}" if whole else "unknown")
    if torch.cuda.is_available():
        yield from map(_cuda, range(torch.cuda.device_count()))
    elif torch.version.cuda or torch.version.hip:
        hint = "check the GPU and its driver with nvidia-smi; CUDA_VISIBLE_DEVICES may hide the GPU"
        yield Fact("cuda", "torch is built for CUDA, but finds no GPU", "lacking", hint)
    if torch.backends.mps.is_available():
        yield Fact("mps", f"Apple GPU, {size(torch.mps.recommended_max_memory())} for torch")


def _cuda(index: int) -> Fact:
    try:
        free, whole = torch.cuda.mem_get_info(index)
        properties = torch.cuda.get_device_properties(index)
    except RuntimeError as error:
        return Fact(
            f"cuda:{index}", str(error).splitlines()[0], "wrong", "another program may be using the GPU"
        )
    half = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
    capability = f"compute capability {properties.major}.{properties.minor}, {half}"
    return Fact(f"cuda:{index}", f"{properties.name}, {size(free)} free of {size(whole)}, {capability}")


def compiling() -> Iterator[Fact]:
    """Return facts about the compilers that torch.compile and the Triton kernels need."""
    names = (os.environ.get("CXX", ""), "g++", "clang++", "cl")
    compiler = next((name for name in names if name and shutil.which(name)), None)
    hint = "apt install g++ (macOS: xcode-select --install)"
    if compiler is None:
        yield Fact("C++ compiler", "none: torch.compile does not work on the CPU", "lacking", hint)
    else:
        yield Fact("C++ compiler", Path(compiler).name)
    headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    hint = "" if headers else "apt install python3-dev"
    yield Fact("Python.h", "found" if headers else "missing", "well" if headers else "lacking", hint)
    triton = version("triton") or version("pytorch-triton-rocm")
    needed = torch.cuda.is_available() and triton is None
    hint = install_command("kernels") if needed else ""
    yield Fact("triton", triton or "not installed", "lacking" if needed else "well", hint)


def extras() -> Iterator[Fact]:
    """Return a Fact for each extra of Regard (optional dependencies): whether its packages are installed."""
    optional = {name: each for name, each in requirements().items() if name}
    if not optional:
        yield Fact("extras", "unknown: regard is not installed", "lacking", pip_command(str(CLONE)))
    for name, packages in optional.items():
        if any(each.package == "regard" for each in packages):
            continue  # this extra only combines other extras
        here = [each for each in packages if each.system in ("", platform.system())]
        lacking = [each for each in here if each.newer_than(version(each.package))]
        if not here:
            yield Fact(name, f"not for {platform.system()}")
        elif lacking:
            missing = ", ".join(each.package for each in lacking)
            yield Fact(name, f"missing: {missing}", "lacking", pip_command(*map(str, lacking)))
        else:
            yield Fact(name, ", ".join(f"{each.package} {version(each.package)}" for each in here))


def storage() -> Iterator[Fact]:
    """Return facts about free disk space. Paths of folders are left out, so that the report can be shared."""
    for name, folder in (("working folder", "."), ("temporary folder", tempfile.gettempdir())):
        try:
            free = shutil.disk_usage(folder).free
        except OSError as error:
            yield Fact(name, error.strerror or "cannot be used", "lacking")
            continue
        if not os.access(folder, os.W_OK):
            yield Fact(name, f"{size(free)} free, but not writable", "lacking")
        elif free < LITTLE_SPACE:
            yield Fact(
                name, f"{size(free)} free", "lacking", "free some space: a run keeps several checkpoints"
            )
        else:
            yield Fact(name, f"{size(free)} free")


def terminal() -> Iterator[Fact]:
    """Return facts about the terminal that matter for pictures of attention: encoding, width and colours."""
    console = Console()
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    if encoding.lower().replace("-", "").startswith("utf"):
        yield Fact("encoding", encoding)
    else:
        hint = "set PYTHONUTF8=1, or LANG=C.UTF-8"
        yield Fact(
            "encoding",
            f"{encoding}: Korean text and the shaded cells of pictures are printed as ?",
            "lacking",
            hint,
        )
    kind = "a terminal" if console.is_terminal else "a file or a pipe"
    colours = console.color_system or "no colours"
    yield Fact("output", f"{kind}, {console.width} columns, {colours}")


def environment() -> Iterator[Fact]:
    """Return the values of the environment variables that match VARIABLES. A path is shown as "(a path)"."""
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


def usable_cores() -> int:
    """Return how many CPU cores this process may use. Containers and taskset can limit this number."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(round(int(quota) / int(period)), 1))
    return cores


def memory() -> tuple[int, int]:
    """Return the memory that this process may use: (total, free) in bytes. 0 means unknown."""
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
    """Format a number of bytes in GiB.

    >>> size(3 << 29)
    '1.5 GiB'
    """
    return f"{count / 2**30:.1f} GiB"
