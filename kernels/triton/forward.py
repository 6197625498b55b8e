"""The fast tiers of the forward: one read of x, one write of y. `rules.py` chooses among them, and has the measurements.

- rows: a program has BM whole rows in registers. Up to about 36 KiB a row, 128 without clusters. Not persistent: the hardware's order of
  programs keeps the addresses in flight close together, which a static loop over rows does not.
- cluster: the CTAs of a cluster share a row, each with a chunk in registers. Longer rows, to 1 MiB, and a few rows of a card's fill.
- group: G CTAs share a row through global memory (`groups.py`), each with a chunk in registers and shared memory. The longest rows, few
  rows of any length above; with G = 1, rows that registers alone do not hold well.

What was tried on one H200 (do_bench medians as fractions of a same-bytes copy, M = 4096; development runs, the committed ones are in
results/h200/frontier.csv), with what was expected of it:

- Elements as tensors of their dtype: bf16 rows of 32768 at .77, as the compiler keeps float32 copies through the exchange (59 registers).
  Packed words and `after`, expected to halve them: 32 registers, no spills, .97. An empty inline assembly did not do it: ptxas sees
through.
- First pass tile by tile, expected to hide its exponentials under the loads: worse everywhere (65536: .93 to .79), as ptxas sank the
  loads into it. With `now`, which keeps all loads before: .95.
- Bytes resident an SM decide: clusters of 2 at bf16 65536 with 96 registers (128 KiB) .86, with 80 (192 KiB) .93.
- Two tiles' maxima and sums as two reductions or one packed: one, by 1 %.
- A row of more than 128 KiB: groups with tickets .80 at bf16 131072; clusters, expected to exchange faster, .90, and each doubling of CTAs
  a row cost 4 to 8 % (2 at .95, 4 at .90, 8 at .81). What cost it was the second barrier of the cluster, whose release waits for the whole
  card's memory (found in the CUDA kernels, where it stood before the loads). Parts that are sent with `st.async` and counted by an mbarrier
  need none (Triton 3.9 adds one of its own, at a kernel's end): expected .98; by tune, bf16 131072 .93 to .98, 262144 .90 to .97, float32
  131072 .98. The hybrid of `held.py`, which was to spare CTAs (262144: .81 to .88), is left to rows beyond 1 MiB. Clusters and `held.py`
  together do not compile: Triton 3.6's PlanCTA gives up after so many operations.
- Tickets by an atomic before the first load, or program ids: ids are simpler and no slower; what made tickets necessary was only
  deadlock, which a program that measures its row alone rules out.
- A persistent cluster that prefetches the next row: does not compile either (loops in PlanCTA).
- Exponentials of rows on a warp or less kept, after the CUDA kernels, where that took N = 197 in bf16 from .90 to .92: of a thread's 552
  instructions there 408 are left, of 64 registers 56; .83 to .96.
- Short odd 16-bit rows through tl.gather from one flat tile, expected at .9: .24 at 17. As 4- and 8-byte words with edges: .85 at 197,
  .47 at 17.
- Few rows: load, exchange and store follow each other strictly; .55 to .90, and beyond 4 MiB a row no better than .6. Half of what they
  lost was the host's: Triton's binder and the choice of a plan take several times what such a kernel takes (a quick run over 24 cells: .60
  to .71 on average, as launches are kept). In groups, all warps polled all slots: 132 programs of 8 warps keep a few lines busy. Now each
  thread polls one slot of its own, predicted to save microseconds of 1 x 1048576: .39 to .67 in bf16 and .47 to .72 in float32, with plans
  fitted anew. One thread reads the launch's tag for all, after the CUDA kernels, where that gave 5 %; by itself not measured.
- 24 tiles a thread (128 registers, two programs of 256 threads an SM), after the CUDA kernels had found them best: fewer CTAs share a row.
  Expected .94; clusters of 2 and 4 have .95 and .93 (98304 and 196608 bf16), groups .90 at 262144, .95 at 131072 float32.
- Rows that begin in turns (`turns.py`), after the CUDA kernels, where 16 to 128 long rows won .03 to .09 by it. Here, with the same plans
  and by device times of the frontier sweep before and after: 128 rows of 262144 in float32 7 %, in bf16 4 %, of 524288 1 and 4 %, 16 of
  1048576 and 4194304 in float32 4 and 2 %, in bf16 nothing; 64 of 128256 in bf16 lost 9 %, which with the next two lines they do not.
- A CTA's parts joined as in the CUDA kernels (`joins.py`: redux, one exponential a lane, one barrier; a scalar's polling and joining in
  one piece of assembly), predicted to save some 300 of the 6000 cycles of one row. As Triton's own ops on tiles reshaped to warps it made
  the compiler carry that layout back to the loads (128 registers for 47); as assembly it takes fewer registers than before. Exponentials
  of threads that have two tiles or fewer kept. With the plans as they were: few rows .80 to .83 on average, 1 x 1048576 in bf16 .72 to .77.
- Plans fitted anew to that (two sweeps over 100 cells, some 45 plans each, finalists five times): one or two tiles a thread of 512 for one
  to sixteen rows on clusters of 16; .83 to .86 on average over the same cells.
- How an SM's memory is parted (`carveout.py`), after the CUDA kernels, where it decides between .83 and .94: asked for of groups only, as
  the others need next to none; by itself not measured.
- With that, 4096 rows of 12289 to 131072 became 1 to 3 % slower: under the limits of their plans, 56 and 64 registers, each tile's two
  comparisons waited for the stores in a register, and one was spilled before the first load. Now a tile has one, asked anew for the stores:
  no spills in those plans. Predicted to give it back: 65536 in bf16 .961 to .981, 131072 .970 to .984, 32768 .953 to .968.
- What is read stays in L2 before what is written (`evict_last`; `plans.Shape.stays`), after torch.compile's backward of 4096 columns,
  which has it and was 5 % faster than an add of the same bytes, reading all of it twice. Predicted to be a trick on do_bench, whose flush
  leaves such lines where they are: so it is of 4 and of 8 MB (a kernel of a row a program, 64 x 32768 in bf16: 9.6 us, 10.4 on buffers
  that rotate or after cuCtxResetPersistingL2Cache). From 32 MB on it is as fast on rotating buffers (`tests/gpu/test_stays_gpu.py`): 4096
  x 4096 22.6 to 21.4 us, 65536 x 4096 263 to 252; ncu counts the same bytes to and from memory, in 255 and 245 us. So it is presumably
  the order in which what is written leaves L2. Most launches that read 32 MB and more gain 2 to 5 % and pass the copy; smaller ones go
  without. Stores that are to leave first give nothing, loads that are (`evict_first`) lose 3 to 8 %, lines released after their row
  (applypriority) 20 %. What it costs others: some MB of L2 keep what was read until other such lines come; a copy of 8 MB after it took 2
  % longer.

Few rows, up to 128, are at .857 and .845 of copy (geometric means of 24) in results/h200/frontier.csv and frontier-2.csv. quack, which
compiles anew for each N, leads by more than .02 of its speed in both runs at 64 x 128256 in bf16 (.867 and .863 of copy for .811 and
.809; 13.2 us of device time for 12.2), 4096 x 1000 in bf16 (1.002 and .997 for .974 and .964) and 4096 x 1024 in fp16 (1.010 and 1.015
for .980 and .976; 6.0 us for 5.7), and by as much in 1048576 x 128 in bf16 (.998 and 1.000 for .977 and .978; 134 us for 129); in the
first run at 4096 x 1024 in bf16, too (1.020 for .993). The CUDA kernels have 10.4, 5.7, 5.7, 126 and 5.8 us there, so it is no limit of
the card's; what it is was not found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .groups import arrive, exchange, in_turn, leave, meet, publish, tag_of, warm
from .held import hold, measure_held, store_held
from .joins import over_threads
from .short import exponentials, measure_keeping, store_scaled, top_of_tiles, total_of_exponentials
from .words import (
    MINUS_INFINITY,
    after,
    base_of,
    edges_of,
    element,
    exp_of,
    join,
    load,
    measure,
    measure_lanes,
    nothing,
    now,
    store_softmax,
    top_of,
    total_of,
    vectors_of,
    words_at,
)


@triton.jit(do_not_specialize=["x_stride", "y_stride", "M", "N"])
def forward_rows(
    x_ptr, y_ptr, x_stride, y_stride, M, N,
    BM: tl.constexpr, P: tl.constexpr, T: tl.constexpr, W: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, STAYS: tl.constexpr,
):  # fmt: skip
    """BM rows a program, each P tiles of T vectors of W words (V elements). ALIGN = 0: strides and N in vectors, else in elements."""
    D: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    shift, first, end = vectors_of(x_row, N, V, ALIGN)
    if BM > 1:
        end = tl.where(row < M, end, 0)
    start = shift * 0
    if ALIGN > 0:
        columns, inside = edges_of(N, shift, first, end, V, 2 * V if T <= 32 else T)
        if BM > 1:
            inside = inside & (row < M)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    x = load(words_at(x_row, shift, W), first, end, start, nothing(D), P, T, W, ALIGN, STAYS)
    y_words = words_at(y_row, shift, W)
    if T <= 32:
        m = top_of_tiles(x, D)
        if ALIGN > 0:
            m = tl.maximum(m, tl.max(edge, 1))
        b = base_of(m)[:, None]
        lower, upper = exponentials(x, b, D)
        s = tl.sum(total_of_exponentials(lower, upper, D), 1)[:, None]
        if ALIGN > 0:
            e = exp_of(edge - b)
            s += tl.sum(e, 1)[:, None]
        scale = 1.0 / s
        store_scaled(y_words, lower, upper, scale, first, end, start, T, W, D, ALIGN)
        if ALIGN > 0:
            tl.store(y_row[:, None] + columns, element(e * scale, D), mask=inside)
    else:
        if P > 8:
            own, part = measure_lanes(after(x, now(N)), D)
        elif P > 2:
            own, part = measure(x, D)
        else:
            own, part, lower, upper = measure_keeping(x, D)
        m, s = own, part
        if ALIGN > 0:
            m, s = join(own, part, edge, exp_of(edge - base_of(edge)))
        m, s = over_threads(m, s)
        scale = 1.0 / s
        if P > 2:
            zero = tl.where(s < 0, -1, 0)  # s is never negative
            if P * W > 8:
                x = after(x, zero[:, :, None])
            store_softmax(y_words, x, m, scale, first, end[:, None] | zero, start, T, W, D, ALIGN)
        else:  # own is -inf where all its exponentials are 0
            store_scaled(y_words, lower, upper, exp_of(own - m) * scale, first, end, start, T, W, D, ALIGN)
        if ALIGN > 0:
            tl.store(y_row[:, None] + columns, element(exp_of(edge - m) * scale, D), mask=inside)


@triton.jit(do_not_specialize=["x_stride", "y_stride", "N", "CHUNK", "FIRST", "CYCLES"])
def forward_cluster(
    x_ptr, y_ptr, x_stride, y_stride, N, CHUNK, FIRST, CYCLES,
    P: tl.constexpr, C: tl.constexpr, T: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, STAYS: tl.constexpr,
):  # fmt: skip
    """A row a cluster of C CTAs, CHUNK <= P * T vectors each; strides and N as in `forward_rows`."""
    D: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    rank = tl.arange(0, C)
    arrive(rank, C)
    row = in_turn(tl.program_id(0), FIRST, CYCLES).to(tl.int64) + rank * 0
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    shift, first, end = vectors_of(x_row, N, V, ALIGN)
    if ALIGN > 0:
        columns, inside = edges_of(N, shift, first, end, V, T)
        inside = inside & (rank == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    start = rank * CHUNK
    end = tl.minimum(start + CHUNK, end)
    x = load(words_at(x_row, shift, 4), first, end, start, nothing(D), P, T, 4, ALIGN, STAYS)
    if P > 2:
        own, part = measure_lanes(after(x, now(N)), D)
    else:
        own, part, lower, upper = measure_keeping(x, D)
    m, s = own, part
    if ALIGN > 0:
        m, s = join(own, part, edge, exp_of(edge - base_of(edge)))
    m, s = over_threads(m, s)
    m, s = exchange(m, s, C)
    scale = 1.0 / s
    y_words = words_at(y_row, shift, 4)
    if P > 2:
        zero = tl.where(s < 0, -1, 0)
        x = after(x, zero[:, :, None])
        store_softmax(y_words, x, m, scale, first, end[:, None] | zero, start, T, 4, D, ALIGN)
    else:
        store_scaled(y_words, lower, upper, exp_of(own - m) * scale, first, end, start, T, 4, D, ALIGN)
    if ALIGN > 0:
        tl.store(y_row[:, None] + columns, element(exp_of(edge - m) * scale, D), mask=inside)


@triton.jit(do_not_specialize=["x_stride", "y_stride", "N", "G", "CHUNK", "programs", "EXTRA", "FIRST", "CYCLES"])
def forward_group(
    x_ptr, y_ptr, counter, slots, x_stride, y_stride, N, G, CHUNK, programs, EXTRA, FIRST, CYCLES,
    P: tl.constexpr, H: tl.constexpr, T: tl.constexpr, V: tl.constexpr, ALIGN: tl.constexpr, PEERS: tl.constexpr, STREAM: tl.constexpr,
    STAYS: tl.constexpr,
):  # fmt: skip
    """A row G programs, CHUNK vectors each: P tiles in registers, H in shared memory. PEERS = 1: G is 1.

    STREAM: CHUNK is longer than that, and EXTRA tiles more of it are read twice, the second time from L2 where it holds them.
    counter: an int64 that only these kernels write; slots: 2 * PEERS int64 a row, whatever is in them but never this launch's tag.
    """
    D: tl.constexpr = x_ptr.dtype.element_ty
    UNIT: tl.constexpr = 1 if ALIGN > 0 else V
    KEEPS: tl.constexpr = P <= 2
    number = in_turn(tl.program_id(0) // G, FIRST, CYCLES)
    rank = tl.program_id(0) % G
    row = number.to(tl.int64) + tl.arange(0, 1)
    x_row = x_ptr + row * x_stride * UNIT
    y_row = y_ptr + row * y_stride * UNIT
    shift, first, row_end = vectors_of(x_row, N, V, ALIGN)
    start = rank * CHUNK + tl.arange(0, 1)
    end = tl.minimum(start + CHUNK, row_end)
    words = words_at(x_row, shift, 4)
    if H > 0:
        place = hold(words, first, end, start + P * T, H, T, STAYS)
    x = load(words, first, end, start, nothing(D), P, T, 4, ALIGN, STAYS)
    if ALIGN > 0:
        columns, row_edges = edges_of(N, shift, first, row_end, V, T)
        inside = row_edges & (start == 0)[:, None]
        edge = tl.load(x_row[:, None] + columns, mask=inside, other=MINUS_INFINITY).to(tl.float32)
    if PEERS > 1:
        tag = tag_of(counter, T)
        row_slots = slots + number.to(tl.int64) * (2 * PEERS)
        warm(row_slots, G, PEERS, True, T)
    if KEEPS:
        own, part, lower, upper = measure_keeping(x, D)
    else:
        own, part = measure_lanes(after(x, now(N)), D)
    m, s = own, part
    if H > 0:
        m, s = measure_held(m, s, place, first, end, start + P * T, H, T, D)
    if STREAM:
        for i in range(EXTRA):
            tile = load(words, first, end, start + (P + H + i) * T, nothing(D), 1, T, 4, ALIGN, STAYS)
            n = tl.maximum(m, top_of(tile[0], D))
            b = base_of(n)
            s = s * exp_of(m - b) + total_of(tile[0], b[:, :, None], D)
            m = n
    if ALIGN > 0:
        m, s = join(m, s, edge, exp_of(edge - base_of(edge)))
    m, s = over_threads(m, s)
    if PEERS > 1:
        publish(slots + row * (2 * PEERS) + rank * 2, tag, m, s, T)
        leave(counter, tag, programs)
        late, m_row, s_row = meet(row_slots, tag, G, PEERS, T)
        m = m_row + tl.zeros((1, T), tl.float32)
        s = s_row + tl.zeros((1, T), tl.float32)
        if late != 0:  # alone: the whole row again, from x
            m_all = tl.full((1, T), MINUS_INFINITY, tl.float32)
            s_all = tl.zeros((1, T), tl.float32)
            for at in range(0, G * CHUNK, T):
                tile = load(words, first, row_end, at + tl.arange(0, 1), nothing(D), 1, T, 4, ALIGN, STAYS)
                n = tl.maximum(m_all, top_of(tile[0], D))
                b = base_of(n)
                s_all = s_all * exp_of(m_all - b) + total_of(tile[0], b[:, :, None], D)
                m_all = n
            if ALIGN > 0:
                whole = tl.load(x_row[:, None] + columns, mask=row_edges, other=MINUS_INFINITY).to(tl.float32)
                m_all, s_all = join(m_all, s_all, whole, exp_of(whole - base_of(whole)))
            m, s = over_threads(m_all, s_all)
    scale = 1.0 / s
    y_words = words_at(y_row, shift, 4)
    if KEEPS:
        store_scaled(y_words, lower, upper, exp_of(own - m) * scale, first, end, start, T, 4, D, ALIGN)
    else:
        zero = tl.where(s < 0, -1, 0)
        x = after(x, zero[:, :, None])
        store_softmax(y_words, x, m, scale, first, end[:, None] | zero, start, T, 4, D, ALIGN)
    if H > 0:
        store_held(y_words, place, m, scale, first, end, start + P * T, H, T, D)
    if STREAM:
        for i in range(EXTRA):
            at = start + (P + H + i) * T
            again = load(words, first, end, at, nothing(D), 1, T, 4, ALIGN, STAYS)
            store_softmax(y_words, again, m, scale, first, end, at, T, 4, D, ALIGN)
    if ALIGN > 0:
        tl.store(y_row[:, None] + columns, element(exp_of(edge - m) * scale, D), mask=inside)
