# mypy: disable-error-code="no-untyped-def"
"""Looking pass for inner products: find the few keys that can be among the k largest weights of a query.

inner_look_kernel finds the largest weight of each slot (a set of keys). The k-th largest of these maxima is a
lower bound, the threshold, of the k-th largest weight: at least k keys have a weight that is not below it. A
second pass over all scores lists the keys that reach the threshold (inner_candidates_kernel). In random
order, these are about 9 keys for k = 8 and 32 slots. A third kernel sorts the lists (inner_sort_kernel).

If a list is too short for all these keys, inner_top_kernel computes the query again. The result is exact in
every case: if at least k keys reach the threshold, the k largest weights are among them.

The list of a query is a column of a record, (1 + LISTED, ROWS), for each tile of queries. Its first element
is the number of keys; the others are pairs: log2 of the weight, and the index of the key. On Hopper, the keys
are counted in shared memory (COLLECTED). On other GPUs, and with a bias or a mask that is loaded, threads
collect keys in lists of their own first, because global atomics in the loop over all keys would make warps
wait.

Inline assembly adds keys to the lists. There are two versions, because an instruction can only name the
registers that it uses:

- listing_assembly() compares some scores at a time, and repeats the instructions for each of them. It works
  for any layout of the scores.
- collected_assembly() collects the results of all comparisons of a thread in the bits of a register. A loop
  over the bits that are set adds one key each time, with a quarter of the instructions. It selects the score
  from the registers by the bits of its number: copies in local memory take more time. The numbers of keys are
  counted in shared memory. It needs the layout of a matrix product of one warp group on Hopper: 64 keys x 64
  queries, where a thread has the keys j and j + 8, and for each of them the queries n and n + 1 of 8 blocks
  of 8 queries.

Tested: on an NVIDIA H200 (triton 3.6), and under Triton's interpreter (triton 3.7).
"""

from __future__ import annotations

import triton
import triton.language as tl

from regard.kernels.looking.scores import HIDDEN, NO_KEY, load_queries, place_of_program, tile_logs
from regard.kernels.mask import end_of, key_tiles

__all__ = [
    "PACKED",
    "SCORES",
    "collected_assembly",
    "collected_constraints",
    "inner_candidates_kernel",
    "inner_sort_kernel",
    "listing_assembly",
    "listing_constraints",
]

PACKED = 16
"""Number of scores that one block of inline assembly compares, at most the scores of a thread in a tile."""


