"""Comments the gate's report on its pull request: the script of .github/actions/comment.

The code of the pull request may have written the artifact, and this script has a token that may write. So it reads the artifact as data:
a number that must be that of the run's own pull request, an exit code, and a text. The text becomes a code block, in which GitHub shows
no link, picture or mention.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUTHOR = "github-actions[bot]"
VERDICTS = {0: "pass", 1: "fail", 2: "error", 3: "inconclusive"}
MAX_BYTES = 1_000_000
MAX_TEXT = 30_000
"""Characters of each part of the report. GitHub takes 65,536 characters a comment."""
VISIBLE = 22
"""Lines of the report that the comment does not fold: with the others it shows at most 30."""
COMMENTS = 100
"""Comments a page, the most that GitHub gives."""

Api = Callable[..., Any]
"""`api(method, path, body)` returns the reply of GitHub."""


class NoCommentError(Exception):
    """There is nothing to comment, or no pull request for it."""


@dataclass(frozen=True, slots=True)
class Report:
    """The contents of comment.json."""

    pull_request: int
    exit_code: int
    text: str
    """The verdict, what became slower, and what to do."""
    rest: str = ""
    """The whole report, which the comment folds."""


def read(file: Path) -> Report:
    """Read comment.json.

    Raises:
        NoCommentError: it is missing, too large or invalid.
    """
    if not file.is_file() or file.is_symlink():
        raise NoCommentError("the run has no report: it ended before the gate, or the artifact has another name")
    if file.stat().st_size > MAX_BYTES:
        raise NoCommentError("comment.json is larger than 1 MB")
    try:
        found = json.loads(file.read_bytes())
        number, code, text, rest = (found[name] for name in ("pull_request", "exit_code", "text", "rest"))
    except (ValueError, RecursionError, KeyError, TypeError):
        raise NoCommentError("comment.json is damaged") from None
    if type(number) is not int or not 0 < number < 2**31 or type(code) is not int or not all(isinstance(one, str) for one in (text, rest)):
        raise NoCommentError("comment.json has no number of a pull request, no exit code or no text")
    return Report(number, code, text, rest)


def check(pull: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Check that the run is that of the pull request's newest commit.

    Raises:
        NoCommentError: the run belongs to another pull request, or a newer commit has a run of its own.
    """
    if run["event"] != "pull_request" or pull["state"] != "open":
        raise NoCommentError("only runs on pull_request of an open pull request have a comment")
    head, repositories = pull["head"], [(found or {}).get("id") for found in (pull["head"]["repo"], run["head_repository"])]
    if (head["sha"], head["ref"]) != (run["head_sha"], run["head_branch"]) or repositories[0] != repositories[1]:
        raise NoCommentError(f"the run is not that of the newest commit of pull request {pull['number']}")


def marker(name: str) -> str:
    """The first line of a comment, by which the next run finds it."""
    return f"<!-- softbench gate: {name} -->"


def body(report: Report, name: str, run: Mapping[str, Any]) -> str:
    """The comment: verdict, commit, a link to the run, and the report as code blocks, of which the second one is folded."""
    lines, rest = _lines(report.text), _lines(report.rest)
    folded = [*lines[VISIBLE:], *rest]
    verdict = VERDICTS.get(report.exit_code, "error")
    head = f"**softbench gate: {verdict}** for commit {run['head_sha'][:12]} ([run]({run['html_url']}))"
    details = f"<details><summary>the whole report</summary>\n\n{_block(folded)}\n</details>\n" if folded else ""
    return f"{marker(name)}\n{head}\n\n{_block(lines[:VISIBLE])}{details}"


def _lines(text: str) -> list[str]:
    """The lines of a part of the report, without what would end a code block."""
    shown = "".join(sign for sign in text if sign == "\n" or sign.isprintable())
    shown = re.sub("`{3,}", lambda ticks: "'" * len(ticks[0]), shown).strip("\n")
    if len(shown) > MAX_TEXT:
        shown = shown[:MAX_TEXT] + "\n(the rest is in the artifact)"
    return shown.split("\n") if shown else []


def _block(lines: Sequence[str]) -> str:
    return "```text\n" + "\n".join(lines) + "\n```\n"


def own_comment(api: Api, path: str, name: str) -> int | None:
    """The identifier of the comment that an earlier run wrote."""
    page = 1
    while found := api("GET", f"{path}?per_page={COMMENTS}&page={page}", None):
        for comment in found:
            if comment["user"]["login"] == AUTHOR and comment["body"].startswith(marker(name)):
                return int(comment["id"])
        page += 1
    return None


def publish(api: Api, repository: str, run: Mapping[str, Any], file: Path, name: str) -> str:
    """Write the comment, or update that of an earlier run; returns what was done.

    Raises:
        NoCommentError: there is no valid report, or the pull request has a newer commit.
    """
    report = read(file)
    check(api("GET", f"/repos/{repository}/pulls/{report.pull_request}", None), run)
    issue = f"/repos/{repository}/issues/{report.pull_request}/comments"
    text = {"body": body(report, name, run)}
    if (earlier := own_comment(api, issue, name)) is not None:
        api("PATCH", f"/repos/{repository}/issues/comments/{earlier}", text)
        return f"updated the comment on pull request {report.pull_request}"
    api("POST", issue, text)
    return f"commented on pull request {report.pull_request}"


def github(url: str, token: str) -> Api:
    """GitHub's API at this address."""

    def call(method: str, path: str, content: Any) -> Any:
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json", "Content-Type": "application/json"}
        data = None if content is None else json.dumps(content).encode()
        with urllib.request.urlopen(urllib.request.Request(url + path, data, headers, method=method), timeout=30) as reply:
            return json.load(reply)

    return call


def main(env: Mapping[str, str]) -> int:
    run = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))["workflow_run"]
    api = github(env["GITHUB_API_URL"], env["GITHUB_TOKEN"])
    try:
        print(publish(api, env["GITHUB_REPOSITORY"], run, Path(env["COMMENT_FILE"]), env["COMMENT_NAME"]))
    except NoCommentError as error:
        print(f"::notice title=softbench gate::no comment: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
