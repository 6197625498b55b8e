"""Every module has a test file of its name in the mirrored folder, or an entry here. Names of tests are short."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_NAME_WORDS = 10
COVERED_BY = {
    # Types and small functions that their users' tests exercise.
    "core/case": "run/test_run.py",
    "core/errors": "cli/test_main.py",
    "core/files": "gate/test_baselines.py",
    "core/inspection": "run/test_inspect.py",
    "core/json_types": "results/test_records.py",
    "core/messages": "run/test_scheduler.py",
    "core/outcome": "results/test_records.py",
    "core/replies": "run/test_scheduler.py",
    "core/text": "results/test_rows.py",
    "core/toolchain": "gpu/test_triton_operator_compiled_gpu.py",
    "core/validate": "adversarial/test_fuzz.py",
    "ops/cross_entropy/numerics": "ops/cross_entropy/test_tolerance.py",
    "ops/cross_entropy/reference": "ops/cross_entropy/test_tolerance.py",
    "ops/cross_entropy/spec": "ops/cross_entropy/test_tolerance.py",
    "ops/log_softmax/check_cases": "ops/log_softmax/test_tolerance.py",
    "ops/log_softmax/inputs": "ops/log_softmax/test_tolerance.py",
    "ops/log_softmax/numerics": "ops/log_softmax/test_tolerance.py",
    "ops/log_softmax/reference": "ops/log_softmax/test_independent.py",
    "ops/log_softmax/spec": "ops/test_registry.py",
    "ops/log_softmax/structured_rows": "ops/log_softmax/test_tolerance.py",
    "ops/logprob/independent": "ops/cross_entropy/test_independent.py",
    "ops/logprob/numerics": "ops/logprob/test_tolerance.py",
    "ops/logprob/reference": "ops/logprob/test_tolerance.py",
    "ops/logprob/spec": "ops/logprob/test_tolerance.py",
    "ops/masked_softmax/check_cases": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/independent": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/inputs": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/masks": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/numerics": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/reference": "ops/masked_softmax/test_tolerance.py",
    "ops/masked_softmax/spec": "ops/test_scores.py",
    "ops/masked_softmax/structured_rows": "ops/masked_softmax/test_tolerance.py",
    "ops/rowwise/check_cases": "run/test_check.py",
    "ops/rowwise/independent": "ops/softmax/test_independent.py",
    "ops/rowwise/inputs": "ops/softmax/test_tolerance.py",
    "ops/rowwise/logsumexp": "ops/cross_entropy/test_tolerance.py",
    "ops/rowwise/numerics": "worker/test_row_sample.py",
    "ops/rowwise/reference": "ops/softmax/test_independent.py",
    "ops/rowwise/spec": "ops/softmax/test_spec.py",
    "ops/rowwise/structured_rows": "worker/test_rotating_inputs.py",
    "ops/rowwise/targets": "ops/cross_entropy/test_tolerance.py",
    "ops/rowwise/tolerance": "ops/softmax/test_tolerance.py",
    "ops/softmax/check_cases": "run/test_check.py",
    "ops/softmax/inputs": "ops/softmax/test_tolerance.py",
    "ops/softmax/reference": "ops/softmax/test_tolerance.py",
    "ops/softmax/structured_rows": "worker/test_rotating_inputs.py",
    "ops/check_case": "run/test_check.py",
    "ops/declaration": "ops/test_operation.py",
    "ops/dtypes": "ops/softmax/test_tolerance.py",
    "ops/numerics": "ops/softmax/test_tolerance.py",
    "ops/user_file": "docs/test_operations.py",
    "ops/values": "docs/test_operations.py",
    "ops/parameters": "ops/test_operation.py",
    "worker/callables": "worker/test_any_dim.py",
    "ops/rows": "ops/softmax/test_tolerance.py",
    "ops/softmax/numerics": "worker/test_row_sample.py",
    "plugins/backend": "plugins/test_select.py",
    "plugins/info": "plugins/test_select.py",
    "plugins/load": "plugins/test_select.py",
    "plugins/traits": "worker/test_rotating_inputs.py",
    "plan/config_file": "plan/test_settings.py",
    "plan/flags": "plan/test_settings.py",
    "plan/plan": "run/test_run.py",
    "plan/values": "adversarial/test_fuzz.py",
    "processes/launch": "processes/test_pool.py",
    "processes/session": "run/test_run.py",
    "processes/worker_log": "processes/test_pool.py",
    "results/csv": "results/test_store.py",
    "results/journal": "results/test_store.py",
    "run/doctor": "cli/test_main.py",
    "run/request": "gate/test_ab_run.py",
    # Backends of one call each: the check cases run all of them.
    "backends/autograd": "run/test_check.py",
    "backends/copy": "backends/test_traffic.py",
    "backends/directions": "run/test_check.py",
    "backends/injected_slowdown": "gate/test_self_test.py",
    "backends/scores": "ops/masked_softmax/test_tolerance.py",
    "backends/losses": "ops/cross_entropy/test_tolerance.py",
    "backends/third_party_losses": "backends/test_third_party.py",
    "backends/naive": "ops/softmax/test_tolerance.py",
    "backends/own_kernels": "gpu/test_backends_gpu.py",
    # What a worker does, seen from the command line.
    "worker/async_work": "adversarial/test_wrong_plugins.py",
    "worker/check_case": "run/test_check.py",
    "worker/code_capture": "run/test_inspect.py",
    "worker/compile_stats": "backends/test_torch_compile.py",
    "worker/error_metrics": "run/test_check.py",
    "worker/failures": "integration/test_faults.py",
    "worker/pre_check": "worker/test_rotating_inputs.py",
    "worker/serve": "worker/test_batches.py",
    "worker/server": "worker/test_batches.py",
    "worker/timers": "gpu/test_timers_gpu.py",
    # The judge, seen from its judgements.
    "judge/challenge": "judge/test_judgement.py",
    "judge/main": "cli/test_judge.py",
    "processes/judge_process": "cli/test_judge.py",
    "results/signature": "cli/test_judge.py",
    "run/judge": "cli/test_judge.py",
    "worker/confinement": "judge/test_judgement.py",
    "worker/judged_calls": "judge/test_judgement.py",
    "worker/judged_memory": "judge/test_judgement.py",
    "worker/shared_memory": "judge/test_judgement.py",
    # Commands and tables, compared as a whole.
    "cli/baseline": "cli/test_gate.py",
    "cli/doctor": "cli/test_main.py",
    "cli/gate_outputs": "cli/test_gate.py",
    "cli/inspect": "run/test_inspect.py",
    "cli/listing": "cli/test_main.py",
    "cli/run": "run/test_run.py",
    "run/fleet/ray_relay": "run/fleet/test_ray_cards.py",
    "cli/merge": "results/test_merge.py",
    "report/page/environment": "report/page/test_document.py",
    "report/page/wrong": "report/page/test_document.py",
    "report/page/heat": "report/page/test_document.py",
    "report/page/comparison": "report/page/test_document.py",
    "report/page/figures": "report/page/test_document.py",
    "report/page/trend": "report/page/test_document.py",
    "report/page/verdicts": "report/page/test_document.py",
    "report/page/read": "report/page/test_document.py",
    "report/page/source": "report/page/test_document.py",
    "cli/report": "report/page/test_document.py",
    "report/check_report": "run/test_check.py",
    "report/costs": "report/test_plots.py",
    "report/line_names": "report/test_curves.py",
    "report/gate_report": "cli/test_gate.py",
    "report/markdown": "report/test_matrix.py",
    "report/listing": "run/test_inspect.py",
    "report/standings": "report/test_heatmap.py",
    "report/width": "cli/test_output.py",
    "report/self_test_report": "gate/test_self_test.py",
    "gate/environment_match": "cli/test_gate.py",
    "gate/run_files": "gate/test_baselines.py",
    "gate/samples": "gate/test_baselines.py",
    "gate/verdicts": "gate/test_paired.py",
    "gate/self_test/analysis": "gate/test_self_test.py",
    "gate/self_test/measure": "gate/test_self_test.py",
}


def names() -> list[str]:
    files = (path.relative_to(ROOT / "softbench").with_suffix("") for path in (ROOT / "softbench").rglob("*.py"))
    return sorted(name.as_posix() for name in files if not name.name.startswith("__") and name.parts[0] != "kernels")


def own_test(name: str) -> Path:
    module = Path(name)
    return ROOT / "tests" / module.parent / f"test_{module.name}.py"


def test_each_module_has_its_test_file_or_an_entry():
    assert [name for name in names() if not own_test(name).is_file() and name not in COVERED_BY] == []


def test_entries_are_needed_and_name_existing_tests():
    assert [name for name in COVERED_BY if name not in names() or own_test(name).is_file()] == []
    assert [test for test in COVERED_BY.values() if not (ROOT / "tests" / test).is_file()] == []


def test_names_of_tests_have_at_most_ten_words():
    functions = (
        (path.relative_to(ROOT).as_posix(), name)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"^\s*(?:async )?def test_(\w+)", path.read_text(), re.MULTILINE)
    )
    assert [(path, f"test_{name}") for path, name in functions if len(name.split("_")) > MAX_NAME_WORDS] == []
