"""Which tier a shape takes, and with what numbers: by rule, and where a table was measured on the very device, by that.

A rule is arithmetic on the row's length, the number of rows, their alignment and the device's SMs; nothing is compiled or timed to find
it. `python -m softbench.kernels.triton.tune` times the rule's choice against its neighbours in `candidates` over a grid of shapes and
writes the fastest of each as `tables/<device>.json`, which then decides for shapes nearby; $SOFTBENCH_TRITON_TABLE names another.

Numbers of a `Plan`: P tiles of T vectors of W words a thread; BM rows a program; C CTAs a cluster; G programs a row; H tiles held in
shared memory; `registers` a thread at most, which sets how many programs an SM has at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from .plans import GPC_SMS, SM_REGISTERS, Plan, Shape, measured, resident

VECTOR = 16  # bytes
LINE = 128  # bytes: chunks end where lines do
SHORT_ROW = 4096  # bytes: up to here several rows share a program, or a row has fewer than 4 warps
ROW_VECTORS = {2: 4096, 4: 8192}  # 16-bit, float32: a program's registers hold no more of a row at full speed
THREADS = (32, 64, 128, 256, 512, 1024)
HELD = 44 * 1024  # bytes a program, of `held.py`: static shared memory ends at 48 KiB
LONG_ROW = 36 * 1024  # bytes of all tensors: longer ones are better a cluster's
CLUSTERS = (2, 4, 8, 16)
UNDER_WAY = 104 * 1024  # bytes of rows that an SM wants to hold, waiting for a cluster's exchange
IDLE_ROW = 400 * 1024  # bytes of all tensors: longer rows want more than a cluster's 16 SMs, while others have nothing to do
MOST_PEERS = 512
TILE_IDLE = 1.3  # columns of a tile to columns of a row
NEAR = 6  # of a table: three quarters of an octave of row length, or half of one and twice the rows


def plan(shape: Shape, device: str = "") -> Plan:
    """The choice for a shape on a device of that name."""
    if shape.size != 8 and shape.congruent:
        kind, step, rows = bucket(shape)
        near = ((abs(step - at) + 2 * abs(rows - many), found) for at, many, found in measured(device).get(kind, ()))
        for distance, found in sorted(near, key=lambda pair: pair[0]):
            if distance > NEAR:
                break
            if (fitted := fit(shape, found)) is not None:
                return fitted
    return by_rule(shape)


def by_rule(shape: Shape) -> Plan:
    """The choice where no table has one."""
    return next(candidates(shape))


def candidates(shape: Shape) -> Iterator[Plan]:
    """Plans worth timing, the rule's own choice first. Never empty."""
    if shape.size == 8 or not shape.congruent:
        yield from _plain(shape)
        return
    seen = set()
    for found in _ordered(shape):
        if found not in seen:
            seen.add(found)
            yield found


def _ordered(shape: Shape) -> Iterator[Plan]:
    row = shape.N * shape.size
    most = ROW_VECTORS[min(4, shape.size)] * VECTOR // shape.tensors
    few = shape.M * shape.tensors * row < shape.sms * 64 * 1024  # less than a quarter of the card's registers
    if row <= SHORT_ROW:
        yield from _short(shape)
        yield from _plain(shape)
    elif row <= most and (row * shape.tensors <= LONG_ROW or not (shape.clusters or few)):
        yield from _rows(shape)
        yield from _clusters(shape)
        yield from _groups(shape)
    elif shape.clusters and row <= (1 << 20) and (row * shape.tensors <= IDLE_ROW or shape.M * CLUSTERS[-1] >= shape.sms):
        yield from _clusters(shape)
        yield from _groups(shape)
        yield from _rows(shape)
    else:
        yield from _groups(shape)
        yield from _clusters(shape)
    yield from _plain(shape)


