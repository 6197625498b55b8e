"""Words without behaviour: cases, outcomes, errors, statistics, text. Imports nothing else of softbench."""
