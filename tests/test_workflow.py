"""The workflow, the actions and the examples of docs/ci.md are valid and pinned, keep no credentials and drop no verdict."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import composite
import pytest

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "softbench.yml"
SITE = ROOT / ".github" / "workflows" / "docs.yml"
ACTIONS = [ROOT / "action.yml", ROOT / ".github" / "actions" / "comment" / "action.yml"]
FILES = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / "action.yml"]
EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL)
OURS = "OWNER/softbench"

pytest.importorskip("ruamel.yaml")


def steps(document):
    """The steps of a workflow or of a composite action."""
    jobs = document["jobs"].values() if "jobs" in document else [document["runs"]]
    return [step for job in jobs for step in job["steps"]]


def commands():
    found = [
        step["run"]
        for step in steps(composite.load(WORKFLOW))
        if "softbench " in step.get("run", "") or "gate_action" in step.get("run", "")
    ]
    lines = [line.partition("||")[0].replace("python3 tools/gate_action.py gate", "softbench gate") for line in found]
    return [shlex.split(line) for line in lines if line.startswith("softbench")]


@pytest.mark.parametrize(("schema", "files"), [("github-workflows", [WORKFLOW, SITE]), ("github-actions", ACTIONS)])
def test_workflow_and_actions_are_valid_by_githubs_schema(schema, files):
    assert_valid(schema, files)


def test_the_examples_of_the_docs_are_valid_workflows(tmp_path):
    assert len(EXAMPLES) == 2
    for number, text in enumerate(EXAMPLES):
        (tmp_path / f"{number}.yml").write_text(text)
    assert_valid("github-workflows", sorted(tmp_path.iterdir()))


def assert_valid(schema, files):
    pytest.importorskip("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, files)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_use_inputs_that_the_actions_have(tmp_path):
    folders = {OURS: ACTIONS[0], f"{OURS}/.github/actions/comment": ACTIONS[1]}
    seen = set()
    for number, text in enumerate(EXAMPLES):
        (tmp_path / f"{number}.yml").write_text(text)
        for step in steps(composite.load(tmp_path / f"{number}.yml")):
            name = step["uses"].partition("@")[0]
            assert set(step.get("with", {})) <= set(composite.load(folders[name])["inputs"])
            seen.add(name)
    assert seen == set(folders)


def test_every_command_and_option_of_the_workflow_exists(main):
    found = commands()
    assert [words[1] for words in found] == ["gate", "run", "baseline"]
    for words in found:
        name = words[1:3] if words[1] == "baseline" else words[1:2]
        code, out, _ = main(*name, "--help")
        assert code == 0
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"^  {option}\b", out, re.MULTILINE), (words, option)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_actions_are_pinned_and_no_shell_reads_an_expression(file):
    for step in steps(composite.load(file)):
        assert "${{" not in step.get("run", ""), step
        if "uses" in step:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, step
    pins = re.findall(r"uses: .*", file.read_text())
    assert [pin for pin in pins if not re.fullmatch(r"uses: \S+ # v\d+\.\d+\.\d+", pin)] == []


def test_an_action_has_one_pin_everywhere():
    pins = {pin for file in FILES for pin in re.findall(r"uses: (.*)", file.read_text())}
    names = ["/".join(pin.split("@")[0].split("/")[:2]) for pin in {re.sub(r"(actions/cache)/\w+", r"\1", pin) for pin in pins}]
    assert len(names) == len(set(names)), sorted(pins)


def test_a_branch_with_a_pull_request_runs_once():
    events = composite.load(WORKFLOW)["on"]
    assert events["push"] == {"branches": ["main"]}
    assert "pull_request" in events
    assert "pull_request_target" not in events


def test_only_a_newer_commit_of_a_branch_ends_runs():
    document = composite.load(WORKFLOW)
    assert document["concurrency"]["group"] == "softbench-${{ github.event.pull_request.number || github.run_id }}"
    assert [job for job in document["jobs"].values() if "concurrency" in job] == []


def test_the_workflow_may_only_read():
    document = composite.load(WORKFLOW)
    assert document["permissions"] == {"contents": "read"}
    assert [job for job in document["jobs"].values() if "permissions" in job] == []


def test_only_the_job_that_publishes_the_site_may_write_and_it_runs_no_code_of_ours():
    document = composite.load(SITE)
    assert document["permissions"] == {"contents": "read"}
    (publish,) = [job for job in document["jobs"].values() if "permissions" in job]
    assert publish["permissions"] == {"pages": "write", "id-token": "write"}
    assert publish["if"].startswith("github.event_name == 'push' && ")
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == ["actions/deploy-pages"]
    assert "mkdocs build --strict" in [step.get("run") for step in document["jobs"]["build"]["steps"]]


def test_pull_requests_from_forks_never_reach_the_runner():
    text = WORKFLOW.read_text()
    assert text.count("self-hosted") == 2
    assert "github.event.pull_request.head.repo.full_name == github.repository" in text


def test_the_comment_never_checks_out_nor_runs_the_artifact():
    document = composite.load(ACTIONS[1])
    used = [step.get("uses", "").partition("@")[0] for step in steps(document)]
    assert used == ["actions/download-artifact", ""]
    assert steps(document)[1]["run"] == 'python3 "$GITHUB_ACTION_PATH/../../../tools/gate_comment.py"'
    assert "workflow_run" in EXAMPLES[1] and "checkout" not in EXAMPLES[1]
