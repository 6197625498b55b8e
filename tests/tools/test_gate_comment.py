"""tools/gate_comment.py against a pretended GitHub."""

import copy
import io
import json

import gate_comment
import pytest

FORK = {"id": 5}
RUN = {"event": "pull_request", "head_sha": "a" * 40, "head_branch": "topic", "head_repository": FORK, "html_url": "https://github.com/x/1"}
PULL = {"number": 7, "state": "open", "head": {"sha": "a" * 40, "ref": "topic", "repo": FORK}}
REPORT = {"pull_request": 7, "exit_code": 1, "text": "FAIL: 2 cells slower\n", "rest": ""}
API = "https://api.github.com"
MARKER = gate_comment.marker("softbench-gate")


class GitHub:
    """A pull request with its comments. `changes` are the requests that change something."""

    def __init__(self):
        self.pull, self.comments, self.changes = copy.deepcopy(PULL), [], []

    def opened(self, request, timeout):
        assert (request.host, request.headers["Authorization"]) == (API.rpartition("/")[2], "Bearer secret")
        return io.BytesIO(json.dumps(self.reply(request.method, request.selector, json.loads(request.data or b"null"))).encode())

    def reply(self, method, path, content):
        if method == "GET" and path == "/repos/o/r/pulls/7":
            return self.pull
        if method == "GET" and path.startswith("/repos/o/r/issues/7/comments?per_page=100&page="):
            first = 100 * (int(path.rpartition("=")[2]) - 1)
            return self.comments[first : first + 100]
        self.changes.append((method, path, content))
        return {}

    def say(self, body, author=gate_comment.AUTHOR):
        self.comments.append({"id": 100 + len(self.comments), "user": {"login": author}, "body": body})


@pytest.fixture
def github(monkeypatch):
    known = GitHub()
    monkeypatch.setattr("urllib.request.urlopen", known.opened)
    return known


@pytest.fixture
def comment(github, tmp_path, capsys):
    """Runs the script on a report and an event; returns what it printed."""

    def call(report=REPORT, run=RUN):
        file, event = tmp_path / "comment.json", tmp_path / "event.json"
        if report is not None:
            file.write_text(report if isinstance(report, str) else json.dumps(report))
        event.write_text(json.dumps({"workflow_run": run}))
        env = {"GITHUB_EVENT_PATH": str(event), "GITHUB_API_URL": API, "GITHUB_TOKEN": "secret", "GITHUB_REPOSITORY": "o/r"}
        assert gate_comment.main(env | {"COMMENT_FILE": str(file), "COMMENT_NAME": "softbench-gate"}) == 0
        return capsys.readouterr().out

    return call


def test_the_first_run_comments(github, comment):
    assert comment() == "commented on pull request 7\n"
    ((method, path, content),) = github.changes
    assert (method, path) == ("POST", "/repos/o/r/issues/7/comments")
    head = "**softbench gate: fail** for commit aaaaaaaaaaaa ([run](https://github.com/x/1))"
    assert content["body"] == f"{MARKER}\n{head}\n\n```text\nFAIL: 2 cells slower\n```\n"


def test_a_later_run_updates_its_own_comment(github, comment):
    github.say(f"{MARKER}\nnot ours", author="stranger")
    for _ in range(120):
        github.say("another comment", author="stranger")
    github.say(f"I quote {MARKER}")
    github.say(gate_comment.marker("softbench-gate-2"))
    github.say(f"{MARKER}\nours")
    assert comment() == "updated the comment on pull request 7\n"
    ((method, path, _),) = github.changes
    assert (method, path) == ("PATCH", f"/repos/o/r/issues/comments/{github.comments[-1]['id']}")


@pytest.mark.parametrize(
    "other",
    [
        {"head_sha": "b" * 40},
        {"head_branch": "main"},
        {"head_repository": {"id": 6}},
        {"head_repository": None},
        {"event": "push"},
        {"event": "pull_request_target"},
    ],
)
def test_a_run_of_another_commit_gets_no_comment(github, comment, other):
    assert "no comment" in comment(run={**RUN, **other})
    assert github.changes == []


def test_a_closed_pull_request_gets_no_comment(github, comment):
    github.pull["state"] = "closed"
    assert "no comment" in comment()
    assert github.changes == []


@pytest.mark.parametrize(
    "report",
    [
        None,
        "{",
        "[" * 100_000,
        "[]",
        "null",
        {"pull_request": 7},
        *({**REPORT, "pull_request": number} for number in ("7", 7.0, True, None, 0, -7, 2**31, "7/../8")),
        {**REPORT, "exit_code": "1"},
        {**REPORT, "text": ["x"]},
        {**REPORT, "rest": None},
        {**REPORT, "text": "x" * 1_000_000},
    ],
    ids=lambda report: str(report)[:30],
)
def test_invalid_reports_get_no_comment(github, comment, report):
    assert "no comment: " in comment(report=report)
    assert github.changes == []


def test_a_link_in_place_of_the_report_is_not_read(github, comment, tmp_path):
    (tmp_path / "other.json").write_text(json.dumps(REPORT))
    (tmp_path / "comment.json").symlink_to(tmp_path / "other.json")
    assert "no comment" in comment(report=None)


def test_the_text_cannot_leave_its_code_block(github, comment):
    comment(report={**REPORT, "text": "```\n@everyone ![x](http://evil)\n`````\n\x1b[31m\u202egnp\n"})
    body = github.changes[0][2]["body"]
    assert body.endswith("```text\n'''\n@everyone ![x](http://evil)\n'''''\n[31mgnp\n```\n")
    assert body.count("```") == 2


def test_a_long_text_is_cut_to_what_github_takes(github, comment):
    comment(report={**REPORT, "text": "`" * 20_000 + "x" * 200_000, "rest": "y" * 200_000})
    body = github.changes[0][2]["body"]
    assert "(the rest is in the artifact)" in body
    assert len(body) <= 65_536


def test_a_comment_shows_at_most_thirty_lines_and_folds_the_rest(github, comment):
    comment(report={**REPORT, "text": "FAIL: 40 cells slower\n\n" + "slower ours 1.2\n" * 40, "rest": "a table\n" * 50})
    body = github.changes[0][2]["body"]
    visible, _, folded = body.partition("<details><summary>the whole report</summary>")
    assert visible.splitlines()[4] == "FAIL: 40 cells slower"
    assert (visible.count("```"), folded.count("```"), folded.count("slower ours"), folded.count("a table")) == (2, 2, 20, 50)
    assert len(visible.splitlines()) < 30
