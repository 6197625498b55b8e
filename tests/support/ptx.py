"""Reads PTX, and runs it on the CPU.

`run` does what our kernels of the tier staged need: one CTA after the other, warp by warp.

A warp runs alone up to its next barrier, and the order of warps is random. So a kernel that lacks a barrier reads what is not there yet.
Asynchronous copies arrive at `cp.async.wait_all`. All threads of a warp take the same branches. An access outside of the memory, or a read
of what is no input, raises IndexError. One that is not aligned raises ValueError. Races within a warp do not show.
"""

import random
import re

import numpy as np

LANES = 32
SHARED_AT = 64  # the address of the first shared variable.
MASKS = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFFFFFF, 64: 0xFFFFFFFFFFFFFFFF}
FLOATS = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
STATEMENT = re.compile(r"^(?:@(!?)(%?\w+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)


def width_of(kind):
    return 1 if kind == "pred" else int(kind[1:])


class Kernel:
    """The first entry of a PTX text."""

    def __init__(self, ptx):
        text = re.sub(r"//[^\n]*", "", ptx)
        head, _, rest = text.partition(".entry ")[2].partition(")")
        self.parameters = re.findall(r"\.param\s+\.(\w+)[^,)]*?(\w+)\s*(?:,|$)", head.partition("(")[2], re.DOTALL)
        body = rest[rest.index("{") + 1 :]
        self.labels, self.code, self.shared = {}, [], 0
        for part in re.split(r";|(?<=:)\s*\n|\n\s*(?=\.loc|\$L\w+:)", body):
            for line in self._statements(part):
                self.code.append(line)

    def _statements(self, part):
        part = re.sub(r"\.loc[^\n]*\n?", "", part).strip()
        while match := re.match(r"(\$\w+):\s*", part):
            self.labels[match[1]] = len(self.code)
            part = part[match.end() :]
        part = re.sub(r"^[{}\s]+", "", part) if not part.startswith("{ %") else part
        part = re.sub(r"\s*}\s*$", "", part) if part.count("}") > part.count("{") else part
        part = part.strip()
        if match := re.match(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", part):
            self.shared += int(match[1])
        if part and not part.startswith(".") and (match := STATEMENT.match(part)):
            yield match.groups()


class Cta:
    def __init__(self, kernel, number, warps, memory, readable, arguments, order):
        self.kernel, self.number, self.memory, self.readable, self.order = kernel, number, memory, readable, order
        self.shared = np.full(SHARED_AT + kernel.shared, 0xA5, np.uint8)
        self.arguments = {name: value for (_, name), value in zip(kernel.parameters, arguments, strict=True)}
        self.warps = [Warp(self, warp).run() for warp in range(warps)]

    def run(self):
        waiting = self.warps
        while waiting:
            self.order.shuffle(waiting)
            waiting = [warp for warp in waiting if next(warp, None)]


class Warp:
    def __init__(self, cta, number):
        self.cta, self.registers, self.copies = cta, {}, []
        self.thread = np.arange(number * LANES, (number + 1) * LANES, dtype=np.uint64)

    def run(self):
        """Runs to the end; yields at each barrier."""
        at, code = 0, self.cta.kernel.code
        while at < len(code):
            negated, guard, name, text = code[at]
            at += 1
            active = np.ones(LANES, bool)
            if guard:
                active = (self.registers[guard] != 0) ^ bool(negated)
            operands = [one.strip() for one in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)]
            if name.startswith("bra"):
                assert active.all() or not active.any(), "threads of a warp take different branches"
                if active.all():
                    at = self.cta.kernel.labels[operands[0]]
            elif name == "ret":
                return
            elif name == "bar.sync":
                yield True
            else:
                self.step(name.split("."), operands, active)

    def bits(self, operand, kind):
        width, mask = width_of(kind), MASKS.get(width_of(kind), 1)
        if operand in ("%tid.x", "%ctaid.x"):
            return self.thread if operand == "%tid.x" else np.full(LANES, self.cta.number, np.uint64)
        if operand.startswith("0f"):
            return np.full(LANES, int(operand[2:], 16), np.uint64)
        if re.fullmatch(r"-?\d+", operand):
            return np.full(LANES, int(operand) & mask if width > 1 else int(operand) & 1, np.uint64)
        if operand == "smem_tiles":
            return np.full(LANES, SHARED_AT, np.uint64)
        return self.registers[operand] & np.uint64(mask)

    def read(self, operand, kind):
        """An operand as numbers of its kind."""
        raw, width = self.bits(operand, kind), width_of(kind)
        if kind == "pred":
            return raw != 0
        unsigned = raw.astype(f"u{width // 8}")
        if kind == "bf16":
            return (unsigned.astype(np.uint32) << 16).view(np.float32)
        if kind[0] == "s":
            return unsigned.view(f"i{width // 8}")
        return unsigned.view(FLOATS[kind]) if kind in FLOATS else unsigned

    def write(self, target, value, kind, active):
        if kind == "pred":
            raw = np.asarray(value, bool).astype(np.uint64)
        else:
            size = width_of(kind) // 8
            if value.dtype.itemsize != size:
                value = value.astype(f"i{size}")
            raw = np.ascontiguousarray(value).view(f"u{size}").astype(np.uint64)
        before = self.registers.get(target, np.zeros(LANES, np.uint64))
        self.registers[target] = np.where(active, raw, before)

    def access(self, operand, size, shared, active, read=False):
        """The memory and the bytes that active threads access at an operand in brackets, `size` bytes each."""
        name, _, offset = operand.strip("[] ").partition("+")
        memory = self.cta.shared if shared else self.cta.memory
        found = self.bits(name.strip(), "u32" if shared else "u64").astype(np.int64)[active] + int(offset or 0)
        if (found % size).any():
            raise ValueError(f"unaligned access of {size} bytes at {found[found % size != 0][0]}")
        if len(found) and (found.min() < SHARED_AT or found.max() + size > len(memory)):
            raise IndexError(f"access of {size} bytes at {found.min()} to {found.max()}, of {len(memory)}")
        places = found[:, None] + np.arange(size)
        if read and not shared and not self.cta.readable[places].all():
            raise IndexError(f"reads {size} bytes that are not an input's")
        return memory, places

    def load_or_store(self, name, operands, active):
        shared, vector = name[1] == "shared", next((int(part[1]) for part in name if re.fullmatch(r"v\d", part)), 1)
        kind = name[-1]
        size = width_of(kind) // 8
        registers, address = (operands[0], operands[1]) if name[0] == "ld" else (operands[1], operands[0])
        names = [one.strip() for one in registers.strip("{}").split(",")]
        memory, places = self.access(address, size * vector, shared, active, read=name[0] == "ld")
        for i, register in enumerate(names):
            part = places[:, i * size : (i + 1) * size]
            if name[0] == "ld":
                value = np.zeros(LANES, f"u{size}")
                value[active] = np.ascontiguousarray(memory[part]).view(f"u{size}")[:, 0]
                self.write(register, value, f"u{8 * size}", active)
            else:
                memory[part] = self.bits(register, f"u{8 * size}").astype(f"u{size}")[active][:, None].view(np.uint8)

    def step(self, name, operands, active):
        first, kind = name[0], name[-1]
        if first == "ld" and name[1] == "param":
            value = np.full(LANES, self.cta.arguments[operands[1].strip("[]")], np.int64)
            self.write(operands[0], value, "s64", active)
        elif first in ("ld", "st"):
            self.load_or_store(name, operands, active)
        elif first == "cp":
            self.copy(name, operands, active)
        elif first == "mov" and operands[0].startswith("{"):
            names, value = [one.strip() for one in operands[0].strip("{}").split(",")], self.read(operands[1], "u32")
            for i, register in enumerate(names):
                self.write(register, (value >> np.uint32(16 * i)).astype(np.uint16), "u16", active)
        elif first == "shfl":
            value, distance = self.read(operands[1], "u32"), int(operands[2])
            self.write(operands[0], value[np.arange(LANES) ^ distance], "u32", active)
        elif first == "setp":
            self.write(operands[0], self.compared(name[1], *(self.read(one, kind) for one in operands[1:])), "pred", active)
        elif first == "selp":
            a, b = (self.read(one, kind) for one in operands[1:3])
            self.write(operands[0], np.where(self.read(operands[3], "pred"), a, b), kind, active)
        elif first == "cvt":
            self.convert(name, operands, active)
        else:
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                self.write(operands[0], *self.result(name, operands[1:], kind), active)

    def copy(self, name, operands, active):
        if "wait_all" in name:
            for memory, places, values in self.copies:
                memory[places] = values
            self.copies = []
        elif "commit_group" not in name:
            size = int(operands[2])
            shared, to = self.access(operands[0], size, True, active)
            memory, source = self.access(operands[1], size, False, active, read=True)
            self.copies.append((shared, to, memory[source]))

    @staticmethod
    def compared(how, a, b):
        return {"ne": a != b, "eq": a == b, "lt": a < b, "gt": a > b, "le": a <= b, "ge": a >= b}[how]

    def convert(self, name, operands, active):
        to, source = name[-2], name[-1]
        if to in ("bf16x2", "f16x2"):
            halves = [self.read(one, "f32") for one in operands[2:0:-1]]  # the second operand is the lower half
            half = np.float16 if to == "f16x2" else None
            low, high = (one.astype(half).view(np.uint16) if half else to_bfloat16(one) for one in halves)
            self.write(operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16), "u32", active)
        else:
            value = self.read(operands[1], source)
            dtype = FLOATS.get(to) or f"{'i' if to[0] == 's' else 'u'}{width_of(to) // 8}"
            self.write(operands[0], value.astype(dtype), to, active)

    def result(self, name, operands, kind):
        first, wide = name[0], "wide" in name
        of = {"b32": "u32", "b64": "u64"}.get(kind, kind)
        if kind == "pred":
            return self.bits(operands[0], "pred") != 0, "pred"
        if first in ("shl", "shr"):
            return self.shifted(first, self.read(operands[0], of), self.read(operands[1], "u32")), kind
        if first == "bfe":
            value, at, length = self.read(operands[0], of), int(operands[1]), int(operands[2])
            return value >> np.uint32(at) & np.uint32((1 << length) - 1), kind
        if wide:
            double = f"{of[0]}64"
            one, other = (self.read(operand, of).astype("i8" if of[0] == "s" else "u8") for operand in operands[:2])
            return one * other + self.read(operands[2], double) if first == "mad" else one * other, double
        values = [self.read(one, of) for one in operands]
        if first == "ex2":
            return np.exp2(values[0].astype(np.float64)).astype(np.float32), kind
        one, *others = values
        made = {
            "mov": lambda: one,
            "add": lambda: one + others[0],
            "sub": lambda: one - others[0],
            "mul": lambda: one * others[0],
            "mad": lambda: one * others[0] + others[1],
            "fma": lambda: one * others[0] + others[1],
            "div": lambda: one / others[0],
            "neg": lambda: -one,
            "and": lambda: one & others[0],
            "or": lambda: one | others[0],
            "xor": lambda: one ^ others[0],
            "min": lambda: np.fmin(one, others[0]),
            "max": lambda: np.fmax(one, others[0]),
        }[first]()
        return made, kind

    @staticmethod
    def shifted(first, value, by):
        by = by.astype(value.dtype)
        return value << by if first == "shl" else value >> by


