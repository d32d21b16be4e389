"""Triton kernels. Triton is imported only by these modules, and only when a kernel is used.

Modules:

tanh               tanh(q + k) from e^2q and e^2k, with shared reciprocals
kernel_mask        masks inside a kernel
kernel_dropout     dropout inside a kernel
dropout_seeds      seeds of dropout, drawn on the device
matrix_product     matrix products inside a kernel
additive_scores    scores of additive attention, in tiles
additive_forward   online softmax and output
additive_short     the whole forward pass in one launch, for short sequences
additive_decode    one query per sequence (decoding), forward and backward
additive_weights   backward pass, part 1: gradients of values and scores
additive_backward  backward pass, part 2: gradients of query, key and vector
additive_gradients part 2 for half precision, in one pass over the scores
additive_wide      part 2 in channels with very large elements
additive_series    part 2 for bfloat16, as matrix products (Fourier series of tanh)
additive_series_wide like additive_series, in channels with very large elements
additive_bounds    upper bounds of gradients, query and key, for additive_series
series_rows        which rows additive_series processes
additive_vector    backward pass, part 3: gradient of the vector, from partial sums
launch             tile sizes, and the choice of kernels by shape
short_launch       launch parameters of additive_short
short_exponentials e^2q and e^2k in additive_short
forward_pass       launches the kernels of the forward pass
backward_pass      launches the kernels of the backward pass
gradients_pass     launches the kernels of additive_gradients
series_pass        launches the kernels of additive_series and additive_series_wide
additive           forward and backward pass as custom operators for torch.compile
inner_tiles        tiles and masks of inner-product attention
inner_table        bool tensors as masks: packed to bits, with lists of visible tiles
inner_documents    documents as masks: the range of keys that a tile of queries sees
inner_forward      inner-product attention with masks, forward pass
inner_backward     the same, backward pass
inner_launch       launches the kernels of both passes
inner_backward_launch launches both kernels of the backward pass together
inner_kernel_launch launches one of these kernels, with arguments that calls share
inner_attention    both passes as custom operators for torch.compile
score_chunks       scores of additive attention for the looking pass
inner_scores       weights of a tile, for the looking pass of inner products
inner_look         looking pass: entropy, alignment, column mass and pooled weights of inner products
inner_look_pass    launches the kernel of inner_look, as a custom operator
inner_candidates   looking pass: the largest weights of each query, by a threshold
inner_listing      inline assembly of inner_candidates
inner_top          the same for any scores, more slowly
inner_top_pass     launches the kernels of inner_candidates and inner_top, as a custom operator
recurrent_cells    one step of a recurrent cell
step_order         order of the steps of a bidirectional recurrent layer
maxout             the maximum of each pair of elements
row_copy           copies of rows with another dtype and other row strides
fill_and_cast      tensors of zeros, and tensors in another dtype
aligned_sizes      sizes that are known to be multiples of 8
adamw              norm of all gradients, and AdamW
quick_launch       launches compiled kernels with less time on the host
direct_launch      launches them by the CUDA driver, with arguments that are kept
graph_launch       launches kernels as one CUDA graph, if the addresses of their tensors are the same
kept_launch        keeps such launches for later calls with other tensors
compile_ahead      compiles the kernels of training steps in threads, before they are launched
recording          records the operations and launches of a function
replay             runs the recorded launches of a function again, for calls of the same shapes
one_section        the same if all launches of a function can be launched together
lstmn_step         one step of an LSTMN layer
tape_step          one step of the tape of a neural Turing machine
cross_entropy      cross-entropy over a large vocabulary
vocabulary_loss    cross-entropy of a linear output layer, without a tensor of all logits
vocabulary_r_drop  R-Drop of a linear output layer, without a tensor of all logits
short_attention    inner-product attention of short sequences with dropout
small_linear       a linear layer of few rows, without gradients
adjacent_slices    whether tensors are slices of one tensor
residual_norm      residual connection with dropout, and layer normalisation
embedding_dropout  token and position embeddings, then dropout
activation_dropout ReLU or GELU, then dropout
activated_product  a matrix product, then ReLU and dropout
partial_sums       the sum of partial sums
gradient_sums      sums of the columns of a gradient, for the gradient of a bias
token_candidates   the most probable tokens of a large vocabulary
beam_step          one step of beam search or greedy search
output_paths       outputs of a beam search, from the tree of its beams
output_attention   attention weights and alignments of the outputs of a search
decoder_attention  self-attention and cross-attention of one decoding step
additive_gated     attention and gates of one step of a recurrent decoder in training
additive_recurrent gradients of the keys and the vector of a recurrent decoder, for all steps at once
step_product       matrix products of the steps of a recurrent decoder
early_launch       starts a kernel while the preceding one still runs
additive_step      weights of additive attention in one decoding step
decoder_norms      embedding, residual connection and layer normalisation of one decoding step
kernel_choice      whether recurrent cells and the loss run as Triton kernels

Letters in the formulas: q, k, v are elements of query, key and vector; r = 1 / (1 + e^2q e^2k), so that
tanh(q + k) = 1 - 2 r; g is the gradient of v . tanh(q + k), the score without the factor `scale`. K is the
number of key heads. "B H" is one dimension of size B * H, batch and heads.

Arguments that many kernels share:

query, key, value, vector     (B, H, T, D), (B, K, S, D), (B, K, S, E), (1 or H, D)
heads, groups                 H, and the number of query heads that share a key head, H / K
queries, keys, width, depth   T, S, D, E
lengths, start, left, right,
document_of_query, ..._key    the mask; see Sight in forward_pass
LENGTHS, LEFT, RIGHT,
DOCUMENTS                     whether the mask has lengths, a left or right limit, or documents
first_row, row_count          first row and number of rows of the chunk that one launch processes
x_batch, x_head, x_row        strides of the tensor x, in elements, along batch, heads and rows
x_step                        stride of the tensor x along the batch
x_part                        stride of the tensor x between two of its partial results (parts)
ROWS, COLUMNS, WIDTH, DEPTH   tile sizes along T, S, D and E
spans                         number of spans; a span is a range of SPAN channels (see launch)
reach_of_query, reach_of_key  largest |q| or |k| of each tile and span
bias                          added to v . tanh(q + k), (B, H, T, S) with strides that can be 0
seed, dropout                 dropout of the weights; see kernel_dropout
wide_of_query, wide_of_key    flags of the channels of each tile, for is_wide() (see tanh)
whole_of_query, whole_of_key  flags of the channels of each sequence
EIGHTS                        whether all strides are multiples of 8, which allows vectorised loads
APPROXIMATE                   use approximate GPU instructions; False in the interpreter
PRECISION                     precision of matrix products; see matrix_product
"""

from __future__ import annotations

import importlib.util
import os

__all__ = ["TRITON", "interpreting"]

TRITON = importlib.util.find_spec("triton") is not None
"""Whether Triton is installed."""


def interpreting() -> bool:
    """Whether Triton runs kernels in its CPU interpreter, that is, whether TRITON_INTERPRET=1 is set.

    Triton reads this environment variable when a module with kernels is imported. Later changes have no
    effect.
    """
    return os.environ.get("TRITON_INTERPRET", "") in ("1", "true", "on", "yes")
