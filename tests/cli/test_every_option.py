"""Every option of every command changes its result: the output, a file, or a value recorded inside."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import typer
from PIL import Image
from rich.console import Console

from regard.aligner import Aligner
from regard.data.fetch import SETS
from regard.data.shapes import shapes
from regard.runs.prepare_run import Machine
from regard.runs.train_run import train_run
from regard.tasks.task_table import find_task
from tests.cli.test_data import known
from tests.cli.test_option_names import COMMANDS, parameters
from tests.tasks import small_language, small_stories
from tests.tasks.small import written
from tests.tasks.test_algorithms_task import SMALL as SMALL_ALGORITHMS


class Refused(NamedTuple):
    """A change after which the command exits with status 2, and a part of the error: the value was read.

    usual: the line to add the words to, if not the usual line.
    """

    words: str
    error: str
    usual: str | None = None


class Lines(NamedTuple):
    """Two lines to compare, both without the name of the command, instead of the usual line and a change."""

    first: str
    second: str


Change = str | Refused | Lines

DEVICE, ENCODING = Refused("--device abacus", "abacus"), Refused("--encoding none-8", "none-8")
OWN_TASK = Refused("--task tests.tasks.own_task:LineTask", "task")
OF_RUN: dict[str, Change] = {
    "--checkpoint": Refused("--checkpoint 9999", "9999"),
    "--device": DEVICE,
    "--threads": "--threads 2",
}
PAIRS = "--source {d}/a.ko --target {d}/a.en"
ROWS = "--tsv {d}/a.tsv"


def pair_files(before: str, after: str = "") -> dict[str, Change]:
    """Return the changes of the options for files of pairs, between the words before and after them."""

    def line(files: str) -> str:
        return f"{before} {files} {after}"

    return {
        "--source": Lines(line(PAIRS), line("--source {d}/b.ko --target {d}/a.en")),
        "--target": Lines(line(PAIRS), line("--source {d}/a.ko --target {d}/b.en")),
        "--tsv": Lines(line(ROWS), line("--tsv {d}/b.tsv")),
        "--jsonl": Lines(line("--jsonl {d}/a.jsonl"), line("--jsonl {d}/b.jsonl")),
        "--columns": Lines(line(ROWS), line(f"{ROWS} --columns 2,1")),
        "--fields": Lines(line("--jsonl {d}/a.jsonl"), line("--jsonl {d}/a.jsonl --fields target,source")),
        "--encoding": ENCODING,
    }


SEARCH: dict[str, Change] = {
    "--beam-size": "--beam-size 1",
    "--length-penalty": "--length-penalty 9",
    "--greedy": "--greedy",
    "--max-length": "--max-length 1",
}
SAMPLE = "--sample --seed 3"
TEXT = '--text "나는 학교에 갔다 ."'

TRAIN_TEXT = "--task language --train-file {d}/a.txt --output out --dry-run --set model.width=8"
HOLD_OUT = "--output out --dry-run --set data.held_out=1"
TRAIN_CAPTIONS = f"--task captioning --train-file {{d}}/captions.tsv {HOLD_OUT}"
TRAIN_PAIRS = f"{PAIRS} {HOLD_OUT}"

TABLE: dict[str, tuple[str, dict[str, Change]]] = {
    "align": (
        f"{{run}} {PAIRS}",
        {
            **OF_RUN,
            **pair_files("{run}"),
            "--output": "--output out",
            "--gold-alignments": "--gold-alignments {d}/a.links",
            "--base": Lines(
                f"{{run}} {PAIRS} --gold-alignments {{d}}/one.links",
                f"{{run}} {PAIRS} --gold-alignments {{d}}/one.links --base 1",
            ),
            "--site": Lines(f"{{layered}} {PAIRS}", f"{{layered}} {PAIRS} --site decoder.0.cross"),
            "--head": Lines(f"{{layered}} {PAIRS}", f"{{layered}} {PAIRS} --head 1"),
            "--shifted": "--shifted",
            "--backward": "--backward {back}",
            "--symmetrise": Lines(
                f"{{run}} {PAIRS} --backward {{back}}",
                f"{{run}} {PAIRS} --backward {{back}} --symmetrise union",
            ),
            "--choose": Lines(f"{{copied}} {PAIRS}", f"{{copied}} {PAIRS} --choose {{d}}/a.links"),
            "--probabilities": "--probabilities",
            "--threshold": "--threshold 0.05",
            "--unit": Lines(f"{{layered}} {PAIRS} --unit word", f"{{layered}} {PAIRS} --unit character"),
            "--page": "--page page.html",
            "--max-source-length": "--max-source-length 3",
            "--batch-tokens": "--batch-tokens 12",
            "--model": Lines(PAIRS, f"{PAIRS} --model {{d}}/b.rgd"),
            "--save-model": Lines(PAIRS, f"{PAIRS} --save-model out.rgd"),
            "--lexicon": Lines(PAIRS, f"{PAIRS} --lexicon out.tsv"),
            "--tokenizer": Lines(PAIRS, f"{PAIRS} --tokenizer morpheme"),
            "--draw": Lines(PAIRS, f"{PAIRS} --draw"),
            "--json": Lines(PAIRS, f"{PAIRS} --json"),
        },
    ),
    "ask": (
        '{babi} --story {d}/story.txt --question "Where is Mary?"',
        {
            **OF_RUN,
            "--story": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?"',
                '{babi} --story {d}/other.txt --question "Where is Mary?"',
            ),
            "--question": '--question "Where is John?"',
            "--encoding": ENCODING,
            "--output": "--output out",
            "--json": "--json",
            "--draw": "--draw",
            "--hide": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?" --draw',
                '{babi} --story {d}/story.txt --question "Where is Mary?" --draw --hide',
            ),
            "--page": "--page page.html",
        },
    ),
    "average": (
        "{run} --output out",
        {
            "--output": Lines("{run} --last 2 --output out", "{run} --last 2 --output other"),
            "--last": Lines("{run} --last 2 --output out", "{run} --last 3 --output out"),
            "--steps": Lines("{run} --last 2 --output out", "{run} --steps 10,20 --output out"),
            "--task": OWN_TASK,
        },
    ),
    "backends": ("", {"--why": "--why"}),
    "cache": ("", {}),
    "cache clear": ("--yes", {"--yes": Lines("", "--yes")}),
    "caption": (
        "{captioner} {d}/picture_0.png",
        {
            **OF_RUN,
            **SEARCH,
            "--length-penalty": Lines(
                "{captioner} {d}/picture_0.png --json",
                "{captioner} {d}/picture_0.png --json --length-penalty 9",
            ),
            "--output": "--output out",
            "--n-best": "--n-best 2",
            "--json": "--json",
            "--coco": "--coco out.json",
            "--draw": "--draw",
            "--page": "--page page.html",
            "--read": "--read expectation",
        },
    ),
    "classify": (
        "{classifier} --text 'good film' --text 'poor book'",
        {
            **OF_RUN,
            "--text": "--text 'good good'",
            "--second": Lines(
                "{paired} --text 'a' --second 'it is pos'", "{paired} --text 'a' --second 'it is neg'"
            ),
            "--columns": Lines(*(f"{{classifier}} {{d}}/labels.tsv --columns {n}" for n in (1, 2))),
            "--encoding": Refused("--encoding none-8", "none-8", "{classifier} {d}/prompts.txt"),
            "--output": "--output out",
            "--json": "--json",
            "--draw": "--draw",
            "--at-once": "--at-once 1",
            "--batch-tokens": "--batch-tokens 1",
        },
    ),
    "compare": (
        "",
        {
            **pair_files(""),
            "--study": "--study cost",
            "--quick": "--quick",
            "--length-bins": "--length-bins 5,9",
            "--sentences": "--sentences 7",
            "--models": "--models luong",
            "--seeds": "--seeds 2",
            "--width": "--width 8",
            "--widths": "--widths 8,16",
            "--steps": "--steps 9",
            "--batch-tokens": "--batch-tokens 99",
            "--set": "--set training.ema=0.5",
            "--output": "--output other",
            "--cache": "--cache other",
            "--jobs": "--jobs 2",
            "--stop-after": "--stop-after 3",
            "--device": "--device cuda",
            "--threads": "--threads 2",
            "--encoding": "--encoding cp949",
            "--valid-source": "--valid-source {d}/b.ko",
            "--valid-target": "--valid-target {d}/b.en",
            "--valid-tsv": "--valid-tsv {d}/b.tsv",
            "--valid-jsonl": "--valid-jsonl {d}/b.jsonl",
            "--tokenizer": "--tokenizer word",
            "--vocab-size": "--vocab-size 77",
        },
    ),
    "demo": (
        "--output out",
        {
            "--minutes": "--minutes 3",
            "--quick": "--quick",
            "--guided": "--guided",
            "--output": Lines("--output out", "--output other"),
            "--seed": "--seed 5",
        },
    ),
    "doctor": ("", {"--json": "--json"}),
    "evaluate": (
        f"{{run}} {PAIRS} --json",
        {
            **OF_RUN,
            **SEARCH,
            **pair_files("{run}", "--json"),
            "--json": Lines(f"{{run}} {PAIRS}", f"{{run}} {PAIRS} --json"),
            "--base": Lines(
                f"{{run}} {PAIRS} --json --gold-alignments {{d}}/one.links",
                f"{{run}} {PAIRS} --json --gold-alignments {{d}}/one.links --base 1",
            ),
            "--batch-tokens": "--batch-tokens 12",
            "--engine": Refused("--engine none", "ctranslate2"),
            "--faithfulness": "--faithfulness",
            "--gold-alignments": "--gold-alignments {d}/a.links",
            "--images": Lines(
                "{captioner} --tsv {d}/captions.tsv --images {d} --json",
                "{captioner} --tsv {d}/captions.tsv --images {d}/swapped --json",
            ),
            "--max-length": Lines(
                "{captioner} --split test --pictures 2 --json",
                "{captioner} --split test --pictures 2 --json --max-length 1",
            ),
            "--lengths": Lines("{copy} --sequences 2 --json", "{copy} --sequences 2 --json --lengths 3"),
            "--lowercase": "--lowercase",
            "--max-source-length": "--max-source-length 3",
            "--moses": "--moses en",
            "--other": Lines(
                f"{{run}} {PAIRS} --json --faithfulness",
                f"{{run}} {PAIRS} --json --faithfulness --other {{back}}",
            ),
            "--output": "--output out",
            "--page": "--page page.html",
            "--pictures": Lines(
                "{captioner} --split test --pictures 2 --json", "{captioner} --split test --pictures 3 --json"
            ),
            "--precision": "--precision bfloat16",
            "--read": Lines(
                "{captioner} --split test --pictures 2 --json",
                "{captioner} --split test --pictures 2 --json --read expectation",
            ),
            "--repeats": Lines(
                "{copy} --lengths 3 --sequences 2 --json",
                "{copy} --lengths 3 --sequences 2 --json --repeats 5",
            ),
            "--sentences": Lines(
                "{run} --split test --sentences 2 --json", "{run} --split test --sentences 3 --json"
            ),
            "--sequences": Lines(
                "{copy} --lengths 3 --sequences 2 --json", "{copy} --lengths 3 --sequences 3 --json"
            ),
            "--slots": Lines(
                "{copy} --lengths 3 --sequences 2 --json", "{copy} --lengths 3 --sequences 2 --slots 9 --json"
            ),
            "--split": Lines(
                "{run} --split test --sentences 2 --json", "{run} --split valid --sentences 2 --json"
            ),
            "--stride": Lines(
                "{lm} --test-file {d}/b.txt --json", "{lm} --test-file {d}/b.txt --stride 1 --json"
            ),
            "--window": Lines(
                "{lm} --test-file {d}/b.txt --json", "{lm} --test-file {d}/b.txt --window 3 --json"
            ),
            "--task": OWN_TASK,
            "--test-file": Lines("{lm} --json", "{lm} --test-file {d}/a.txt --json"),
            "--tokenize": "--tokenize char",
            "--translations": Lines(
                "--translations {d}/a.en --target {d}/a.en --json",
                "--translations {d}/b.en --target {d}/a.en --json",
            ),
            "--unit": Lines(
                f"{{layered}} {PAIRS} --json --gold-alignments {{d}}/a.links",
                f"{{layered}} {PAIRS} --json --gold-alignments {{d}}/a.links --unit character",
            ),
        },
    ),
    "export": (
        "{run} --to safetensors --output out",
        {
            "--to": Refused("", "safetensors", "{run} --to nowhere --output out"),
            "--output": Lines("{run} --to safetensors --output out", "{run} --to safetensors --output other"),
            "--quantization": "--quantization float16",
            "--check-file": Refused("--check-file none", "none"),
            "--checkpoint": Refused("--checkpoint 9999", "9999"),
            "--threads": "--threads 2",
        },
    ),
    "generate": (
        '{lm} --prompt "the cat" --max-new-tokens 6',
        {
            **OF_RUN,
            "--prompt": '--prompt "a dog"',
            "--prompt-file": Lines(
                "{lm} --prompt-file {d}/prompts.txt", "{lm} --prompt-file {d}/other_prompts.txt"
            ),
            "--encoding": Refused("--encoding none-8", "none-8", "{lm} --prompt-file {d}/prompts.txt"),
            "--output": "--output out",
            "--json": "--json",
            "--draw": "--draw",
            "--page": "--page page.html",
            "--max-new-tokens": Lines(
                '{lm} --prompt "the cat" --max-new-tokens 6', '{lm} --prompt "the cat" --max-new-tokens 1'
            ),
            "--stop": Lines(
                '{lm} --prompt "the cat" --json', '{lm} --prompt "the cat" --json --stop the --stop a'
            ),
            "--beam-size": "--json --beam-size 2",
            "--length-penalty": Lines(
                '{lm} --prompt "the" --beam-size 3 --json',
                '{lm} --prompt "the" --beam-size 3 --json --length-penalty 9',
            ),
            "--n-best": "--beam-size 2 --n-best 2",
            "--sample": "--json --sample",
            "--temperature": Lines(
                f'{{lm}} --prompt "the cat" {SAMPLE} --json',
                f'{{lm}} --prompt "the cat" {SAMPLE} --json --temperature 0.01',
            ),
            "--top-k": Lines(
                f'{{lm}} --prompt "the cat" {SAMPLE}', f'{{lm}} --prompt "the cat" {SAMPLE} --top-k 1'
            ),
            "--top-p": Lines(
                f'{{lm}} --prompt "the cat" {SAMPLE}', f'{{lm}} --prompt "the cat" {SAMPLE} --top-p 0.01'
            ),
            "--seed": Lines(
                '{lm} --prompt "the cat" --sample --json', '{lm} --prompt "the cat" --sample --json --seed 7'
            ),
            "--batch-tokens": '--prompt "a dog" --batch-tokens 1',
        },
    ),
    "intervene": (
        f"{{run}} {TEXT} --cut 0-0",
        {
            **OF_RUN,
            **SEARCH,
            "--text": Lines(f"{{run}} {TEXT} --cut 0-0", '{run} --text "그는 갔다 ." --cut 0-0'),
            "--cut": "--cut 1-1",
            "--force": "--force 0-1",
            "--erase": "--erase 1",
            "--uniform": "--uniform cross",
            "--drop": "--drop cross",
            "--site": Lines(
                f"{{layered}} {TEXT} --cut 0-0 --json",
                f"{{layered}} {TEXT} --cut 0-0 --json --site decoder.0.cross",
            ),
            "--head": Lines(
                f"{{layered}} {TEXT} --cut 0-0 --json", f"{{layered}} {TEXT} --cut 0-0 --json --head 1"
            ),
            "--data": "--data {d}/changes.json",
            "--json": "--json",
            "--image": Lines(
                "{captioner} --image {d}/picture_0.png --erase 1",
                "{captioner} --image {d}/picture_1.png --erase 1",
            ),
            "--second": Lines(
                "{paired} --text 'a b' --second 'it is pos' --uniform pool",
                "{paired} --text 'a b' --second 'is neg' --uniform pool",
            ),
            "--story": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?" --erase 0',
                '{babi} --story {d}/other.txt --question "Where is Mary?" --erase 0',
            ),
            "--question": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?" --erase 0',
                '{babi} --story {d}/story.txt --question "Where is John?" --erase 0',
            ),
            "--encoding": Refused(
                "--encoding none-8",
                "none-8",
                '{babi} --story {d}/story.txt --question "Where is Mary?" --erase 0',
            ),
            "--length": Lines("{copy} --length 3 --erase 0", "{copy} --length 4 --erase 0"),
            "--sequence": Lines(
                '{copy} --sequence \'{{"vectors": ["101", "011"], "repeats": 2}}\' --erase 0',
                '{copy} --sequence \'{{"vectors": ["001", "011"], "repeats": 2}}\' --erase 0',
            ),
        },
    ),
    "score": (
        f"{{run}} {PAIRS}",
        {
            **OF_RUN,
            **pair_files("{run}"),
            "--text": Lines("{lm} --text 'the cat'", "{lm} --text 'the dog'"),
            "--output": "--output out",
            "--tokens": "--tokens",
            "--json": "--json",
            "--max-source-length": "--max-source-length 3",
            "--batch-tokens": "--batch-tokens 12",
        },
    ),
    "show": ("{run}", {"--json": "--json", "--task": OWN_TASK}),
    "solve": (
        "{copy} --length 3",
        {
            **OF_RUN,
            "--sequence": Lines(
                '{copy} --sequence \'{{"vectors": ["101", "011"], "repeats": 2}}\'',
                '{copy} --sequence \'{{"vectors": ["001", "011"], "repeats": 2}}\'',
            ),
            "--sequences": "--sequences 2",
            "--length": Lines("{copy} --length 3", "{copy} --length 4"),
            "--repeats": "--repeats 5",
            "--seed": "--seed 5",
            "--slots": "--json --slots 9",
            "--output": "--output out",
            "--page": "--page page.html",
            "--json": "--json",
            "--draw": "--draw",
        },
    ),
    "tour": ("", {"--quick": "--quick"}),
    "train": (
        f"{PAIRS} --output out --dry-run {{quick}}",
        {
            **pair_files("", "--output out --dry-run {quick}"),
            "--output": Lines(
                f"{PAIRS} --output out --steps 2 {{quick}}", f"{PAIRS} --output other --steps 2 {{quick}}"
            ),
            "--dry-run": Lines(
                f"{PAIRS} --output out --steps 2 {{quick}}",
                f"{PAIRS} --output out --steps 2 {{quick}} --dry-run",
            ),
            "--recipe": "--recipe {d}/recipe.toml",
            "--set": "--set training.ema=0.5",
            "--device": DEVICE,
            "--threads": "--threads 2",
            "--resume": Lines("--output {copied} --dry-run", "--output {copied} --dry-run --resume"),
            "--change": Lines(
                f"{PAIRS} --output {{run}} --resume --dry-run", "--output {run} --resume --dry-run --change"
            ),
            "--train-file": Lines(
                "--task language --train-file {d}/a.txt --output out --dry-run {quick}",
                "--task language --train-file {d}/b.txt --output out --dry-run {quick}",
            ),
            "--valid-file": Lines(TRAIN_TEXT, f"{TRAIN_TEXT} --valid-file {{d}}/b.txt"),
            "--images": Lines(TRAIN_CAPTIONS, f"{TRAIN_CAPTIONS} --images {{d}}/swapped"),
            "--built-in": Lines(
                "--task algorithms --output out --dry-run",
                "--task algorithms --output out --dry-run --built-in repeat-copy",
            ),
            "--valid-source": "--valid-source {d}/b.ko --valid-target {d}/b.en",
            "--valid-target": Refused("--valid-target {d}/b.en", "valid_source"),
            "--valid-tsv": "--valid-tsv {d}/b.tsv",
            "--valid-jsonl": "--valid-jsonl {d}/b.jsonl",
            "--gold-alignments": "--gold-alignments {d}/a.links",
            "--tokenizer": Lines(f"{TRAIN_PAIRS} --tokenizer word", f"{TRAIN_PAIRS} --tokenizer character"),
            "--vocab-size": "--vocab-size 20",
            "--task": Refused("--task language", "--source"),
            "--model": "--model luong",
            "--width": Lines(f"{TRAIN_PAIRS} --tokenizer word", f"{TRAIN_PAIRS} --tokenizer word --width 6"),
            "--dropout": "--dropout 0.3",
            "--score": "--score dot",
            "--select": "--select sparsemax",
            "--position": Lines(
                f"{PAIRS} --output out --dry-run --tokenizer word --model transformer",
                f"{PAIRS} --output out --dry-run --tokenizer word --model transformer --position rotary",
            ),
            "--readout": Lines(
                f"{PAIRS} --output out --dry-run --tokenizer word --model luong",
                f"{PAIRS} --output out --dry-run --tokenizer word --model luong --readout latent",
            ),
            "--minutes": "--minutes 3",
            "--steps": "--steps 3",
            "--epochs": "--epochs 3",
            "--patience": "--patience 3",
            "--batch-tokens": "--batch-tokens 77",
            "--batch-size": "--batch-size 7",
            "--learning-rate": "--learning-rate 0.5",
            "--label-smoothing": "--label-smoothing 0.3",
            "--guided": "--gold-alignments {d}/a.links --guided 0.5",
            "--estimator": "--select hard --estimator reinforce",
            "--precision": "--precision float32",
            "--tensorboard": "--tensorboard",
            "--logger": Refused(
                "--logger nowhere:log", "nowhere", f"{PAIRS} --output out --steps 1 {{quick}}"
            ),
            "--seed": "--seed 3",
            "--seeds": "--seeds 2",
            "--init-from": Lines(TRAIN_PAIRS, f"{TRAIN_PAIRS} --init-from {{run}}"),
        },
    ),
    "translate": (
        f"{{run}} {TEXT}",
        {
            **OF_RUN,
            **SEARCH,
            "--text": Lines(f"{{run}} {TEXT} --scores", '{run} --text "그는 갔다 ." --scores'),
            "--encoding": Refused("--encoding none-8", "none-8", "{run} {d}/a.ko"),
            "--output": "--output out",
            "--scores": "--scores",
            "--json": "--json",
            "--draw": "--draw",
            "--page": "--page page.html",
            "--alignments": "--alignments links",
            "--probabilities": Lines(
                f"{{run}} {TEXT} --alignments links", f"{{run}} {TEXT} --alignments links --probabilities"
            ),
            "--unit": Lines(
                f"{{layered}} {TEXT} --alignments links --unit word",
                f"{{layered}} {TEXT} --alignments links --unit character",
            ),
            "--at-once": Lines("{run} {d}/a.ko", "{run} {d}/a.ko --at-once 1"),
            "--n-best": "--n-best 2",
            "--sample": "--sample",
            "--temperature": Lines(
                f"{{run}} {TEXT} --scores {SAMPLE}", f"{{run}} {TEXT} --scores {SAMPLE} --temperature 0.01"
            ),
            "--top-k": Lines(f"{{run}} {TEXT} {SAMPLE}", f"{{run}} {TEXT} {SAMPLE} --top-k 1"),
            "--top-p": Lines(f"{{run}} {TEXT} {SAMPLE}", f"{{run}} {TEXT} {SAMPLE} --top-p 0.01"),
            "--seed": Lines(f"{{run}} {TEXT} --sample", f"{{run}} {TEXT} --sample --seed 7"),
            "--max-source-length": "--max-source-length 3",
            "--overlong": Lines(
                "{run} --text '나는 갔다 . 그는 왔다 .' --max-source-length 5",
                "{run} --text '나는 갔다 . 그는 왔다 .' --max-source-length 5 --overlong truncate",
            ),
            "--batch-tokens": Lines("{run} {d}/a.ko", "{run} {d}/a.ko --batch-tokens 12"),
            "--precision": "--scores --precision int8",
            "--engine": Refused("--engine none", "ctranslate2"),
        },
    ),
    "view": (
        f"{{run}} {TEXT}",
        {
            **OF_RUN,
            **SEARCH,
            "--huggingface": Refused("--huggingface {d}", "huggingface"),
            "--text": Lines(f"{{run}} {TEXT}", '{run} --text "그는 갔다 ."'),
            "--target": '--target "He went ."',
            "--output": "--output out.seen",
            "--view": "--view shaded",
            "--site": Lines(f"{{layered}} {TEXT}", f"{{layered}} {TEXT} --site decoder.0.cross"),
            "--head": Lines(f"{{layered}} {TEXT}", f"{{layered}} {TEXT} --head 1"),
            "--word": Lines(f"{{run}} {TEXT} --view word", f"{{run}} {TEXT} --view word --word 1"),
            "--subwords": Lines("{back} --text 'I do not want'", "{back} --text 'I do not want' --subwords"),
            "--specials": "--specials hide",
            "--by-values": "--by-values",
            "--image": Lines(
                "{captioner} --image {d}/picture_0.png", "{captioner} --image {d}/picture_1.png"
            ),
            "--second": Lines(
                "{paired} --text 'a b' --second 'it is pos'", "{paired} --text 'a b' --second 'is neg'"
            ),
            "--story": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?"',
                '{babi} --story {d}/other.txt --question "Where is Mary?"',
            ),
            "--question": Lines(
                '{babi} --story {d}/story.txt --question "Where is Mary?"',
                '{babi} --story {d}/story.txt --question "Where is John?"',
            ),
            "--encoding": Refused(
                "--encoding none-8", "none-8", '{babi} --story {d}/story.txt --question "Where is Mary?"'
            ),
            "--length": Lines("{copy} --length 3", "{copy} --length 4"),
            "--sequence": Lines(
                '{copy} --sequence \'{{"vectors": ["101", "011"], "repeats": 2}}\'',
                '{copy} --sequence \'{{"vectors": ["001", "011"], "repeats": 2}}\'',
            ),
            "--slot": Lines("{copy} --view slot --length 3", "{copy} --view slot --length 3 --slot 1"),
            "--task": OWN_TASK,
        },
    ),
    "data check": (
        PAIRS,
        {
            **pair_files(""),
            "--columns": Lines(ROWS, f"{ROWS} --columns 1,3"),
            "--fields": Lines("--jsonl {d}/a.jsonl", "--jsonl {d}/a.jsonl --fields source,other"),
            "--choose": "--choose longest=60",
            "--align": "--align out.tsv",
        },
    ),
    "data fetch": (
        "tiny --from {d}/here",
        {
            "--output": "--output other",
            "--from": Lines("tiny --from {d}", "tiny --from {d}/here"),
            "--any-edition": Lines("tiny --from {d}/there", "tiny --from {d}/there --any-edition"),
        },
    ),
    "data korean": (
        "--pairs 2 --output out",
        {
            "--pairs": Lines("--pairs 2 --output out", "--pairs 3 --output out"),
            "--split": "--split test",
            "--seed": "--seed 4",
            "--output": Lines("--pairs 2 --output out", "--pairs 2 --output -"),
            "--overwrite": Lines("--pairs 2 --output {d}/full", "--pairs 2 --output {d}/full --overwrite"),
        },
    ),
    "data sample": (
        "",
        {"--count": "--count 1", "--split": "--split test", "--seed": "--seed 4"},
    ),
    "data split": (
        f"{PAIRS} --held-out 4 --output out",
        {
            **pair_files("", "--held-out 4 --output out"),
            "--choose": Lines(
                f"{PAIRS} --held-out 1 --output out", f"{PAIRS} --held-out 1 --output out --choose longest=60"
            ),
            "--held-out": Lines(f"{PAIRS} --held-out 4 --output out", f"{PAIRS} --held-out 5 --output out"),
            "--names": "--names ko,en",
            "--output": Lines(f"{PAIRS} --held-out 4 --output out", f"{PAIRS} --held-out 4 --output other"),
            "--overwrite": Lines(
                f"{PAIRS} --held-out 4 --output {{d}}/full",
                f"{PAIRS} --held-out 4 --output {{d}}/full --overwrite",
            ),
            "--seed": "--seed 4",
        },
    ),
}
"""Command -> its usual line, and for each option what changes: words to add to the usual line (their result
must differ from that of the usual line), two lines whose results must differ, or a value that is refused by
name."""

BATCHES = (
    "regard.decoding.translator._batches",
    "regard.evaluation.text_classifier.batches_by_length",
)
"""Functions that divide sentences into batches. The batches of every command are recorded."""

TIMES = re.compile(r'\s*"?(time|seconds|[a-z_]+_per_second)\b')
"""Lines of the output that differ from one call to the next."""

FREE = re.compile(r"[\d.,]+ [KMGT]iB free")
"""Free memory and disk space, which change while other programs run."""

STDERR = ("align",)
"""Commands that print a part of their result to standard error."""

STOPPED = (
    "regard.compare.comparison.compare",
    "regard.compare.run_study.compare_runs",
    "regard.tasks.translation.train_translation",
)
"""Functions whose arguments are recorded instead of a call, which would take minutes."""

QUICK = "--set model.width=8 --set data.held_out=5 --set data.tokenizer=word --set training.warmup_steps=1"


@pytest.fixture(scope="module")
def places(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and small trained runs, by their names in the lines of TABLE."""
    folder = tmp_path_factory.mktemp("every_option")
    written(folder, 6)
    written(folder, 6, "test", "b")
    for side in ("ko", "en"):  # the fourth line has a control character, which regard data check reports
        path = folder / f"b.{side}"
        path.write_text(path.read_text("utf-8").replace(".", "\x00.", 1), "utf-8")
    for name in "ab":
        sides = [(folder / f"{name}.{side}").read_text("utf-8").splitlines() for side in ("ko", "en")]
        rows = [(*pair, pair[0] * (number > 0)) for number, pair in enumerate(zip(*sides, strict=True))]
        names = ("source", "target", "other")
        objects = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
        (folder / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), "utf-8")
        (folder / f"{name}.jsonl").write_text("".join(f"{each}\n" for each in objects), "utf-8")
    read = [(folder / f"b.{side}").read_text("utf-8").splitlines() for side in ("ko", "en")]
    Aligner().fit(zip(*read, strict=True)).save(folder / "b.rgd")
    change = {"kind": "cut", "row": 0, "key": 1, "at": "*cross"}
    (folder / "changes.json").write_text(json.dumps({"interventions": [change]}))
    links = (folder / "a.links").read_text()
    (folder / "one.links").write_text(re.sub(r"\d+", lambda number: str(int(number[0]) + 1), links))
    (folder / "recipe.toml").write_text("[training]\nema = 0.25\n")
    (folder / "story.txt").write_text("Mary went to the garden.\nJohn went to the office.\n")
    (folder / "other.txt").write_text("Mary went to the hall.\nMary went to the kitchen.\n")
    (folder / "prompts.txt").write_text("the cat\n")
    (folder / "other_prompts.txt").write_text("a dog\n")
    text = small_language.text_files(folder)
    stories = small_stories.written(folder)
    labels = [
        (label, f"{word} film {n}") for n in range(8) for label, word in (("pos", "good"), ("neg", "poor"))
    ]
    (folder / "labels.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in labels))
    (folder / "second.tsv").write_text("".join(f"{a}\t{b}\tit is {a}\n" for a, b in labels))
    (folder / "swapped").mkdir()
    for number, image in enumerate(shapes("test", 4).images(range(4)).permute(0, 2, 3, 1).numpy()):
        Image.fromarray(image).save(folder / f"picture_{number}.png")
        Image.fromarray(image).save(folder / "swapped" / f"picture_{3 - number}.png")
    texts = ["above above large diamond above large diamond", *["a red circle"] * 3]
    captions = "".join(f"picture_{number}.png\t{text}\n" for number, text in enumerate(texts))
    (folder / "captions.tsv").write_text(captions)
    for name, line in (("here", "Hi.\t안녕.\n"), ("there", "Ho.\t호.\n")):
        (folder / name).mkdir()
        (folder / name / "all.tsv").write_text(line, encoding="utf-8")
    (folder / "full").mkdir()
    for name in ("train.source", "train.ko"):
        (folder / "full" / name).write_text("x\n")
    few = {"steps": 2, "warmup_steps": 1, "evaluate_every": 2}
    korean = {"built_in": "korean", "pairs": 200, "held_out": 8}
    characters = {**korean, "tokenizer": "character"}
    tiny = {"name": "transformer", "size": "tiny", "width": 16, "heads": 2, "layers": 2}
    back = {"target": [str(folder / "a.ko")], "source": [str(folder / "a.en")], "held_out": 1}
    quiet = {"sentences": 1, "samples": 0}
    classes = {"training": {**few, "batch_size": 8}, "model": {"width": 8}, "evaluation": {"samples": 0}}
    runs = {
        "layered": ("translation", {"data": characters, "model": tiny, "training": few, "evaluation": quiet}),
        "back": (
            "translation",
            {"data": back, "model": {"width": 8}, "training": few, "evaluation": quiet},
        ),
        "lm": ("language", small_language.small(text, "transformer")),
        "classifier": ("classification", {**classes, "data": {"train_file": [str(folder / "labels.tsv")]}}),
        "paired": (
            "classification",
            {**classes, "data": {"train_file": [str(folder / "second.tsv")], "second": 3}},
        ),
        "captioner": (
            "captioning",
            {
                "seed": 1,  # with this seed, the captions have words
                "data": {"built_in": "shapes", "pictures": 10, "max_length": 6},
                "model": {
                    "width": 8,
                    "embedding": 8,
                    "select": "hard",
                    "encoder_options": {"features": 8, "channels": 4},
                },
                "training": {
                    "steps": 1,
                    "warmup_steps": 1,
                    "learning_rate": 0.01,
                    "batch_size": 8,
                    "estimator": "reinforce",
                },
                "evaluation": {"images": 1, "samples": 0},
            },
        ),
        "babi": ("answering", small_stories.small([stories])),
        "copy": (
            "algorithms",
            {**SMALL_ALGORITHMS, "data": {"built_in": "repeat-copy", "width": 3, "length": [1, 3]}},
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(folder / "cache"))
        for name, (task, settings) in runs.items():
            machine, console = Machine("cpu", 1), Console(quiet=True)
            train_run(find_task(task), settings, folder / name, machine=machine, console=console)
    shutil.copytree(trained, folder / "copied")
    paths = {name: str(folder / name) for name in (*runs, "copied")}
    return {**paths, "run": str(trained), "d": str(folder), "quick": QUICK}


@pytest.fixture
def facts(
    command: Callable[..., Any], places: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str, str], tuple[Any, str]]:
    """A function that runs a line in a new folder, and returns the facts of its result, and the errors."""
    record: list[str] = []

    def recorded(function: Callable[..., Any], stops: bool) -> Callable[..., Any]:
        def recording(*arguments: Any, **options: Any) -> Any:
            if stops:
                record.append(re.sub(" at 0x[0-9a-f]+", "", f"{arguments} {options}"))
                raise typer.Exit(0)
            batches = list(map(list, function(*arguments, **options)))
            record.append(str(batches))
            return batches

        return recording

    for place in (*BATCHES, *STOPPED):
        module, _, name = place.rpartition(".")
        function = getattr(importlib.import_module(module), name)
        monkeypatch.setattr(importlib.import_module(module), name, recorded(function, place in STOPPED))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: record.append(f"{count} threads"))
    monkeypatch.setenv("REGARD_CACHE", str(Path(places["d"]) / "cache"))
    monkeypatch.setitem(SETS, "tiny", known("Hi.\t안녕.\n", editions=True))
    numbers = itertools.count()

    def facts(name: str, words: str) -> tuple[Any, str]:
        folder = tmp_path / f"work{next(numbers)}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        del record[:]
        line = words.format(**places)
        result = command(*name.split(), *shlex.split(line), width=200)
        lines = [each for each in result.out.splitlines() if not TIMES.match(each)]
        files = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        lines += result.err.splitlines() if name in STDERR else []
        text = FREE.sub("free", "\n".join(lines)).replace(str(folder), "folder")
        return (result.status, text, files, "".join(record).replace(str(folder), "folder")), result.err

    return facts


