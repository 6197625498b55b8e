"""The sweeps that ship with softbench; `softbench run --config NAME` finds them here."""
