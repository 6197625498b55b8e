// Rows too long for one CTA's registers, and few rows that must fill the card: G CTAs a row (or one), each with a chunk of it partly in
// registers, partly in shared memory, and what fits neither read a second time. One read, as long as the row fits the card's CTAs.
//
// Shared memory is thread-private here: a thread's own cp.async, no barrier. Two to four CTAs share an SM, so that one loads while another
// waits for its row's other parts; waiting on global memory with nothing else to do costs a quarter of the bandwidth.
//
// How the CTAs of a row meet is in meet.cuh.
#pragma once

#include "meet.cuh"

namespace softbench {

constexpr int SPLIT_THREADS = 512;
constexpr int AT_ONCE = 2;  // vectors of all tensors taken from shared memory at once

// WHOLE: known when compiling that registers hold each chunk. KNOWN_LINES: LINES of a Row, where there are registers for it; STAY: as of a Row.
template <typename Op, int K, bool WHOLE, bool KNOWN_LINES, bool STAY>
__global__ void __launch_bounds__(SPLIT_THREADS, 2)
    split(Tensors<Op> tensors, int G, int chunk, int kept, int floor_bytes, int patience, Workspace* workspace) {
    constexpr int R = Op::READS;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 900
    constexpr bool LINES = KNOWN_LINES && K * R < 8;  // else ptxas spills there
#else
    constexpr bool LINES = KNOWN_LINES;
#endif
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    __shared__ Part parts[2][MAX_WARPS];
    __shared__ int missed;
    __shared__ uint32_t tag;
    const int T = blockDim.x, thread = threadIdx.x;
    const unsigned index = gridDim.x == unsigned(G) ? 0 : blockIdx.x / unsigned(G), number = blockIdx.x - index * unsigned(G);

    uint32_t seen = 0;
    if (G > 1 && thread == 0) {  // one of them: a thousand warps that read one line wait for each other
        missed = 0;
        seen = tag_of(workspace);
        fetch_line(workspace->slots + int64_t(index) * G + number);  // a poll would else wait for the memory, not for the part
    }
    const Row<Op, LINES, STAY> row(tensors, index, floor_bytes);
    const int start = int(number) * chunk + thread;
    const int end = int(min(int64_t(number + 1) * chunk, int64_t(row.last)));
    const int from_shared = start + K * T, again = WHOLE ? end : from_shared + kept * T;

    Part part = Op::empty();
    if constexpr (!WHOLE) absorb_stream<Op>(part, row, again, end);  // first, while no register holds anything
    const int at = number == 0 ? row.odd(thread) : -1;
    uint32_t odd[R];
    row.read_odd(at, odd);
    Item<R> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * T;
        read(item[k], row, i, (LINES || i >= row.first) && i < end);
    }
    uint4* mine = reinterpret_cast<uint4*>(dynamic) + thread;
    for (int s = 0; !WHOLE && s < kept; ++s) {
        int i = from_shared + s * T;
        if (i >= end) break;
#pragma unroll
        for (int r = 0; r < R; ++r) copy_async<STAY>(mine + (s * R + r) * T, row.vector(r, i), row.policy);
    }

    constexpr bool KEEP = WHOLE && KEEPS<Op, K>;
    float kept_here[KEEP ? K * Op::V : 1];
    Part own;
    if constexpr (KEEP) own = Op::take(item, odd, kept_here);
    else own = Op::take(item, odd);
    part = WHOLE ? own : Op::joined(part, own);
    if (!WHOLE) {
        forget_unpacked<Op>(item, floor_bytes == 0);
        copy_async_wait();
    }
    const int stored = WHOLE ? 0 : min(kept, max(0, (end - from_shared + T - 1) / T));  // of this thread
    auto fetch = [&](Item<R>(&some)[AT_ONCE / R], int s) {
#pragma unroll
        for (int u = 0; u < AT_ONCE / R; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const uint32_t none = Op::blank();
                put(some[u].word[r], s + u < stored ? mine[((s + u) * R + r) * T] : make_uint4(none, none, none, none));
            }
    };
#pragma unroll 1
    for (int s = 0; s < stored; s += AT_ONCE / R) {
        Item<R> some[AT_ONCE / R];
        fetch(some, s);
        Op::absorb(part, some);
    }

    bool alone = false;
    if (G > 1) {
        if (thread == 0) tag = seen;
        part = join_block<Op, SPLIT_THREADS>(part, parts[0]);
        uint4* slots = workspace->slots + int64_t(index) * G;
        if (thread == 0) publish(slots + number, part, tag, workspace);
        part = join_block<Op, SPLIT_THREADS>(gather<Op>(slots, G, tag, patience, missed), parts[1]);
        alone = missed;
    } else part = join_block<Op, SPLIT_THREADS>(part, parts[0]);

    int rest = again;  // what is read now, for the first or the second time
    Part whole;
    if (!alone) {
        whole = Op::finish(part);
        if (!KEEP) forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            int i = start + k * T;
            if (!((LINES || i >= row.first) && i < end)) continue;
            if constexpr (KEEP) Op::give(row.target + int64_t(i) * Op::V, kept_here + k * Op::V, whole, own);
            else row.give(i, item[k], whole, own);
        }
#pragma unroll 1
        for (int s = 0; s < stored; s += AT_ONCE / R) {
            Item<R> some[AT_ONCE / R];
            fetch(some, s);
#pragma unroll
            for (int u = 0; u < AT_ONCE / R; ++u)
                if (s + u < stored) row.store(from_shared + (s + u) * T, some[u], whole);
        }
    } else {
        whole = Op::finish(whole_row(row, parts[0]));
        rest = start < row.first ? start + T : start;
    }
    row.write_odd(at, odd, whole);
    for (int i = rest; i < end; i += REREAD * T) {
        Item<R> some[REREAD];
#pragma unroll
        for (int u = 0; u < REREAD; ++u) read(some[u], row, i + u * T, i + u * T < end);
#pragma unroll
        for (int u = 0; u < REREAD; ++u)
            if (i + u * T < end) row.store(i + u * T, some[u], whole);
    }
}

}  // namespace softbench