USUAL: dict[tuple[str, str], Any] = {}
"""The facts of lines that several tests compare with."""


def names_of(name: str) -> set[str]:
    """Return the options of a command, each by its first name."""
    return {each.opts[0] for each in parameters(COMMANDS[name], "option") if each.name != "help"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_table_has_every_option(name):
    assert names_of(name) == (set(TABLE[name][1]) if name in TABLE else set())


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, (_, changes) in TABLE.items() for option in changes]
)
def test_the_option_changes_the_result(name, option, facts):
    usual, changes = TABLE[name]
    change = changes[option]
    first, second = change if isinstance(change, Lines) else (usual, f"{usual} {change}")
    if isinstance(change, Refused):
        line = usual if change.usual is None else change.usual
        (status, *_), error = facts(name, f"{line} {change.words}")
        assert status == 2 and change.error in error
        return
    assert option in second.split()
    if (name, first) not in USUAL:
        USUAL[name, first] = facts(name, first)[0]
    changed, error = facts(name, second)
    assert changed[0] == 0, error
    assert changed != USUAL[name, first]


@pytest.mark.parametrize("name", sorted({*TABLE} - {"cache clear"}))
def test_the_usual_line_has_the_same_result_again(name, facts):
    first, _ = facts(name, TABLE[name][0])
    assert facts(name, TABLE[name][0])[0] == first
