"""The names of settings in other toolkits, and the error for an unknown setting."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from regard.errors import UnknownName

PEER_NAMES = {
    "the learning rate is training.learning_rate": ("lr", "learning_rate", "max_lr", "peak_lr"),
    "the learning rate schedule is training.schedule": ("lr_scheduler", "lr_scheduler_type", "scheduling"),
    "warm-up is training.warmup_steps": (
        *("warmup", "warmup_updates", "warmup_ratio", "learning_rate_warmup", "num_warmup_steps"),
    ),
    "the batch size in tokens is training.batch_tokens": ("max_tokens", "tokens_per_batch"),
    "the batch size in sentences is training.batch_size": (
        *("max_sentences", "per_device_train_batch_size", "train_batch_size", "bsz"),
    ),
    "batches are measured in tokens by training.batch_tokens, in sentences by training.batch_size": (
        "batch_type",
    ),
    "gradient accumulation is training.accumulation_steps": (
        *("gradient_accumulation_steps", "gradient_accumulation", "accum_count", "update_freq"),
        *("batch_multiplier", "accumulate_grad_batches", "grad_accum"),
    ),
    "beta2 of AdamW is training.beta2": ("adam_beta2", "adam_betas", "betas"),
    "the optimizer is training.optimizer (adamw or sgd)": ("optim", "optimizer", "optimizer_type"),
    "weight decay is training.weight_decay": ("wd",),
    "gradient clipping is training.max_grad_norm": (
        *("clip_norm", "clip_grad_norm", "grad_clip", "gradient_clip_val", "gradient_clipping"),
    ),
    "label smoothing is training.label_smoothing": ("label_smoothing_factor", "smoothing_factor"),
    "the weight of the guided-alignment loss is training.guided_alignment": (
        *("lambda_align", "alignment_loss_weight", "guided_alignment_weight"),
    ),
    "the weight of the R-Drop loss is training.r_drop": ("reg_alpha", "rdrop_alpha", "r_drop_alpha"),
    "the moving average of the weights is training.ema": ("average_decay", "ema_decay", "moving_average"),
    "mixed precision is training.precision=bfloat16": (
        *("fp16", "bf16", "half", "amp", "use_amp", "mixed_precision", "model_dtype"),
    ),
    "the length in epochs is training.epochs": ("max_epoch", "max_epochs", "num_epochs", "num_train_epochs"),
    "the length in steps is training.steps": (
        "max_steps",
        "max_update",
        "max_updates",
        "train_steps",
        "updates",
    ),
    "the interval of evaluations is training.evaluate_every": (
        *("eval_steps", "valid_steps", "validation_freq", "validate_interval", "eval_every"),
    ),
    "the interval of checkpoints is training.save_every": (
        *("save_steps", "save_checkpoint_steps", "save_interval", "save_interval_updates"),
    ),
    "the interval of log records is training.log_every": (
        *("logging_steps", "logging_freq", "log_interval", "report_every"),
    ),
    "the number of checkpoints is training.keep": (
        *("save_total_limit", "keep_checkpoint", "keep_last_epochs", "keep_best_ckpts"),
    ),
    "the score that selects the best checkpoint is training.best": (
        *("metric_for_best_model", "early_stopping_metric", "best_checkpoint_metric"),
    ),
    "early stopping is training.patience": ("early_stopping", "early_stopping_patience"),
    "the random seed is seed": ("random_seed", "manual_seed"),
    "the model is model.name": ("arch", "architecture", "model_type"),
    "the width is model.width": (
        *("width", "hidden_size", "hidden_dim", "d_model", "embed_dim", "rnn_size", "encoder_embed_dim"),
        *("decoder_embed_dim", "model_dim"),
    ),
    "the number of layers is model.layers (transformer) or model.depth (seq2seq, luong)": (
        *("layers", "num_layers", "n_layers", "num_hidden_layers", "num_encoder_layers", "encoder_layers"),
        *("num_decoder_layers", "enc_layers", "dec_layers"),
    ),
    "the number of heads is model.heads": (
        *("heads", "num_heads", "n_heads", "nhead", "num_attention_heads", "encoder_attention_heads"),
    ),
    "the width of the feed-forward layers is model.inner": (
        *("dim_feedforward", "ff_size", "ffn_dim", "transformer_ff", "d_ff", "intermediate_size"),
        "encoder_ffn_embed_dim",
    ),
    "the width of the embeddings is model.embedding": ("embedding_dim", "embedding_size", "word_vec_size"),
    "dropout is model.dropout": ("dropout", "dropout_rate", "dropout_prob", "hidden_dropout_prob"),
    "the vocabulary sizes are data.source_vocab_size and data.target_vocab_size": (
        *("vocab_size", "vocab", "src_vocab_size", "tgt_vocab_size", "voc_limit", "num_merges"),
    ),
    "one vocabulary for both sides is data.joint": (
        *("share_vocab", "joined_dictionary", "share_all_embeddings", "joint_vocab"),
    ),
    "the maximum number of tokens of a source or target is data.max_length": (
        *("max_len", "max_sent_length", "max_seq_length", "src_seq_length", "tgt_seq_length"),
        *("max_source_length", "max_target_length", "max_source_positions", "max_target_positions"),
    ),
    "subword regularization is data.subword_sampling": ("bpe_dropout", "nbest_size", "sp_alpha"),
    "the training files are data.source and data.target": (
        *("src", "tgt", "trg", "src_train", "tgt_train", "train_src", "train_tgt", "path_src", "path_tgt"),
    ),
    "the validation files are data.valid_source and data.valid_target": (
        *("valid_src", "valid_tgt", "src_valid", "tgt_valid", "dev"),
    ),
    "the beam size is evaluation.beam_size": ("beam", "beams", "num_beams", "beam_width"),
}
"""For each setting, an answer with its name in Regard, and its names in other toolkits.

