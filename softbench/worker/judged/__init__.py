"""The judged side of a worker: it gives up rights, maps the judge's memory, and calls its backend there."""
