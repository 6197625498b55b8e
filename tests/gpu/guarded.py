"""A kernel that a baseline guards: torch's softmax, under a name of its own. `guarded_slower.py` is it after a bad change.

softbench run --config gate --backends torch,guarded --plugin guarded=tests/gpu/guarded.py --rounds 10 --profile off --processes 12  # A/A
softbench run --config gate --backends torch,guarded --plugin guarded=tests/gpu/guarded.py --rounds 5 --profile off --processes 10
softbench baseline save results/latest.csv --name again
softbench run --config gate --backends torch,guarded --plugin guarded=tests/gpu/guarded.py --rounds 5 --profile off --processes 3
softbench gate results/latest.csv --baseline again  # 0
softbench run --config gate --backends torch,guarded --plugin guarded=tests/gpu/guarded_slower.py --rounds 5 --profile off --processes 3
softbench gate results/latest.csv --baseline again  # 1, and names the cells of guarded_slower.SLOWER and no other
"""

from softbench.backends.injected_slowdown import inject

(backend,) = inject("torch", (0.0,))
