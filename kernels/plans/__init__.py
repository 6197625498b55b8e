"""Tables of the fastest launch plans, one for each card that `softbench tune` measured."""
