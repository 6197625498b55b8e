"""A plugin to try the gate: torch's softmax under the name `guarded`. `guarded_slower.py` is the same kernel after a bad change.

The first command is an A/A run. The others save a baseline, then judge an unchanged kernel (exit code 0) and a slower one (exit code 1,
with the cells of guarded_slower.SLOWER and no others).

    softbench run --config gate --backends torch,guarded --plugin guarded=tools/guarded.py --rounds 10 --profile off --processes 12
    softbench run --config gate --backends torch,guarded --plugin guarded=tools/guarded.py --rounds 5 --profile off --processes 10
    softbench baseline save results/latest.csv --name again
    softbench run --config gate --backends torch,guarded --plugin guarded=tools/guarded.py --rounds 5 --profile off --processes 3
    softbench gate results/latest.csv --baseline again
    softbench run --config gate --backends torch,guarded --plugin guarded=tools/guarded_slower.py --rounds 5 --profile off --processes 3
    softbench gate results/latest.csv --baseline again
"""

from softbench.backends.injected_slowdown import inject

(backend,) = inject("torch", (0.0,))
