"""Backends from functions by name, for plugin files that hold many ways to compute an operation."""

import csv
import re


class Way:
    """One way to compute an operation. `makers` give a new function for each direction that it has."""

    def __init__(self, name, operation, makers):
        self.name, self.operations, self.makers = name, (operation,), makers

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction in self.makers else f"it has only {', '.join(self.makers)}"

    def prepare(self, case):
        return self.makers[case.direction]()


class CaseWay(Way):
    """A way that depends on the parameters of its case, which its makers take."""

    def prepare(self, case):
        return self.makers[case.direction](case)


def of_cases(prefix, operation, ways):
    """A backend for each name; a way is its maker, and the directions that it has."""
    makers = {name: dict.fromkeys(map(str, directions), make) for name, (make, directions) in ways.items()}
    return [CaseWay(f"{prefix}-{slug(name)}", operation, made) for name, made in makers.items()]


def backends(prefix, operation, makers, way_of=Way):
    """A backend for each name in any direction's makers: `softmax's formula` becomes `PREFIX-softmaxs-formula`."""
    names = dict.fromkeys(name for by_name in makers.values() for name in by_name)
    return [
        way_of(f"{prefix}-{slug(name)}", operation, {way: by_name[name] for way, by_name in makers.items() if name in by_name})
        for name in names
    ]


def slug(name):
    """The name with the letters that a backend's name may have."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name.replace("'", "")).strip("-")


def same(functions):
    """Makers of functions that keep nothing between calls."""
    return {name: lambda function=function: function for name, function in functions.items()}


def by_cell(file):
    """The rows of a CSV of one operation, dtype and shape, by backend and direction."""
    with file.open() as latest:
        return {(row["backend"], row["direction"]): row for row in csv.DictReader(latest)}
