"""Inline assembly of inner_candidates_kernel: add the keys that reach the threshold to lists.

There are two versions, because an instruction can only name the registers that it uses:

- listing_assembly() compares some scores at a time, and repeats the instructions for each of them. It works
  for any layout of the scores.
- staged_assembly() collects the results of all comparisons of a thread in the bits of a register. Only if one
  of them is set, it copies the scores to local memory, where a loop over the bits reads them. These are a
  fifth of the instructions. The number of keys is in a register that staged_begin() declares. It needs the
  layout of a matrix product of one warp group on Hopper, see _staged_key_and_query().
"""

from __future__ import annotations

__all__ = [
    "PACKED",
    "SCORES",
    "STAGED_END",
    "listing_assembly",
    "listing_constraints",
    "staged_assembly",
    "staged_begin",
    "staged_constraints",
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

    def hit(i: int) -> list[str]:  # not the comparison from before, whose result would be kept
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
"""Number of scores of a thread in a tile for staged_assembly(): 64 keys x 64 queries, of 128 threads."""

STAGED_END = "st.global.u32 [regard_list], regard_count; mov.u32 $0, 0;"
"""Stores the number of keys in the list of each thread. Its argument is not used."""


def staged_constraints() -> str:
    """Return the registers of staged_assembly(): results, which are not used, and its arguments."""
    return ",".join(["=r"] * (SCORES // 4) + ["f"] * 2 * SCORES + ["r"] * SCORES)


def staged_begin() -> str:
    """Return the assembly that declares what staged_assembly() keeps between tiles.

    Its arguments are the pointers `record` and `own` of inner_candidates_kernel. It is not in braces, so that
    the registers and the local memory belong to the whole kernel.
    """
    return (
        ".reg .u32 regard_thread, regard_count; .reg .b64 regard_record, regard_list;"
        f" .local .align 16 .b8 regard_scores[{4 * SCORES}];"
        " mov.u32 regard_thread, %tid.x; mov.u32 regard_count, 0; mov.b64 regard_record, $1;"
        " mad.wide.u32 regard_list, regard_thread, 8, $2; mov.u32 $0, 0;"
    )


def staged_assembly(rows: int, listed: int, threads: int, held: int) -> str:
    """Return the assembly that adds the keys of a tile to the lists.

    Its arguments, SCORES of each: log2 of the weights, thresholds, and the number of the tile times SCORES. A
    thread adds tile * SCORES + i to its own list, for its score i. What does not fit there is added to the
    lists of the queries, as in listing_assembly().
    """
    results = SCORES // 4
    first = (results + i * SCORES for i in range(3))
    logs, thresholds, tiles = (range(each, each + SCORES) for each in first)
    lines = [".reg .pred hit, any, fits;", ".reg .u32 hits, bit, i, code, part, query, place;"]
    lines += [".reg .b32 score;", ".reg .b64 scores, list, at;", "mov.u32 hits, 0;"]
    for i in range(SCORES):
        lines.append(f"setp.ge.f32 hit, ${logs[i]}, ${thresholds[i]};")
        lines.append(f"@hit or.b32 hits, hits, {1 << i};")
    lines += ["setp.ne.u32 hit, hits, 0;", "vote.sync.any.pred any, hit, 0xffffffff;", "@!any bra DONE;"]
    for i in range(0, SCORES, 4):
        four = ", ".join(f"${logs[i + j]}" for j in range(4))
        lines.append(f"st.local.v4.f32 [regard_scores + {4 * i}], {{{four}}};")
    lines += ["mov.u64 scores, regard_scores;", "@!hit bra DONE;", "NEXT:"]
    lines += ["bfind.u32 i, hits;", "shl.b32 bit, 1, i;", "xor.b32 hits, hits, bit;"]
    lines += ["mad.wide.u32 at, i, 4, scores;", "ld.local.b32 score, [at];"]
    lines += [
        f"add.u32 code, i, ${tiles[0]};",
        f"setp.lt.u32 fits, regard_count, {held};",
        "@!fits bra FULL;",
    ]
    lines.append(f"mad.wide.u32 at, regard_count, {8 * threads}, regard_list;")
    lines.append(f"st.global.v2.b32 [at + {8 * threads}], {{score, code}};")
    lines += ["add.u32 regard_count, regard_count, 1;", "bra LISTED;", "FULL:"]
    # as in _staged_key_and_query(): `code` becomes the key.
    lines += [f"shr.u32 code, ${tiles[0]}, 5;", "and.b32 part, regard_thread, 96;", "shr.u32 part, part, 1;"]
    lines += ["mad.lo.u32 code, code, 64, part;", "bfe.u32 part, regard_thread, 2, 3;"]
    lines += ["add.u32 code, code, part;", "and.b32 part, i, 2;", "mad.lo.u32 code, part, 4, code;"]
    lines += ["and.b32 query, i, 28;", "shl.b32 query, query, 1;", "and.b32 part, regard_thread, 3;"]
    lines += ["mad.lo.u32 query, part, 2, query;", "and.b32 part, i, 1;", "add.u32 query, query, part;"]
    lines += ["mad.wide.u32 list, query, 8, regard_record;", "atom.global.add.u32 place, [list], 1;"]
    lines += [f"setp.lt.u32 fits, place, {listed};", f"mad.wide.u32 at, place, {8 * rows}, list;"]
    lines.append(f"@fits st.global.v2.b32 [at + {8 * rows}], {{score, code}};")
    lines += ["LISTED:", "setp.ne.u32 hit, hits, 0;", "@hit bra NEXT;"]
    return "{ " + " ".join(lines) + " DONE: " + " ".join(f"mov.u32 ${i}, 0;" for i in range(results)) + " }"
