"""Runs the steps of a composite action as GitHub's runner does, with a folder for each of GitHub's services."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOKEN = re.compile(r"'[^']*'|&&|\|\||==|!=|!|\d+|[a-z_]+\(\)|[a-z_][\w-]*(?:\.[\w-]+)*")


def load(file: Path) -> dict[str, Any]:
    """A YAML file."""
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(file)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Composite:
    """One run of a composite action; `origin` is the repository, and `ref` what GitHub checks out."""

    action: Path
    folder: Path
    origin: Path
    ref: str
    inputs: dict[str, str]
    env: dict[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    log: str = ""
    failed: int = 0

    def run(self) -> Composite:
        """Run all steps. `failed` is the exit code of the step that failed, or 0."""
        for name in ("workspace", "temp", "artifacts"):
            (self.folder / name).mkdir(parents=True)
        definition = load(self.action / "action.yml")
        self.inputs = {name: self.inputs.get(name, given.get("default", "")) for name, given in definition["inputs"].items()}
        for number, step in enumerate(definition["runs"]["steps"]):
            condition = step.get("if", "success()")
            if "always()" not in condition and "success()" not in condition:
                condition = f"success() && {condition}"
            if self.value(condition):
                self.step(step, step.get("id", str(number)))
        return self

    def step(self, step: dict[str, Any], name: str) -> None:
        if "run" in step:
            assert step["shell"] == "bash"
            self.script(step["run"], {key: self.text(value) for key, value in step.get("env", {}).items()}, name)
            return
        given = {key: self.text(value) for key, value in step.get("with", {}).items()}
        kind = step["uses"].partition("@")[0]
        if kind == "actions/checkout":
            self.checkout(self.folder / "workspace" / given["path"], int(given["fetch-depth"]))
        elif kind == "actions/upload-artifact":
            shutil.copytree(given["path"], self.folder / "artifacts" / given["name"])
        else:
            assert kind in ("actions/setup-python", "actions/cache/restore", "actions/cache/save"), kind

    def checkout(self, place: Path, depth: int) -> None:
        place.mkdir()
        git(place, "init", "--quiet")
        limit = ["--depth", str(depth)] if depth else []
        git(place, "fetch", "--quiet", *limit, self.origin.as_uri(), self.ref)
        git(place, "checkout", "--quiet", "--detach", "FETCH_HEAD")

    def script(self, text: str, env: dict[str, str], name: str) -> None:
        output, summary = self.folder / f"output-{name}", self.folder / "summary.md"
        output.touch()
        known = {"GITHUB_OUTPUT": output, "GITHUB_STEP_SUMMARY": summary, "GITHUB_ACTION_PATH": self.action}
        known |= {"GITHUB_WORKSPACE": self.folder / "workspace", "RUNNER_TEMP": self.folder / "temp"}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
            env={**self.env, **{key: str(value) for key, value in known.items()}, **env},
            cwd=self.folder / "workspace",
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False},
        )
        self.log += done.stdout
        self.failed = self.failed or done.returncode
        self.outputs[name] = dict(line.split("=", 1) for line in output.read_text().splitlines())

    def text(self, given: Any) -> str:
        """A value of the YAML file with its expressions replaced."""
        plain = {True: "true", False: "false"}.get(given, given) if isinstance(given, bool) else given
        return re.sub(r"\$\{\{(.*?)\}\}", lambda found: str(self.value(found[1])), str(plain))

    def value(self, expression: str) -> Any:
        """The value of an expression with the operators that action.yml uses."""
        names = {"&&": " and ", "||": " or ", "==": "==", "!=": "!=", "!": " not ", "always()": "True", "success()": str(not self.failed)}
        parts = [names.get(part) or (part if part[0] in "'0123456789" else repr(self.context(part))) for part in TOKEN.findall(expression)]
        return eval("".join(parts))  # the expressions are ours

    def context(self, name: str) -> str:
        match name.split("."):
            case ["inputs", key]:
                return self.inputs[key]
            case ["steps", step, "outputs", key]:
                return self.outputs.get(step, {}).get(key, "")
            case ["runner", "environment"]:
                return "self-hosted"
        raise KeyError(name)
