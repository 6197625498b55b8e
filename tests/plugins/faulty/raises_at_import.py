"""A plugin whose import fails."""

raise ImportError("no module named the_missing_library; pip install the-missing-library")