The toolkits are Hugging Face, fairseq, OpenNMT, JoeyNMT and PyTorch. If a user sets one of these names, the
error message contains the answer.
"""

ANSWERS = {name: answer for answer, names in PEER_NAMES.items() for name in names}


def named_tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings in which training.estimator and training.estimator.baseline are tables.

    They may be only a name, such as "reinforce". It is replaced by a table to which options can be added:

    >>> named_tables({"training": {"estimator": {"name": "reinforce", "baseline": "none"}}})
    {'training': {'estimator': {'name': 'reinforce', 'baseline': {'name': 'none'}}}}
    """
    training = settings.get("training")
    if not isinstance(training, Mapping) or training.get("estimator") is None:
        return dict(settings)
    estimator = training["estimator"]
    table = {"name": estimator} if isinstance(estimator, str) else estimator
    if isinstance(table, Mapping) and isinstance(table.get("baseline"), str):
        table = {**table, "baseline": {"name": table["baseline"]}}
    return {**settings, "training": {**training, "estimator": table}}


def unknown_setting(kind: type[BaseModel], keys: list[str], value: Any, place: str) -> UnknownName:
    """Return the error for a setting that does not exist. It suggests a name that exists, if possible.

    kind: the pydantic class of the whole configuration.
    keys: the sections and the name of the setting, e.g. ["training", "lr"].
    value: the value of the unknown setting.
    place: where the setting comes from, e.g. the path of a config.toml.
    """
    end = "" if place == "the settings" else f" in {place}"
    path = [*keys, *value] if isinstance(value, Mapping) and len(value) == 1 else keys  # e.g. optimizer.lr
    if answer := _answer(path[-1]):
        name = ".".join(map(str, path))
        return UnknownName(f"setting{end}:" if end else "setting", name, (), answer=answer)
    where = f" in [{'.'.join(keys[:-1])}]{end}" if keys[:-1] else end
    known = section_of(kind, keys[:-1]).model_fields
    guess = _elsewhere(kind, keys[-1])
    if not guess and not difflib.get_close_matches(keys[-1], known, n=1):
        near = difflib.get_close_matches(keys[-1], [name for _, name in _names(kind)], n=1)
        guess = _elsewhere(kind, near[0]) if near else ""
    return UnknownName(f"setting{where}:" if where else "setting", keys[-1], known, guess=guess)


def misplaced(kind: type[BaseModel], section: str, names: Iterable[str]) -> UnknownName | None:
    """Return the error for the first name that is a setting of another section or of another toolkit.

    Returns None if there is no such name.

    kind: the pydantic class of the whole configuration.
    section: the section in which the names were used, e.g. "model". This section accepts any name, so without
        this check, a setting in the wrong section would be accepted.
    """
    for name in names:
        full, elsewhere = f"{section}.{name}", _elsewhere(kind, name)
        answer = _answer(name) or (f"the setting is {elsewhere}" if elsewhere else "")
        if answer and full not in answer:
            return UnknownName("setting", full, (), answer=answer)
    return None


def section_of(kind: type[BaseModel], keys: Iterable[str]) -> type[BaseModel]:
    """Return the pydantic class of a section of the settings.

    kind: the class of the whole configuration.
    keys: the path of the section, such as ["training", "estimator"]. The path ends before the first key that
        is unknown or not a section.
    """
    for key in keys:
        field = kind.model_fields.get(key)
        types = () if field is None else (field.annotation, *get_args(field.annotation))
        sections = [each for each in types if isinstance(each, type) and issubclass(each, BaseModel)]
        if not sections:
            break
        kind = sections[0]
    return kind


def _answer(name: object) -> str:
    """Return the answer for a name of another toolkit, e.g. "the beam size is evaluation.beam_size".

    Returns "" if the name is unknown.
    """
    return ANSWERS.get(str(name).lower().replace("-", "_"), "")


def _elsewhere(kind: type[BaseModel], name: str) -> str:
    """Return the full name of a setting, e.g. "training.steps" for "steps"; "" if no section has it."""
    return next((f"{section}{last}" for section, last in _names(kind) if last == name), "")


def _names(kind: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield all settings in the sections of `kind` as pairs (section, name), e.g. ("training.", "steps")."""
    for key, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from ((f"{key}.", name) for name in field.annotation.model_fields)
