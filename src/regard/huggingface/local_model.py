"""load_model(): a Hugging Face text model and its tokenizer, from a local folder; nothing is downloaded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.errors import ArgumentError, DataError, message, printable, shown
from regard.huggingface.registration import attach, import_transformers
from regard.runs.devices import choose_device

__all__ = ["TextModel", "load_model"]

TOKENIZER_FILES = ("tokenizer.json", "vocab*", "*.model", "*.spm", "tekken.json")
"""Patterns for the files of tokenizers; a folder with a tokenizer has at least one of them."""


@dataclass(frozen=True, eq=False)
class TextModel:
    """A text model of transformers with its tokenizer, as load_model() returns it.

    model: the model, with attn_implementation="regard", in evaluation mode.
    tokenizer: its tokenizer.
    name: the name of the folder, for titles.
    """

    model: Any
    tokenizer: Any
    name: str = ""

    @staticmethod
    def check(call: str, model: object) -> None:
        """Raise ArgumentError if an argument of a function, `call`, is not a TextModel."""
        if isinstance(model, TextModel):
            return
        is_name = isinstance(model, str)
        problem = f"model is {model!r}" if is_name else f"model is a {type(model).__name__}"
        hint = (
            f"use regard.huggingface.load_model({model!r})"
            if is_name
            else ("use regard.huggingface.load_model(folder); for a loaded model, attach(model) and record()")
        )
        raise ArgumentError(message(call, problem, expected="a TextModel", hint=hint))

    @property
    def has_decoder(self) -> bool:
        """Whether the model reads a source text and generates a target text (an encoder-decoder model)."""
        return bool(self.model.config.is_encoder_decoder)

    @property
    def longest(self) -> int | None:
        """The maximum number of tokens that the model can read; None if its config has no limit."""
        config = self.model.config
        limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
        known = [limit for limit in limits if isinstance(limit, int) and limit > 0]
        return min(known) if known else None


def load_model(folder: str | Path, device: str = "cpu") -> TextModel:
    """Load a Hugging Face text model and its tokenizer from a local folder, ready to be recorded.

    folder: a folder as save_pretrained() writes it: config.json, model.safetensors and the tokenizer files.
    device: cpu, cuda (or gpu), mps, or auto for the fastest available.

    Nothing is downloaded, no code from the folder is run, and only safetensors files are read. Raises
    DataError if the folder is not such a model.
    """
    if not isinstance(folder, str | os.PathLike):
        problem = f"folder is of type {type(folder).__name__}"
        raise ArgumentError(message("load_model()", problem, expected="a path: str or pathlib.Path"))
    device, path = choose_device(device), Path(folder)
    transformers = import_transformers("load_model()")
    _check_folder(path)
    config = _read(path, "config.json", transformers.AutoConfig)
    tokenizer = _read(path, "the tokenizer", transformers.AutoTokenizer)
    # The config may come from somebody else: a name that is not a model class is ignored.
    kinds = (getattr(transformers, str(name), None) for name in getattr(config, "architectures", None) or ())
    models = (
        each for each in kinds if isinstance(each, type) and issubclass(each, transformers.PreTrainedModel)
    )
    model = _read(path, "the model", next(models, transformers.AutoModel), use_safetensors=True)
    if model.main_input_name != "input_ids":
        problem = f"{type(model).__name__} reads {model.main_input_name}, not text"
        hint = "regard.huggingface.attach(model) and regard.record() record such a model in Python"
        raise DataError(message(shown(path), problem, hint=hint))
    return TextModel(attach(model.eval().to(torch.device(device))), tokenizer, path.resolve().name)


def _check_folder(path: Path) -> None:
    """Raise DataError with a hint if a folder is missing, or has no config.json or no safetensors file."""
    hint = "a folder as model.save_pretrained(folder) and tokenizer.save_pretrained(folder) write it"
    if not path.is_dir():
        problem = "this is a file" if path.exists() else "there is no such folder"
        problem = f"{problem}, and nothing is downloaded"
        raise DataError(message(shown(path), problem, expected="a local folder with a model", hint=hint))
    config = path / "config.json"
    if not config.is_file():
        raise DataError(message(shown(path), "the folder has no config.json", expected=hint))
    try:
        known = isinstance(json.loads(config.read_text(encoding="utf-8")), dict)
    except (OSError, ValueError):
        known = False
    if not known:
        raise DataError(message(shown(config), "the file is not valid JSON", expected="a JSON object"))
    if not any(path.glob("*.safetensors")):
        problem = "the folder has no .safetensors file"
        hint = "weights in other formats are not read, because they can contain code: " + (
            "save them with model.save_pretrained(folder)"
        )
        raise DataError(message(shown(path), problem, hint=hint))
    if not any(file for pattern in TOKENIZER_FILES for file in path.glob(pattern)):
        hint = "only models of text can be viewed; save the tokenizer with tokenizer.save_pretrained(folder)"
        raise DataError(message(shown(path), "the folder has no tokenizer", hint=hint))


def _read(path: Path, part: str, kind: Any, **options: Any) -> Any:
    """Return kind.from_pretrained(path); raise DataError with the reason of transformers if it fails."""
    try:
        return kind.from_pretrained(path, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:  # transformers raises many kinds of errors for damaged or incomplete folders
        lines = printable(str(error), kept="\n").strip().splitlines() or [type(error).__name__]
        raise DataError(message(shown(path), f"{part} cannot be read: {lines[0]}")) from None