def listing_constraints(packed: int) -> str:
    """Return the registers of listing_assembly(): results, which are not used, and its arguments."""
    return ",".join(["=r"] * (packed // 4) + ["f"] * 2 * packed + ["r"] * 2 * packed + ["l"] * 2 * packed)


def listing_assembly(rows: int, listed: int, threads: int, held: int, packed: int) -> str:
    """Return the assembly that adds keys to the lists, for `packed` scores of a thread.

    Its arguments, `packed` of each: log2 of the weights, thresholds, keys, queries in the tile, and the
    pointers `record` and `own` of inner_candidates_kernel. A warp branches around groups of four scores if
    none of them reaches its threshold. A thread adds keys to its own list, which no other thread uses. Keys
    that do not fit there are added to the lists of the queries, whose positions are counted by atomics.
    """
    results, groups = packed // 4, packed // 4
    first = (results + i * packed for i in range(6))
    logs, thresholds, keys, columns, records, own = (range(each, each + packed) for each in first)

    # Compare again, in another way: the results of equal comparisons would be kept in registers.
    def hit(i: int) -> list[str]:
        return [f"sub.f32 above, ${logs[i]}, ${thresholds[i]};", "setp.ge.f32 hit, above, 0f00000000;"]

    lines = [f".reg .pred hit, fits, any, group<{groups}>;", ".reg .f32 above;", ".reg .b64 list, at;"]
    lines.append(".reg .u32 thread, before, count, code, place;")
    for i in range(packed):
        chain, compare = ("", "setp.ge.f32") if i % 4 == 0 else (f", group{i // 4}", "setp.ge.or.f32")
        lines.append(f"{compare} group{i // 4}, ${logs[i]}, ${thresholds[i]}{chain};")
    lines += ["or.pred any, group0, group1;", *(f"or.pred any, any, group{i};" for i in range(2, groups))]
    lines += ["vote.sync.any.pred any, any, 0xffffffff;", "@!any bra DONE;"]
    lines += ["mov.u32 thread, %tid.x;", f"mad.wide.u32 list, thread, 8, ${own[0]};"]
    lines += ["ld.global.u32 before, [list];", "mov.u32 count, before;"]
    for i in range(packed):
        if i % 4 == 0:
            lines.append(f"vote.sync.any.pred any, group{i // 4}, 0xffffffff;")
            lines.append(f"@!any bra GROUP{i // 4};")
        lines += [
            *hit(i),
            f"setp.lt.and.u32 fits, count, {held}, hit;",
            f"mad.wide.u32 at, count, {8 * threads}, list;",
            f"mad.lo.u32 code, ${keys[i]}, {rows}, ${columns[i]};",
            f"@fits st.global.v2.b32 [at + {8 * threads}], {{${logs[i]}, code}};",
            "@hit add.u32 count, count, 1;",
        ]
        if i % 4 == 3:
            lines.append(f"GROUP{i // 4}:")
    lines += ["st.global.u32 [list], count;", f"setp.gt.u32 any, count, {held};"]
    lines += ["vote.sync.any.pred any, any, 0xffffffff;", "@!any bra DONE;", "mov.u32 count, before;"]
    for i in range(packed):
        lines += [
            *hit(i),
            f"setp.ge.and.u32 fits, count, {held}, hit;",
            "@hit add.u32 count, count, 1;",
            f"mov.u32 place, {listed};",
            f"mad.wide.u32 list, ${columns[i]}, 8, ${records[i]};",
            "@fits atom.global.add.u32 place, [list], 1;",
            f"setp.lt.u32 fits, place, {listed};",
            f"mad.wide.u32 at, place, {8 * rows}, list;",
            f"@fits st.global.v2.b32 [at + {8 * rows}], {{${logs[i]}, ${keys[i]}}};",
        ]
    return "{ " + " ".join(lines) + " DONE: " + " ".join(f"mov.u32 ${i}, 0;" for i in range(results)) + " }"


SCORES = 32
"""Number of scores of a thread in a tile for collected_assembly(): 64 keys x 64 queries, of 128 threads."""

COLLECTED_BEGIN = (
    ".reg .u32 regard_key, regard_query; .reg .b64 regard_record;"
    " .shared .align 1024 .b8 regard_counts[1024];"
    " { .reg .pred has; .reg .u32 thread, part, at; mov.u32 thread, %tid.x;"
    " shr.u32 regard_key, thread, 5; shl.b32 regard_key, regard_key, 4; bfe.u32 part, thread, 2, 3;"
    " add.u32 regard_key, regard_key, part; and.b32 part, thread, 3; shl.b32 regard_query, part, 1;"
    " mov.u32 at, regard_counts; mad.lo.u32 at, thread, 4, at; setp.lt.u32 has, thread, 64;"
    " @has st.shared.u32 [at], 0; } mov.b64 regard_record, $1; mov.u32 $0, 0;"
)
"""Declares what collected_assembly() uses: the first key and query of a thread in a tile, and the numbers of
keys of the queries, which are set to 0.

Its argument is the pointer `record` of inner_candidates_kernel. The declarations are not in braces, so that
they belong to the whole kernel. The counts take 1,024 bytes, because what Triton stores in shared memory
comes after them and is aligned to this.
"""

COLLECTED_COUNTS = (
    "{ .reg .u32 at; mov.u32 at, regard_counts; mad.lo.u32 at, $1, 4, at; ld.shared.u32 $0, [at]; }"
)
"""Returns the number of keys of a query, which is its argument."""


def collected_constraints() -> str:
    """Return the registers of collected_assembly(): results, which are not used, and its arguments."""
    return ",".join(["=r"] * (SCORES // 4) + ["f"] * 2 * SCORES + ["r"] * SCORES)


def collected_assembly(rows: int, listed: int) -> str:
    """Return the assembly that adds the keys of a tile to the lists of the queries.

    Its arguments, SCORES of each: log2 of the weights, thresholds, and the first key of the tile.
    """
    results = SCORES // 4
    first = (results + i * SCORES for i in range(3))
    logs, thresholds, keys = (range(each, each + SCORES) for each in first)
    lines = [".reg .pred hit, fits, bit<5>;", ".reg .u32 hits, bit, i, part, key, query, place;"]
    lines += [f".reg .f32 score<{SCORES}>;", ".reg .b64 at;", "mov.u32 hits, 0;"]
    for i in range(SCORES):
        lines.append(f"setp.ge.f32 hit, ${logs[i]}, ${thresholds[i]};")
        lines.append(f"@hit or.b32 hits, hits, {1 << i};")
    lines += ["setp.eq.u32 hit, hits, 0;", "@hit bra DONE;", "NEXT:"]
    lines += ["bfind.u32 i, hits;", "shl.b32 bit, 1, i;", "xor.b32 hits, hits, bit;"]
    lines += ["and.b32 part, i, 28;", "mad.lo.u32 query, part, 2, regard_query;"]
    lines += ["and.b32 part, i, 1;", "add.u32 query, query, part;"]
    lines += ["mov.u32 part, regard_counts;", "mad.lo.u32 part, query, 4, part;"]
    lines += ["atom.shared.add.u32 place, [part], 1;"]
    for level in range(5):
        lines += [f"and.b32 part, i, {1 << level};", f"setp.ne.u32 bit{level}, part, 0;"]
    names = [f"${each}" for each in logs]
    for level in range(5):  # of two neighbours, the one that bit `level` of i selects
        for j in range(len(names) // 2):
            lines.append(f"selp.f32 score{j}, {names[2 * j + 1]}, {names[2 * j]}, bit{level};")
        names = [f"score{j}" for j in range(len(names) // 2)]
    lines += ["and.b32 part, i, 2;", "mad.lo.u32 key, part, 4, regard_key;", f"add.u32 key, key, ${keys[0]};"]
    lines += [f"setp.lt.u32 fits, place, {listed};", f"mad.lo.u32 place, place, {rows}, query;"]
    lines += ["mov.b32 part, score0;", "mad.wide.u32 at, place, 8, regard_record;"]
    lines.append(f"@fits st.global.v2.b32 [at + {8 * rows}], {{part, key}};")
    lines += ["setp.ne.u32 hit, hits, 0;", "@hit bra NEXT;"]
    return "{ " + " ".join(lines) + " DONE: " + " ".join(f"mov.u32 ${i}, 0;" for i in range(results)) + " }"


LOWEST = tl.constexpr(-9e29)
"""Lower than log2 of every weight, but greater than HIDDEN: all visible keys reach this threshold."""

BEGIN, COUNTS = tl.constexpr(COLLECTED_BEGIN), tl.constexpr(COLLECTED_COUNTS)
"""Inline assembly of candidates.py."""


@triton.jit
def _list_keys(
    logs, threshold, tile, record, own,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LISTED: tl.constexpr, PACK: tl.constexpr,
    CONSTRAINTS: tl.constexpr, COLLECTED: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Add the keys whose log2 of the weight reaches the threshold to the lists of their queries.

    logs: (COLUMNS, ROWS). threshold: (ROWS,). tile: number of the tile of keys.
    record, own, COLLECTED, ASSEMBLY: see inner_candidates_kernel.
    """
    places = tl.arange(0, ROWS)
    columns = tile * COLUMNS + tl.arange(0, COLUMNS)
    if COLLECTED:
        tl.inline_asm_elementwise(
            ASSEMBLY, CONSTRAINTS, [logs, threshold[None, :], tl.cast(tile * COLUMNS, tl.int32)],
            dtype=tl.int8, is_pure=False, pack=PACK,
        )  # fmt: skip
    elif ASSEMBLY != "":
        tl.inline_asm_elementwise(
            ASSEMBLY, CONSTRAINTS,
            [logs, threshold[None, :], columns[:, None], places[None, :], record.to(tl.int64),
             own.to(tl.int64)],
            dtype=tl.int8, is_pure=False, pack=PACK,
        )  # fmt: skip
    else:
        hits = logs >= threshold[None, :]
        lists = record + places[None, :] + columns[:, None] * 0
        place = tl.atomic_add(lists, 1, mask=hits, sem="relaxed")
        bits = logs.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
        pairs = (columns[:, None].to(tl.int64) << 32) | bits
        tl.store(lists + (place + 1) * ROWS, pairs, mask=hits & (place < LISTED))


@triton.jit
def _with_tiles(
    first_tile, last_tile, row, query, level, threshold, low, high, key, block, block_row, block_column,
    record, own, bias, table, document_of_query, document_of_key, start, scale, cap, bias_scale, queries,
    end, width, key_row, bias_row, bias_column, table_row, table_column,
    LEFT: tl.constexpr, DOCUMENTS: tl.constexpr, CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr,
    MASKED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    WHOLE: tl.constexpr, TMA: tl.constexpr, LISTED: tl.constexpr, PRECISION: tl.constexpr,
    PACK: tl.constexpr, CONSTRAINTS: tl.constexpr, COLLECTED: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """List keys of the tiles first_tile to last_tile - 1, for one tile of queries.

    threshold: (ROWS,). For the other arguments, see tile_logs().
    """
    rows = row + tl.arange(0, ROWS)
    for tile in range(first_tile, last_tile):
        logs = tile_logs(
            tile, rows, query, level, low, high, key, block, block_row, block_column, bias, table,
            document_of_query, document_of_key, start, scale, cap, bias_scale, queries, end, width, key_row,
            bias_row, bias_column, table_row, table_column, LEFT, DOCUMENTS, CAP, BIAS, TABLE, MASKED, ROWS,
            COLUMNS, WIDTH, WHOLE, TMA, PRECISION,
        )  # fmt: skip
        _list_keys(
            logs, threshold, tile, record, own, ROWS, COLUMNS, LISTED, PACK, CONSTRAINTS, COLLECTED, ASSEMBLY
        )  # fmt: skip


@triton.jit
def _join_lists(
    own, record, LISTED: tl.constexpr, HELD: tl.constexpr, THREADS: tl.constexpr, ROWS: tl.constexpr
):
    """Add the keys in the lists of the threads to the lists of their queries."""
    threads, places = own + tl.arange(0, THREADS), tl.arange(0, HELD)
    count = tl.load(threads, cache_modifier=".cg")
    used = places[:, None] < count[None, :]
    pairs = tl.load(
        threads[None, :] + (1 + places)[:, None] * THREADS, mask=used, other=0, cache_modifier=".cg"
    )
    codes = pairs >> 32 & 0xFFFFFFFF
    lists = record + codes % ROWS
    place = tl.atomic_add(lists, 1, mask=used, sem="relaxed")
    pairs = (codes // ROWS << 32) | (pairs & 0xFFFFFFFF)
    tl.store(lists + (place + 1) * ROWS, pairs, mask=used & (place < LISTED))


@triton.jit
def _begin_lists(
    record, own, counts, THREADS: tl.constexpr, ROWS: tl.constexpr, COLLECTED: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Set the numbers of keys in all lists of a tile of queries to 0."""
    if COLLECTED:
        pointers = record.to(tl.int64) + tl.arange(0, THREADS) * 0
        tl.inline_asm_elementwise(BEGIN, "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1)
    else:
        tl.store(counts, tl.zeros([ROWS], tl.int64))
        if ASSEMBLY != "":
            tl.store(own + tl.arange(0, THREADS), tl.zeros([THREADS], tl.int64))
    tl.debug_barrier()


@triton.jit
def _end_lists(
    record, own, counts, LISTED: tl.constexpr, HELD: tl.constexpr, THREADS: tl.constexpr, ROWS: tl.constexpr,
    COLLECTED: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Return the number of keys of each query, (ROWS,), after all keys are listed."""
    tl.debug_barrier()
    if COLLECTED:
        places = tl.arange(0, ROWS)
        return tl.inline_asm_elementwise(COUNTS, "=r,r", [places], dtype=tl.int32, is_pure=False, pack=1)
    if ASSEMBLY != "":
        _join_lists(own, record, LISTED, HELD, THREADS, ROWS)
        tl.debug_barrier()
    return tl.load(counts, cache_modifier=".cg").to(tl.int32)


@triton.jit
def _threshold(maxima, rows, queries, top, SLOTS: tl.constexpr):
    """Return the k-th largest of the maxima of each query, (ROWS,), but at least LOWEST.

    maxima: (T, SLOTS), of one sequence and head. Equal maxima count once: the result is lower then.
    """
    values = tl.load(
        maxima + rows[:, None].to(tl.int64) * SLOTS + tl.arange(0, SLOTS)[None, :],
        mask=(rows < queries)[:, None], other=HIDDEN,
    )  # fmt: skip
    threshold = tl.max(values, 1)
    for _ in range(1, top):
        values = tl.where(values < threshold[:, None], values, HIDDEN)
        threshold = tl.max(values, 1)
    return tl.where(rows < queries, tl.maximum(threshold, LOWEST), -HIDDEN)


@triton.jit
def inner_candidates_kernel(
    query, key, block, lse, bias, table, maxima, records, lists, lengths, document_of_query,
    document_of_key, length_step, start, left, right, documents_query_step, documents_key_step, scale, cap,
    bias_scale, heads, groups, queries, keys, width, top, query_batch, query_head, query_row, key_batch,
    key_head, key_row, bias_batch, bias_head, bias_row, bias_column, table_batch, table_head, table_row,
    table_column,
    LENGTHS: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    CAP: tl.constexpr, BIAS: tl.constexpr, TABLE: tl.constexpr, SLOTS: tl.constexpr, LISTED: tl.constexpr,
    HELD: tl.constexpr, THREADS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr, WHOLE: tl.constexpr, EIGHTS: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, PACK: tl.constexpr, CONSTRAINTS: tl.constexpr, COLLECTED: tl.constexpr,
    ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Write the record of one tile of queries: the keys that reach the threshold.

    Launch grid: (tiles of queries, B H). If fewer than `top` keys were listed although more are visible (the
    scores were rounded in another way than in inner_look_kernel), the number of keys is set to LISTED + 1,
    as if the list were too short.

    maxima: (B, H, T, SLOTS), from inner_look_kernel.
    records: (B, H, tiles of queries, 1 + LISTED, ROWS), receives the lists of the queries.
    lists: (B, H, tiles of queries, 1 + HELD, THREADS), a buffer for the lists of the threads, if there is
        ASSEMBLY but not COLLECTED. Like in a record, a column has the number of keys, and then pairs. The
        second element of such a pair is key * ROWS + query.
    record, own: the parts for this tile of queries.
    ASSEMBLY: the text of collected_assembly() if COLLECTED, or of listing_assembly(), or "" to use no inline
        assembly. For the other arguments, see inner_look_kernel.
    """
    if EIGHTS:
        width, query_row, key_row = width // 8 * 8, query_row // 8 * 8, key_row // 8 * 8
        query_batch, query_head = query_batch // 8 * 8, query_head // 8 * 8
        key_batch, key_head = key_batch // 8 * 8, key_head // 8 * 8
    both, query_tile = place_of_program(RIGHT)
    batch, head = (both // heads).to(tl.int64), (both % heads).to(tl.int64)
    both = both.to(tl.int64)
    query += batch * query_batch + head * query_head
    first_key = batch * key_batch + head // groups * key_head
    key += first_key
    block_row, block_column = 0, 0
    if TMA:
        block_row, block_column = (first_key // key_row).to(tl.int32), (first_key % key_row).to(tl.int32)
    bias += batch * bias_batch + head * bias_head
    table += batch * table_batch + head * table_head
    document_of_query += batch * documents_query_step
    document_of_key += batch * documents_key_step
    end = end_of(lengths, length_step, batch, keys, LENGTHS)
    row = query_tile * ROWS
    rows = row + tl.arange(0, ROWS)
    record = records + (both * tl.num_programs(0) + query_tile) * (1 + LISTED) * ROWS
    counts = record + tl.arange(0, ROWS)
    own = lists + (both * tl.num_programs(0) + query_tile) * (1 + HELD) * THREADS
    _begin_lists(record, own, counts, THREADS, ROWS, COLLECTED, ASSEMBLY)
    threshold = _threshold(maxima + both * queries * SLOTS, rows, queries, top, SLOTS)
    queries_RD, level, low, high = load_queries(
        query, lse + both * queries, rows, start, left, right, queries, end, width, query_row, RIGHT, WIDTH
    )
    first, full_first, full_last, last = key_tiles(
        row, queries, end, start, left, right, LEFT, RIGHT, DOCUMENTS or TABLE, ROWS, COLUMNS
    )
    for part in tl.static_range(3):  # keys at the left edge of the mask, between the edges, and the rest
        first_tile, last_tile = first, full_first
        if part == 1:
            first_tile, last_tile = full_first, full_last
        if part == 2:
            first_tile, last_tile = full_last, last
        if (part == 0 and LEFT) or (part == 1 and not (DOCUMENTS or TABLE)) or part == 2:
            _with_tiles(
                first_tile, last_tile, row, queries_RD, level, threshold, low, high, key, block, block_row,
                block_column, record, own, bias, table, document_of_query, document_of_key, start, scale, cap,
                bias_scale, queries, end, width, key_row, bias_row, bias_column, table_row, table_column,
                LEFT, DOCUMENTS, CAP, BIAS, TABLE, part != 1, ROWS, COLUMNS, WIDTH, WHOLE, TMA, LISTED,
                PRECISION, PACK, CONSTRAINTS, COLLECTED, ASSEMBLY,
            )  # fmt: skip
    count = _end_lists(record, own, counts, LISTED, HELD, THREADS, ROWS, COLLECTED, ASSEMBLY)
    missing = (count < top) & (threshold > LOWEST) & (rows < queries)
    tl.store(counts, tl.where(missing, LISTED + 1, count).to(tl.int64))


@triton.jit
def _sorted_lists(
    record, count, sums, top,
    PLACES: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Return the `top` largest weights of lists of at most PLACES keys, and the keys, (KEPT, SORTED) each."""
    places, ranks = tl.arange(0, PLACES), tl.arange(0, KEPT)
    pairs = tl.load(
        record[None, :] + (1 + places)[:, None] * ROWS, mask=places[:, None] < count[None, :], other=0
    )
    logs = pairs.to(tl.int32).to(tl.float32, bitcast=True)
    logs = tl.where(places[:, None] < count[None, :], logs, HIDDEN)
    keys = (pairs >> 32).to(tl.int32)
    largest, largest_keys = tl.zeros([KEPT, SORTED], tl.float32), tl.full([KEPT, SORTED], -1, tl.int32)
    for rank in range(top):
        best = tl.max(logs, 0)
        first = tl.min(tl.where(logs == best[None, :], keys, NO_KEY), 0)
        some = best > HIDDEN
        weight = tl.where(sums == sums, tl.where(some, tl.exp2(best), 0.0), sums)
        largest = tl.where(ranks[:, None] == rank, weight[None, :], largest)
        largest_keys = tl.where(ranks[:, None] == rank, tl.where(some, first, -1)[None, :], largest_keys)
        logs = tl.where(keys == first[None, :], HIDDEN, logs)
    return largest, largest_keys


@triton.jit
def inner_sort_kernel(
    records, lse, weights, chosen, queries, top, tiles,
    LISTED: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, SORTED: tl.constexpr,
):  # fmt: skip
    """Sort the lists of SORTED queries: largest weight first; of equal weights, smallest key first.

    Launch grid: (tiles of queries * ROWS / SORTED, B H). Stores the `top` first weights and keys of each list
    in `weights` and `chosen`, (B, H, T, top); weight 0 and key -1 if the list is shorter. If lse is NaN, all
    weights are NaN. Lists that are at most half full, as most are, take less
    time.

    tiles: number of tiles of queries, of ROWS queries each.
    KEPT: a power of two, at least `top`.
    """
    both = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * SORTED
    rows, ranks = row + tl.arange(0, SORTED), tl.arange(0, KEPT)
    record = records + (both * tiles + row // ROWS) * (1 + LISTED) * ROWS + row % ROWS + tl.arange(0, SORTED)
    count = tl.load(record)
    sums = tl.load(lse + both * queries + rows, mask=rows < queries, other=0.0)
    if tl.max(count, 0) <= LISTED // 2:
        largest, largest_keys = _sorted_lists(record, count, sums, top, LISTED // 2, KEPT, ROWS, SORTED)
    else:
        largest, largest_keys = _sorted_lists(record, count, sums, top, LISTED, KEPT, ROWS, SORTED)
    at = (both * queries + rows)[None, :] * top + ranks[:, None]
    inside = (rows < queries)[None, :] & (ranks < top)[:, None]
    tl.store(weights + at, largest, mask=inside)  # all at once, so that neighbours are stored together
    tl.store(chosen + at, largest_keys.to(tl.int64), mask=inside)
