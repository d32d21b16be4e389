"""Every kernel compiles for Hopper, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.apart import compiled_kernels

KERNELS = {
    "compiled": {
        "additive_prepare_kernel", "additive_scores_kernel", "additive_read_kernel",
        "additive_combine_kernel", "additive_decode_kernel", "additive_decode_backward_kernel",
        "additive_weigh_kernel", "additive_balance_kernel", "additive_value_backward_kernel",
        "additive_key_backward_kernel", "additive_query_backward_kernel",
        "inner_look_kernel", "inner_mass_kernel", "inner_top_kernel",
        "inner_forward_kernel", "inner_query_backward_kernel",
        "inner_key_backward_kernel",
    },
    "compiled_cells": {
        "gated_forward_kernel", "mixed_forward_kernel", "mixed_backward_kernel",
        "attended_gates_kernel", "gates_backward_kernel", "query_backward_kernel", "memory_backward_kernel",
        "embedding_forward_kernel", "embedding_order_kernel", "embedding_gradient_kernel", "row_copy_kernel",
        "gru_forward_kernel", "gru_backward_kernel",
        "vocabulary_loss_kernel", "loss_sum_kernel",
        "read_forward_kernel", "read_backward_kernel", "cell_forward_kernel", "cell_backward_kernel",
        "residual_norm_forward_kernel", "residual_norm_backward_kernel", "activation_forward_kernel",
        "activation_backward_kernel", "partial_sums_kernel", "short_forward_kernel", "short_backward_kernel",
    },
    "compiled_decoding": {
        "token_candidates_kernel", "beam_step_kernel", "greedy_step_kernel", "embed_norm_kernel",
        "add_norm_kernel", "reorder_history_kernel", "history_attention_kernel",
        "source_attention_kernel",
        "additive_step_kernel", "gated_forward_kernel", "mixed_forward_kernel",
    },
    "compiled_tape": {"tape_forward_kernel", "tape_backward_kernel"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles(name: str, tmp_path: Path):
    assert compiled_kernels(name, tmp_path) == KERNELS[name]