def _plain(shape: Shape) -> Iterator[Plan]:
    yield Plan("loop" if 16384 // shape.tensors < shape.N else "tile", V=1)


def _layouts(shape: Shape) -> list[tuple[int, int, int]]:
    """(W, V, ALIGN) that move rows of this alignment, the likeliest best first."""
    elements = VECTOR // shape.size
    if shape.alignment == VECTOR:
        return [(4, elements, 0)]
    shifted = (4, elements, VECTOR if shape.N * shape.size <= SHORT_ROW else LINE)
    if shape.N * shape.size > SHORT_ROW:
        return [shifted]
    exact = max(1, shape.alignment // 4)
    if shape.alignment >= 4:
        whole = (exact, exact * 4 // shape.size, 0)
        return [whole, shifted] if shape.N * shape.size <= 1024 else [shifted, whole]
    return [(2, 4, 8), shifted, (1, 2, 4)] if shape.N <= 256 else [shifted, (2, 4, 8), (1, 2, 4)]


def _vectors(shape: Shape, V: int, ALIGN: int) -> int:
    """Vectors a row may touch, counted from the boundary below it."""
    if ALIGN == 0:
        return shape.N // V
    return (shape.N + ALIGN // shape.size - 1) // V + 1


def _short(shape: Shape) -> Iterator[Plan]:
    """A power of two of lanes a row, so that a warp has one or several rows; about 8 words a thread and tensor."""
    found = []
    for order, (W, V, ALIGN) in enumerate(_layouts(shape)):
        vectors = _vectors(shape, V, ALIGN)
        for T in (1, 2, 4, 8, 16, 32, 64, 128):
            P = math.ceil(vectors / T)
            words = P * W
            if words * shape.tensors > 64 or (P == 1 and T > 1 and vectors <= T // 2):
                continue
            idle = P * T / max(1, vectors)
            for warps, BM in _programs(T):
                a_thread = words * BM * T / (32 * warps)
                if a_thread * shape.tensors > 64:
                    continue
                score = order + 2 * (idle - 1) + _away(a_thread * shape.tensors, 8)
                score += 0.25 * (32 * warps < BM * T) + 0.5 * (T > 32)
                found.append((score, Plan("rows", P, T, W, V, ALIGN, warps, None, BM)))
    if shape.alignment == VECTOR and shape.N & (shape.N - 1) == 0:
        yield Plan("tile", V=VECTOR // shape.size)
    for _, one in sorted(found, key=lambda pair: pair[0])[:9]:
        yield one


def _away(value: float, ideal: float) -> float:
    return abs(value / ideal - 1) if value > ideal else abs(ideal / value - 1)


def _programs(T: int) -> Iterator[tuple[int, int]]:
    """(warps, rows a program): one row, or rows that fill 1, 2 or 4 warps once or twice."""
    if T >= 32:
        yield T // 32, 1
        if T == 32:
            yield from ((2, 2), (4, 4), (1, 2))
        return
    for warps in (1, 2, 4):
        for times in (1, 2, 4):
            yield warps, 32 * warps // T * times


def _rows(shape: Shape) -> Iterator[Plan]:
    """A row a program: few vectors a thread while rows are short, so that many programs share an SM; more as rows grow."""
    W, V, ALIGN = _layouts(shape)[0]
    vectors = _vectors(shape, V, ALIGN)
    most = (8 if shape.size == 4 else 16) // shape.tensors
    ideal = (5 if shape.size == 4 else 6 if vectors <= 1280 else 12) / shape.tensors
    found = []
    for T in THREADS[1:]:
        P = math.ceil(vectors / T)
        if most >= P:
            for registers in _registers(shape, P, T):
                found.append((_away(P, ideal), Plan("rows", P, T, W, V, ALIGN, T // 32, registers)))
    yield from (one for _, one in sorted(found, key=lambda pair: pair[0])[:6])


def _registers(shape: Shape, P: int, T: int, more: int = 0) -> list[int | None]:
    """Limits a thread: what the tiles take and some more. Beyond, another program would not fit an SM anyway."""
    held = 4 * P * shape.tensors * (2 if P <= 2 and shape.size == 2 and not shape.backward else 1)  # whose exponentials are kept
    least = (
        held
        + more
        + (20 if 16 < held < 64 else 16)
        + (4 if shape.alignment < VECTOR else 0)
        + (8 if shape.backward and shape.size == 2 else 0)
    )
    steps = [step for step in (32, 40, 48, 56, 64, 72, 80, 96, 128) if step >= least and step * T <= SM_REGISTERS]
    return list(steps[:2]) or [None]


def _clusters(shape: Shape) -> Iterator[Plan]:
    """Of many rows: enough bytes under way on an SM, in few and small CTAs, as each waits for the slowest. Of few: no idle SMs."""
    if not shape.clusters:
        return
    W, V, ALIGN = _layouts(shape)[0]
    if W != 4:
        return
    vectors = _vectors(shape, V, ALIGN)
    row = vectors * VECTOR * shape.tensors
    enough = min(UNDER_WAY, shape.M * row / shape.sms)
    # The weights of what follows bring the plans that tunes found best near the front; nothing else is known of them.
    found = []
    for C in CLUSTERS:
        chunk = _chunk(vectors, C)
        for T in (128, 256, 512):
            P = math.ceil(chunk / T)
            a_thread = P * shape.tensors
            if a_thread > (24 if T == 256 else 16) or chunk * VECTOR < 2048:
                continue
            busy = min(1.0, shape.M * C / shape.sms)  # a card whose SMs have nothing to do loses most
            for number, registers in enumerate(_registers(shape, P, T, 12 if shape.size == 2 and a_thread >= 12 else 0)):
                score = P * T / chunk - 1 + 0.1 * number + 0.01 * max(0, a_thread - 8) + 0.5 * (registers is None)
                held = resident(T, registers) * GPC_SMS // C  # clusters of a GPC
                if busy < 1.0:
                    score += C / 64 + 4 * (1 - busy) + _away(a_thread, 2) / 4
                elif shape.M > shape.sms:
                    score += C / 64 + T / 2048 + 4 * max(0.0, 1 - held * row / GPC_SMS / enough)
                else:  # 16-bit rows, which compute the most, want more threads
                    score += C / 256 + T / 4096 + 4 * max(0.0, 1 - held * row / GPC_SMS / enough)
                    score += _away(a_thread, 2) / 10 if shape.size == 2 else 0
                found.append((score, Plan("cluster", P, T, 4, V, ALIGN, T // 32, registers, C=C)))
    yield from (one for _, one in sorted(found, key=lambda pair: pair[0])[:16])


def _groups(shape: Shape) -> Iterator[Plan]:
    """Of many rows: as many bytes of a row a program as an SM can hold of three or four programs. Of few: what fills the card once, in
    short programs, as even their instructions come from memory. A row whose programs would not all run at once is streamed by fewer."""
    W, V, ALIGN = _layouts(shape)[0]
    if W != 4:
        return
    vectors = _vectors(shape, V, ALIGN)
    if shape.clusters and not shape.backward:
        yield _likely_group(shape, vectors, V, ALIGN)
    found = []
    for T, P, H, registers in _programs_of_groups(shape):
        programs = max(1, resident(T, registers, H))
        most = min(MOST_PEERS, shape.sms * programs)
        once = shape.sms * programs // shape.M
        fewest = math.ceil(vectors / (T * (P + H)))
        for G in {min(fewest, most), min(fewest + 1, most), once, once // 2, shape.sms // shape.M, shape.sms // (2 * shape.M)}:
            if most < G or (2 if shape.backward else 1) > G or vectors // G < 64:
                continue
            chunk = _chunk(vectors, G)
            need = math.ceil(chunk / T)
            streamed = max(0, need - P - H) / need
            if streamed and most > G and once > G:
                continue
            p = min(P, need)
            busy = min(1.0, shape.M * G / shape.sms)
            score = 4 * (1 - busy) + 4 * streamed + 0.2 * (G / 16) - programs * min(chunk, T * (P + H)) * VECTOR / (1 << 20)
            score += (P + H) / 8 if shape.M * G <= shape.sms * programs else 0
            found.append((score, Plan("group", p, T, 4, V, ALIGN, T // 32, registers, G=G, H=min(H, need - p))))
    yield from (one for _, one in sorted(found, key=lambda pair: pair[0])[:24])


def _likely_group(shape: Shape, vectors: int, V: int, ALIGN: int) -> Plan:
    """What tunes found best or nearly so: all in registers, in one to four programs an SM; else four, with half of it in shared memory."""
    each = shape.M * vectors * VECTOR / shape.sms  # bytes an SM
    if each > 128 * 1024:
        G = min(math.ceil(vectors / (256 * 19)), MOST_PEERS, shape.sms * resident(256, 64, 11))
        need = math.ceil(_chunk(vectors, G) / 256)
        return Plan("group", min(8, need), 256, 4, V, ALIGN, 8, 64, G=G, H=max(0, min(11, need - 8)))
    one, two = (32, 128) if shape.M == 1 else (16, 64) if shape.M < 8 else (16, 32)  # KiB an SM
    programs = 1 if each <= one * 1024 else 2 if each <= two * 1024 else 4
    G = max(2, min(programs * shape.sms // shape.M, vectors * VECTOR // 8192, MOST_PEERS))
    T = 512 if programs <= 2 and vectors // G >= 1000 else 256
    P = math.ceil(_chunk(vectors, G) / T)
    return Plan("group", P, T, 4, V, ALIGN, T // 32, _registers(shape, P, T, 8)[0], G=G)


def _programs_of_groups(shape: Shape) -> list[tuple[int, int, int, int]]:
    """(T, P, H, registers)."""
    if not shape.clusters:  # before Hopper, and under the interpreter, where a step costs the same however wide it is
        return [(1024, 8 if shape.backward else 16, 0, 64)]
    if shape.backward:
        return [(256, 8, 0, 96), (512, 4, 0, 64), (256, 4, 0, 64), (512, 2, 0, 40), (512, 1, 0, 32)]
    return [
        (512, 24, 5, 128), (256, 24, 11, 128), (128, 16, 14, 96), (256, 8, 11, 64), (256, 8, 8, 64), (256, 16, 11, 80), (256, 12, 10, 80),
        (512, 8, 5, 64), (256, 16, 0, 80), (256, 8, 0, 56), (512, 4, 0, 40), (512, 2, 0, 32), (1024, 4, 0, 32), (1024, 2, 0, 32),
        (256, 4, 0, 40), (512, 8, 0, 64), (256, 2, 0, 40), (128, 16, 0, 96), (128, 12, 10, 80),
    ]  # fmt: skip


def _chunk(vectors: int, parts: int) -> int:
    """Vectors of each of `parts` chunks, whole lines."""
    return math.ceil(vectors / parts / (LINE // VECTOR)) * (LINE // VECTOR)


def chunk(shape: Shape, plan: Plan) -> int:
    """Vectors of each program's share of a row."""
    return _chunk(_vectors(shape, plan.V, plan.ALIGN), max(plan.C, plan.G))


def bucket(shape: Shape) -> tuple[str, int, int]:
    """(direction, element size and alignment; the row's words in eighths of an octave; rows in powers of two up to 4096)."""
    aligned = shape.alignment if shape.N * shape.size <= SHORT_ROW else VECTOR if shape.alignment == VECTOR else 0
    words = max(1, shape.N * shape.size // 4)
    kind = f"{'backward' if shape.backward else 'forward'} {shape.size} {aligned}"
    return kind, round(8 * math.log2(words)), min(12, round(math.log2(shape.M)))


def fit(shape: Shape, found: Plan) -> Plan | None:
    """A table's plan with the numbers of this very row: those of its bucket differ by a few percent. None where it does not fit."""
    if found.tier in ("tile", "loop"):  # Triton moves such a row in whole vectors only where it sees that 16 divides N
        # ... and pays for the next power of two.
        vectors_seen = shape.alignment < VECTOR or shape.N % 16 == 0
        return found if found.tier == "loop" or (vectors_seen and 1 << (shape.N - 1).bit_length() <= TILE_IDLE * shape.N) else None
    vectors = _vectors(shape, found.V, found.ALIGN)
    if found.tier == "group":
        need = math.ceil(_chunk(vectors, found.G) / found.T)
        H = min(max(0, need - found.P), HELD // (found.T * VECTOR)) if found.H else 0
        fits = need <= 1.1 * (found.P + found.H)
        return replace(found, P=min(found.P, need), H=H) if fits else None
    P = math.ceil((_chunk(vectors, found.C) if found.tier == "cluster" else vectors) / found.T)
    return replace(found, P=P) if P <= found.P + 1 and (found.registers or 255) >= 4 * P * shape.tensors + 14 else None
