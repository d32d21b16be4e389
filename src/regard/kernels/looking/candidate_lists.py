"""Inline assembly of inner_candidates_kernel: add the keys that reach the threshold to lists.

There are two versions, because an instruction can only name the registers that it uses:

- listing_assembly() compares some scores at a time, and repeats the instructions for each of them. It works
  for any layout of the scores.
- collected_assembly() collects the results of all comparisons of a thread in the bits of a register. A loop
  over the bits that are set adds one key each time, with a quarter of the instructions. It selects the score
  from the registers by the bits of its number: copies in local memory take more time. The numbers of keys are
  counted in shared memory. It needs the layout of a matrix product of one warp group on Hopper: 64 keys x 64
  queries, where a thread has the keys j and j + 8, and for each of them the queries n and n + 1 of 8 blocks
  of 8 queries.
"""

from __future__ import annotations

__all__ = [
    "PACKED",
    "SCORES",
    "COLLECTED_BEGIN",
    "COLLECTED_COUNTS",
    "listing_assembly",
    "listing_constraints",
    "collected_assembly",
    "collected_constraints",
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