def to_bfloat16(value):
    """Rounded to nearest even, as uint16."""
    raw = value.view(np.uint32)
    rounded = (raw + np.uint32(0x7FFF) + (raw >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def run(ptx, programs, warps, memory, readable, arguments, seed=0):
    """Runs the CTAs `programs`, a range, on a flat global memory, an array of bytes.

    `readable`: which bytes may be read. `arguments`: the parameters; addresses are indices of bytes.
    """
    kernel, order = Kernel(ptx), random.Random(seed)
    for number in programs:
        Cta(kernel, number, warps, memory, readable, arguments, order).run()


def exponents(ptx):
    """The instructions that compute the operands of exponentials, before any selection.

    Constants are left out, and so are registers that are inline assembly's own, which have no `%`.
    """
    made, found = {}, []
    for line in ptx.splitlines():
        if not (match := re.match(r"\s*(?:@%\w+ )?([\w.]+)\s+(%\w+), (.+);", line)):
            continue
        instruction, target, operands = match[1], match[2], re.findall(r"%\w+", match[3])
        if instruction.startswith("ex2.") and operands:
            origin = operands[0]
            while made[origin][0].startswith(("selp", "max", "min", "mov")) and made[origin][1]:
                origin = made[origin][1]
            if not made[origin][0].startswith("mov"):
                found.append(made[origin][0])
        made[target] = instruction, operands[0] if operands else ""
    return found
