"""The precision of training steps: float32, TF32 or bfloat16, by the device, the processor and the model."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from regard.models.bahdanau import Bahdanau
from regard.models.lstmn_classifier import LSTMNClassifier
from regard.models.lstmn_language import LSTMNLanguageModel
from regard.models.lstmn_translation import LSTMNTranslationModel
from regard.models.luong import Luong
from regard.models.transformer import Transformer

FASTER_IN_TF32 = (Luong, LSTMNClassifier, LSTMNLanguageModel, LSTMNTranslationModel)
"""The models that train in TF32 with the precision "auto": on an H200, 1.2 to 1.5 times as fast as in
bfloat16, which needs more kernels, for casts."""

FASTER_ON_CPU, LEAST_PARAMETERS = (Bahdanau, Transformer), 1_000_000
"""The models that train in bfloat16 on a CPU with the precision "auto", if they have LEAST_PARAMETERS.
benchmarks/results/2026-11-20-cpu-training.md has their speed and their BLEU."""

CPU_FLAGS = ("amx_bf16", "avx512_bf16")
"""The processor flags of instructions for matrix products in bfloat16."""


class Precision(NamedTuple):
    """The precision of training steps ("float32", "tf32" or "bfloat16"), and why."""

    name: str
    reason: str


@cache
def cpu_flags() -> frozenset[str]:
    """Return those of CPU_FLAGS that this processor has; nothing on a CPU other than x86."""
    known = getattr(torch.cpu, "get_capabilities", None)  # new in PyTorch 2.12
    if known is not None:
        capabilities = known()
        return frozenset(flag for flag in CPU_FLAGS if capabilities.get(flag))
    info = Path("/proc/cpuinfo")
    words = set(info.read_text(encoding="utf-8", errors="replace").split()) if info.exists() else set()
    return frozenset(words.intersection(CPU_FLAGS))


def chosen_precision(
    precision: str, device: torch.device, model: nn.Module, flags: Collection[str] | None = None
) -> Precision:
    """Return the precision of training steps on this device, and why.

    precision: the setting training.precision. On GPUs that support bfloat16, "auto" is "tf32" for the models
        FASTER_IN_TF32 and "bfloat16" (autocast) for others, or the attribute auto_precision of the model. On
        CPUs with one of CPU_FLAGS, it is "bfloat16" for large models of FASTER_ON_CPU. Elsewhere, it is
        "float32".
    flags: those of CPU_FLAGS that the processor has. Default: cpu_flags().

    >>> chosen_precision("auto", torch.device("cpu"), nn.Linear(1, 1))
    Precision(name='float32', reason='Linear trains in float32 on a CPU')
    """
    if precision != "auto":
        return Precision(precision, "training.precision is set")
    kind = type(model).__name__
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("float32", "this GPU does not support bfloat16")
        listed = "tf32" if isinstance(model, FASTER_IN_TF32) else "bfloat16"
        return Precision(str(getattr(model, "auto_precision", listed)), f"{kind} trains fastest in it")
    if device.type != "cpu":
        return Precision("float32", f"the device is {device.type}")
    if type(model) not in FASTER_ON_CPU:
        return Precision("float32", f"{kind} trains in float32 on a CPU")
    flags = cpu_flags() if flags is None else flags
    if not flags or not torch.backends.mkldnn.is_available():
        return Precision("float32", f"this processor has none of {', '.join(CPU_FLAGS)}")
    if sum(each.numel() for each in model.parameters()) < LEAST_PARAMETERS:
        return Precision("float32", f"the model has fewer than {LEAST_PARAMETERS:,} parameters")
    return Precision("bfloat16", f"this processor has {', '.join(sorted(flags))}")
