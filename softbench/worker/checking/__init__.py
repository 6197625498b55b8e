"""Checks what a backend's calls return: the pre-check, check cases, probes, and the rows that are compared."""
