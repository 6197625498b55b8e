"""Reads PTX."""

import re


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
