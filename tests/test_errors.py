"""Invalid input: the message has the call, the problem, shapes in aligned rows, what was expected, a hint."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.errors import Setting, lettered, message, similar_path
from tests.facts import mentions

ROW = re.compile(
    r"  (\S+) +((?:[A-Z?]=\d+ ?)+|a single number) +((?:b?float|int|bool)\d* (?:cpu|meta|cuda\S*))$"
)


def shown(error: regard.RegardError, call: str, hint: bool = True) -> list[str]:
    """Check the parts and the alignment of a message, and return the names of the tensors that it shows."""
    first, *rest = str(error).split("\n")
    assert first.startswith(f"{call}: ")
    kinds = [line.split(":")[0] for line in rest if not line.startswith("  ")]
    assert kinds == ["expected", "hint"] or (not hint and kinds == ["expected"])
    rows = [ROW.match(line) for line in rest if line.startswith("  ")]
    assert rows and all(rows)
    assert len({row.start(2) for row in rows}) == len({row.start(3) for row in rows}) == 1
    return [row[1] for row in rows]


def f(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(shape, **options)


ATTENTION: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "widths": ((f(2, 8), f(3, 4)), {}, "query and key have different widths"),
    "widths of a score": ((f(2, 8), f(3, 4)), {"score": regard.General(8, 5)}, "do not match this General"),
    "widths of an additive score": (
        (f(2, 8), f(3, 4)),
        {"score": regard.Additive(7, 4)},
        "do not match this Additive",
    ),
    "too many positions": ((f(2, 8), f(9, 4)), {"score": regard.Location(8, 6)}, "S = 9"),
    "values": ((f(2, 3, 4), f(2, 5, 4), f(2, 6, 4)), {}, "keys and values"),
    "batches": ((f(2, 3, 4), f(3, 5, 4)), {}, "batch"),
    "heads": ((f(2, 3, 1, 4), f(2, 2, 5, 4)), {}, "heads"),
    "heads of value": ((f(1, 4, 1, 4), f(1, 2, 5, 4), f(1, 4, 5, 4)), {}, "different numbers of heads"),
    "numbers of dimensions": ((f(2, 4), f(2, 5, 4)), {}, "query has 2 dimensions, key has 3"),
    "one dimension": ((f(4), f(4)), {}, "query has 1 dimensions"),
    "dtypes": ((f(2, 4), f(5, 4).double()), {}, "dtypes"),
    "dtype of a score": ((f(2, 4), f(5, 4)), {"score": regard.General(4, 4).double()}, "dtype"),
    "devices": ((f(2, 4), f(5, 4, device="meta")), {}, "devices"),
    "device of a score": ((f(2, 4), f(5, 4)), {"score": regard.Additive(4, 4).to("meta")}, "device"),
    "integers": ((f(2, 4).long(), f(5, 4).long()), {}, "floating-point"),
    "score by name": ((f(2, 4), f(5, 4)), {"score": "dot"}, "score is 'dot'"),
    "select by name": ((f(2, 4), f(5, 4)), {"select": "soft"}, "select is 'soft'"),
    "a bias that is none": ((f(2, 4), f(5, 4)), {"bias": regard.Rotary(4)}, "bias is Rotary"),
    "bias sizes": ((f(2, 3, 4), f(2, 5, 4)), {"bias": f(3, 3, 5)}, "bias does not broadcast"),
    "bias of bool": ((f(2, 4), f(5, 4)), {"bias": f(2, 5).bool()}, "bool"),
    "bias device": ((f(2, 4), f(5, 4)), {"bias": f(2, 5, device="meta")}, "device"),
    "negative start": ((f(2, 4), f(5, 4)), {"start": -1}, "start is -1"),
    "fractional start": ((f(2, 4), f(5, 4)), {"start": 1.5}, "start is 1.5"),
    "dropout of 1": ((f(2, 4), f(5, 4)), {"dropout": 1.0}, "dropout is 1.0"),
    "negative dropout": ((f(2, 4), f(5, 4)), {"dropout": -0.1}, "dropout is -0.1"),
    "float mask": ((f(2, 4), f(5, 4)), {"mask": f(2, 5)}, "float32"),
    "whole mask": ((f(2, 4), f(5, 4)), {"mask": f(2, 5).int()}, "int32"),
    "3-D mask, 4-D query": ((f(2, 3, 4, 4), f(2, 3, 5, 4)), {"mask": f(2, 4, 5).bool()}, "3-D mask"),
    "1-D mask": ((f(2, 4), f(5, 4)), {"mask": f(5).bool()}, "1-D mask"),
    "0-D mask": ((f(2, 4), f(5, 4)), {"mask": f().bool()}, "mask has 0 dimensions"),
    "5-D mask": ((f(2, 4), f(5, 4)), {"mask": f(1, 1, 1, 2, 5).bool()}, "mask has 5 dimensions"),
    "mask sizes": ((f(2, 4), f(5, 4)), {"mask": f(3, 5).bool()}, "does not broadcast to"),
    "lengths": ((f(2, 3, 4), f(2, 5, 4)), {"mask": regard.padding(torch.ones(3).long())}, "has 3 lengths"),
    "lengths in a condition": (
        (f(2, 3, 4), f(2, 5, 4)),
        {"mask": ~regard.padding(torch.ones(3).long())},
        "has 3 lengths",
    ),
    "documents": (
        (f(1, 3, 4), f(1, 5, 4)),
        {"mask": regard.documents(f(1, 3).long())},
        "3 queries and 3 keys",
    ),
    "documents past start": (
        (f(1, 3, 4), f(1, 3, 4)),
        {"mask": regard.documents(f(1, 3).long()), "start": 1},
        "3 queries and 3 keys",
    ),
    "heads of ALiBi": ((f(1, 2, 3, 4), f(1, 2, 5, 4)), {"bias": regard.ALiBi(heads=4)}, "heads"),
    "heads of T5": ((f(1, 4, 3, 4), f(1, 4, 5, 4)), {"bias": regard.T5Bias(heads=2)}, "heads"),
    "width of Relative": ((f(2, 4), f(5, 4)), {"bias": regard.Relative(size=3)}, "width"),
    "width of Relative values": ((f(2, 4), f(5, 4)), {"bias": regard.Relative(4, values=3)}, "width"),
    "heads of a score": ((f(2, 3, 4), f(2, 5, 4)), {"score": regard.General(4, 4, heads=2)}, "heads"),
    "other heads of a score": (
        (f(1, 3, 2, 4), f(1, 3, 5, 4)),
        {"score": regard.Additive(4, 4, heads=2)},
        "heads",
    ),
    "centres": ((f(2, 3, 4), f(2, 5, 4)), {"select": regard.LocalP(f(2, 2), width=1)}, "centre"),
    "sharpness": ((f(2, 3, 4), f(2, 5, 4)), {"score": regard.Cosine(f(2, 2))}, "sharpness"),
}
BY_NAME = {"score by name", "select by name", "a bias that is none", "negative start", "fractional start"}
WITHOUT_HINT = BY_NAME | {"values", "heads of value", "dropout of 1", "negative dropout"}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_errors_name_the_problem(name: str):
    arguments, options, says = ATTENTION[name]
    with pytest.raises(regard.ArgumentError, match=re.escape(says)) as error:
        regard.attention(*arguments, **options)
    hint = not (name in WITHOUT_HINT or "mask" in options or "bias" in options)
    tensors = shown(error.value, "attention()", hint=hint)
    assert {"mask", "query", "lengths"} & set(tensors)


def test_a_whole_message():
    with pytest.raises(regard.ArgumentError) as error:
        regard.attention(f(2, 10, 8), f(2, 3, 4), f(2, 3, 16).half())
    assert str(error.value) == (
        "attention(): the tensors have different dtypes\n"
        "  query  B=2 T=10 D=8  float32 cpu\n"
        "  key    B=2 S=3 D=4   float32 cpu\n"
        "  value  B=2 S=3 E=16  float16 cpu\n"
        "expected: one dtype\n"
        "hint: use .to(query.dtype) or torch.autocast"
    )


ELSEWHERE: dict[str, tuple[Callable[[], object], str, str]] = {
    "padding": (lambda: regard.padding(f(2, 3).bool()), "padding()", "integers"),
    "padding of floats": (lambda: regard.padding(f(2)), "padding()", "integers"),
    "documents": (lambda: regard.documents(f(3).long()), "documents()", "2-D"),
    "read": (lambda: regard.read(f(2, 5), f(4, 3)), "read()", "shapes"),
    "read dtypes": (lambda: regard.read(f(2, 5), f(5, 3).double()), "read()", "dtypes"),
    "prepare": (
        lambda: regard.prepare(f(2, 5, 4), score=regard.Additive(4, 6)),
        "prepare()",
        "does not match this Additive",
    ),
    "prepare mask": (
        lambda: regard.prepare(f(2, 5, 4), mask=regard.padding(torch.ones(3).long())),
        "prepare()",
        "batch size 3",
    ),
    "append": (lambda: regard.prepare(f(5, 4)).append(f(1, 3)), "Memory.append()", "do not match"),
    "rotary": (lambda: regard.Rotary(4)(f(2, 6)), "Rotary()", "width 6"),
    "learned": (lambda: regard.Learned(4, 8)(f(2, 6)), "Learned()", "width 4"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_errors_name_the_call_that_failed(name: str):
    make, call, says = ELSEWHERE[name]
    with pytest.raises(regard.ArgumentError, match=re.escape(says)) as error:
        make()
    assert shown(error.value, call, hint=False) or shown(error.value, call)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: regard.window(-1, 2), "window(): left is -1"),
        (lambda: regard.Rotary(5), "Rotary(): size is 5"),
        (lambda: regard.MultiHead(8, 3), "MultiHead(): width=8, heads=3 and key_heads=3"),
        (lambda: regard.MultiHead(8, 4, key_heads=3), "width=8, heads=4 and key_heads=3"),
        (lambda: regard.MultiHead(8, 2, position="learned"), "MultiHead(): Learned"),
        (lambda: regard.Sparse(3.0), "Sparse(): alpha is 3.0"),
        (lambda: regard.Soft(-1.0), "Soft(): temperature is -1.0"),
        (lambda: regard.LocalP(f(2), width=0), "LocalP(): width is 0"),
        (lambda: regard.attention(f(2, 4), f(5, 4), mask="causal"), "attention(): mask is of type str"),
        (lambda: regard.attention(f(2, 4), f(5, 4), beams=[2]), "attention(): beams is [2]"),
        (lambda: regard.attention(f(2, 4), f(5, 4), beams=2.0), "attention(): beams is 2.0"),
        (lambda: regard.dense([[True]]), "dense(): the mask is of type list"),
        (lambda: regard.dense(np.ones((2, 2), bool)), "dense(): the mask is of type ndarray"),
        (lambda: regard.dense(regard.causal()), "dense(): the mask is of type Mask"),
        (lambda: regard.padding("3"), "padding(): torch.as_tensor() cannot convert lengths"),
        (lambda: regard.padding(None), "an argument of type NoneType"),
        (lambda: regard.padding(torch.ones(2, dtype=torch.complex64)), "padding(): lengths must be integers"),
        (lambda: regard.documents([[0, 1], [0]]), "documents(): torch.as_tensor() cannot convert queries"),
        (lambda: regard.documents([[0]], {0: 1}), "documents(): torch.as_tensor() cannot convert keys"),
        (lambda: regard.documents(torch.ones(1, 2, dtype=torch.complex64)), "complex"),
        (lambda: regard.read([[1.0]], f(1, 3)), "read(): weights is of type list"),
        (lambda: regard.read(f(1, 1), np.ones((1, 3))), "read(): value is of type ndarray"),
        (lambda: regard.ALiBi(2.5), "ALiBi(): heads is 2.5"),
        (lambda: regard.ALiBi(0), "ALiBi(): heads is 0"),
        (lambda: regard.T5Bias([2]), "T5Bias(): heads is [2]"),
        (lambda: regard.Relative(-1), "Relative(): size is -1"),
        (lambda: regard.Relative(4, furthest=None), "Relative(): furthest is None"),
        (lambda: regard.MultiHead(8, "2"), "MultiHead(): heads is '2'"),
        (lambda: regard.MultiHead(8, 2, dropout=1.5), "MultiHead(): dropout is 1.5"),
    ],
)
def test_invalid_values_and_types_raise(make: Callable[[], object], says: str):
    with pytest.raises(regard.ArgumentError, match=re.escape(says)) as error:
        make()
    assert "\nexpected: " in str(error.value)


def test_integers_of_other_types_are_accepted():
    """An empty list of lengths is for an empty batch; 0 in Relative means no values, or one distance."""
    assert regard.padding([]).lengths.dtype == torch.int64
    assert regard.padding(np.array([2, 1], dtype=np.int32)).lengths.tolist() == [2, 1]
    assert regard.documents(np.array([[0, 1]])).documents is not None
    assert regard.Relative(np.int64(4), values=0, furthest=0).key_table.shape == (1, 4)
    assert regard.MultiHead(8, np.int64(2), dropout=np.float32(0.5)).heads == 2


@pytest.mark.parametrize(
    ("make", "says", "known"),
    [
        (lambda: regard.attention(f(2, 4), f(5, 4), backend="spda"), "unknown backend 'spda'", "sdpa"),
        (lambda: regard.build_score("adititive", 4, 4), "unknown score 'adititive'", "additive"),
        (lambda: regard.build_position("rotory", 4, 2), "unknown position scheme 'rotory'", "rotary"),
        (lambda: regard.Rotary(4, pairs="half"), "unknown pairing of Rotary 'half'", "halves"),
        (lambda: regard.MultiHead(4, 2, score="dots"), "unknown score 'dots'", "dot"),
        (lambda: regard.AttentionLayer(4, 4, score="genral"), "unknown score 'genral'", "general"),
    ],
)
def test_unknown_names_list_known_names_and_suggest_one(make: Callable[[], object], says: str, known: str):
    with pytest.raises(regard.UnknownName) as error:
        make()
    first, second = str(error.value).split("\n")
    assert first == f"{says}; did you mean '{known}'?"
    assert second.startswith("known: ") and known in second


def test_a_named_backend_that_cannot_run_lists_its_reasons():
    x = f(2, 3, 4)
    with pytest.raises(regard.BackendError) as error:
        regard.attention(x, x, score=regard.Additive(4, 4), backend="sdpa")
    lines = str(error.value).split("\n")
    assert mentions(lines[0], "attention()", "'sdpa'")
    assert any(line.startswith("  sdpa-cpu: ") and "additive" in line for line in lines)
    assert lines[-1].startswith("hint: ") and "auto" in lines[-1] and "'blocked'" in lines[-1]


def test_all_errors_are_regard_errors():
    for kind, base in (
        (regard.ArgumentError, ValueError),
        (regard.BackendError, ValueError),
        (regard.LookError, ValueError),
        (regard.UnknownName, KeyError),
    ):
        assert issubclass(kind, regard.RegardError) and issubclass(kind, base)


def test_format_of_shapes_and_messages():
    assert lettered(f(2, 5, 64), "BTD") == "B=2 T=5 D=64  float32 cpu"
    assert lettered(f(7, 2, 5, 64).half(), "BTD") == "?=7 B=2 T=5 D=64  float16 cpu"
    assert lettered(f(5, 64), "BTD") == "T=5 D=64  float32 cpu"
    assert lettered(torch.tensor(1), "BTD") == "a single number  int64 cpu"
    assert message("call()", "wrong", {}, "right", "try") == "call(): wrong\nexpected: right\nhint: try"


def test_errors_carry_the_fields_of_their_message():
    hint = ("use ", Setting("Choices", "invalid", "skip"), " or ", Setting("read_pairs", "columns"))
    text = message("a.ko, line 3", "not valid UTF-8", {"query": (f(2, 3), "TD")}, "UTF-8", hint)
    error = regard.DataError(text)
    for each in (error, copy.copy(error), copy.deepcopy(error)):
        fields = each.message
        assert (fields.call, fields.problem, fields.expected) == ("a.ko, line 3", "not valid UTF-8", "UTF-8")
        assert fields.hint == hint and len(fields.rows) == 1 and str(each) == text
    assert text.endswith('hint: use Choices(invalid="skip") or columns=')
    spelled = text.spelled(lambda setting: f"{setting.owner}.{setting.name}:{setting.value}")
    assert spelled == text.rpartition("hint")[0] + "hint: use Choices.invalid:skip or read_pairs.columns:"
    plain = regard.DataError("no fields").message
    assert (plain, plain.call, plain.problem, plain.hint) == ("no fields", "", "no fields", "")
    assert plain.spelled(str) == "no fields"


@pytest.mark.parametrize(
    ("mask", "hints"),
    [
        (torch.tensor([True, False, True]), ("mask[None]", "padding(lengths)")),
        (torch.tensor([1, 0, 1]), ("padding(lengths)", "mask.bool()[None]")),
    ],
)
def test_hints_for_masks_of_one_dimension(mask: torch.Tensor, hints: tuple[str, ...]):
    """The code in the hints works."""
    x = torch.ones(2, 3, 4)
    with pytest.raises(regard.ArgumentError) as error:
        regard.attention(x, x, mask=mask)
    assert all(hint in str(error.value.message.hint) for hint in hints)
    names = {"mask": mask, "lengths": torch.tensor([3, 1]), "padding": regard.padding}
    for hint in hints:
        regard.attention(x, x, mask=eval(hint, names))


def test_shapes_of_a_layer_with_the_batch_second():
    layer = regard.MultiHead(8, 2, batch_first=False)
    with pytest.raises(regard.ArgumentError) as error:
        layer(torch.ones(5, 2, 7))
    assert "T=5 B=2 M=7" in error.value.message.rows[0]
    assert error.value.message.expected == "(length, B, 8)"
    with pytest.raises(regard.ArgumentError) as error:
        layer(torch.ones(5, 2, 8, dtype=torch.float64))
    assert "T=5 B=2 M=8" in error.value.message.rows[0]


def test_a_similar_path_may_be_in_a_similar_folder(tmp_path):
    (tmp_path / "내 결과" / "영화 후기").mkdir(parents=True)
    hint = similar_path(tmp_path / "내결과" / "영화후기", folder=True)
    assert str(tmp_path / "내 결과" / "영화 후기") in hint
    assert similar_path(tmp_path / "other" / "영화후기", folder=True) == ""
