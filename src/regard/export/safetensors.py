"""Export to safetensors: one file of weights, one of settings, and the tokenizers. Regard loads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.batch import BOS, EOS, PAD, UNK
from regard.data.tokenizers.tokenizer import Lowercased
from regard.export.target import Check, Difference, Target, side_tokenizers
from regard.files.atomic_io import write
from regard.files.tensor_file import read_tensors, tensor_blocks

WEIGHTS = "model.safetensors"

BUILDERS = {
    "translation": "build_model",
    "language": "build_language_model",
    "classification": "build_classifier",
}
"""The function of regard.models that builds the models of a task."""


class Safetensors(Target):
    """Weights and settings, with the names that readers expect."""

    name, title = "safetensors", "safetensors"
    quantizations = ("float16",)
    licences = ("safetensors: Apache-2.0",)
    any_model = True

    def write(self, folder: Path) -> None:
        write(folder / WEIGHTS, tensor_blocks(self._weights()))
        text = json.dumps(self._config(), ensure_ascii=False, indent=2) + "\n"
        write(folder / "config.json", [text.encode()])
        for name, tokenizer in side_tokenizers(self.run).items():
            write(folder / name, [tokenizer.serialized()])

    def verify(self, folder: Path, texts: Sequence[str]) -> Check:
        weights, stored = self._weights(), read_tensors(folder / WEIGHTS)
        different = tuple(
            Difference(name, str(tuple(weight.shape)), "other values", float("nan"))
            for name, weight in weights.items()
            if name not in stored or not torch.equal(weight.cpu(), stored[name])
        )
        return Check("tensors read back from the file", len(weights), different)

    def usage(self) -> str:
        run, task = self.run, self.run.settings.task
        builder = BUILDERS[task]
        lower = self._config()["lowercase"]
        load = "Lowercased(load_tokenizer({!r}))" if lower else "load_tokenizer({!r})"
        lines = [
            "import json",
            "from pathlib import Path",
            "from safetensors.torch import load_model",
            "from regard.data.tokenizers import load_tokenizer",
            *["from regard.data.tokenizers.tokenizer import Lowercased"] * lower,
            *["from regard.decoding import Translator"] * (task == "translation"),
            f"from regard.models import {builder}",
            "",
            'config = json.loads(Path("config.json").read_text(encoding="utf-8"))',
            f'model = {builder}(config["model_type"], *config["sizes"], **config["options"]).eval()',
            f'load_model(model, "{WEIGHTS}")',
            *(
                f"{name.partition('.')[0]} = {load.format(name)}".replace("'", '"')
                for name in side_tokenizers(run)
            ),
        ]
        if task == "translation":
            lines += ['print(Translator(model, source, target).translate("A sentence."))']
        else:
            lines += ['print(text.encode("A sentence."), sum(p.numel() for p in model.parameters()))']
        return "\n".join(lines)

    def lost(self) -> tuple[str, ...]:
        half = ("Weights are rounded to float16.",) if self.quantization else ()
        return (*half, "The state of the optimizer and the log of training stay in the run folder.")

    def _weights(self) -> dict[str, Tensor]:
        """Return the weights by name. A tied weight has the name that comes first."""
        kept: dict[str, Tensor] = {}
        seen = set[tuple[int, tuple[int, ...]]]()
        for name, weight in self.run.model.state_dict().items():
            key = weight.data_ptr(), tuple(weight.shape)
            if key not in seen or not weight.numel():
                seen.add(key)
                floats = self.quantization and weight.is_floating_point()
                kept[name] = weight.half() if floats else weight
        return kept

    def _config(self) -> dict[str, Any]:
        run, model = self.run, self.run.model
        settings, sizes = run.settings.model, [each.size for each in side_tokenizers(run).values()]
        sizes += [model.classes] if hasattr(model, "classes") else []
        lowercase = any(isinstance(each, Lowercased) for each in side_tokenizers(run).values())
        return {
            "model_type": settings.name,
            "architectures": [type(model).__name__],
            "task": run.settings.task,
            "sizes": sizes,
            "options": settings.options,
            "vocab_size": sizes[-1] if run.settings.task == "translation" else sizes[0],
            **({"source_vocab_size": sizes[0]} if run.settings.task == "translation" else {}),
            "hidden_size": getattr(model, "width", settings.options.get("width")),
            "lowercase": lowercase,
            "pad_token_id": PAD,
            "unk_token_id": UNK,
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "dtype": self.quantization or "float32",
        }
