"""Reads PTX."""

import re


def exponents(ptx):
    """The instructions that compute the operands of exponentials, before any selection.

    Registers of inline assembly that are its own have no `%`, and are left out.
    """
    made, found = {}, []
    for line in ptx.splitlines():
        if not (match := re.match(r"\s*(?:@%\w+ )?([\w.]+)\s+(%\w+), (.+);", line)):
            continue
        instruction, target, operands = match[1], match[2], re.findall(r"%\w+", match[3])
        if instruction.startswith("ex2.") and operands:
            origin = operands[0]
            while origin in made and made[origin][0].startswith(("selp", "max", "min")):
                origin = made[origin][1]
            found.append(made[origin][0])
        made[target] = instruction, operands[0] if operands else ""
    return found
