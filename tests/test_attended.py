"""LateAttended: an lse that is computed when it is read, by every way to read a named tuple."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from regard.attended import Attended, LateAttended


@pytest.fixture
def computed() -> list[Tensor]:
    """The arguments of each computation of an lse."""
    return []


@pytest.fixture
def late(computed: list[Tensor]) -> LateAttended:
    def doubled(tensor: Tensor) -> Tensor:
        computed.append(tensor)
        return 2 * tensor

    return LateAttended.with_output(torch.ones(2, 3), doubled, torch.arange(2.0))


LSE = torch.tensor([0.0, 2.0])


def test_the_output_is_read_without_the_lse(late: LateAttended, computed: list[Tensor]):
    assert torch.equal(late.output, torch.ones(2, 3)) and late.weights is None and late.chosen is None
    assert len(late) == len(Attended._fields) and isinstance(late, Attended) and not computed


def test_the_lse_is_computed_once(late: LateAttended, computed: list[Tensor]):
    for _ in range(2):
        assert torch.equal(late.lse, LSE) and torch.equal(late[1], LSE)
    assert len(computed) == 1


def test_every_way_to_read_returns_the_lse(late: LateAttended):
    output, lse, *others = late
    assert torch.equal(output, late.output) and torch.equal(lse, LSE) and others == [None] * 9
    assert torch.equal(Attended(*late).lse, LSE) and torch.equal(tuple(late)[1], LSE)
    assert torch.equal(late[1:][0], LSE) and torch.equal(late._asdict()["lse"], LSE)
    more = (1,)
    assert torch.equal((late + more)[1], LSE) and torch.equal((more + late)[2], LSE)
    assert torch.equal((late * 2)[12], LSE) and torch.equal((2 * late)[1], LSE)
    assert late.count(None) == 9 and late.index(None) == 2
    assert late.output in late and late == tuple(late) and tuple(late) == late
    assert hash(late) == hash(tuple(late)) and (late != tuple(late)) is False
    assert "lse=(2,) float32" in repr(late)
    match late:
        case Attended(lse=matched):
            assert torch.equal(matched, LSE)


def test_reading_the_lse_in_inference_mode_gives_an_ordinary_tensor(late: LateAttended):
    with torch.inference_mode():
        _ = late.lse
    assert not late.lse.is_inference()


def test_copies_are_plain(late: LateAttended):
    for each in (
        late.map(Tensor.clone),
        late.but(output=late.output),
        late._replace(output=late.output),
        copy.copy(late),
        copy.deepcopy(late),
        type(late)(*late),
        tree_map(lambda each: each, late),
        pickle.loads(pickle.dumps(late)),
    ):
        assert type(each) is Attended and torch.equal(each.lse, LSE)


def test_torch_functions_refuse_it(late: LateAttended):
    with pytest.raises(TypeError, match="output"):
        torch.sum(late)
