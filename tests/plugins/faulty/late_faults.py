"""Backends that fail in a later phase than the build: in the check, or while they are timed."""

from faults import late

backends = late
