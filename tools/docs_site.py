"""Hooks of mkdocs.yml: pages outside of docs/ such as README, files of the repository that pages link, and what terms mean."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File
from mkdocs.structure.nav import Link

from softbench.report import glossary

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/first-comparison.ipynb": "first-comparison.md",
}
"""Files that are pages of the site, and are not Markdown files of docs/."""
SOURCES = {page: file for file, page in PAGES.items()}
NOT_PROSE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
ABBREVIATION = re.compile(r'<abbr title="[^"]*">(.*?)</abbr>')
LONG = 8
"""Letters from which a term of one word has a tooltip. Shorter ones, such as `case`, are also words of everyday English."""
EVERYDAY = ("operation", "parameter", "direction", "override")
"""Longer terms that are such words too."""
SEARCHED = {"glossary.md": 5, "measuring.md": 5, "troubleshooting.md": 5, "commands.md": 2, "api": 0.2, "kernels": 0.2}
"""Pages and folders that come earlier or later in a search: first what explains a word, last designs and signatures."""
RESULTS = ("results/h200", "results/h100")
BOARD = "board/demo/"
"""Where the site has the board of these folders, below the page that explains boards."""


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of docs/, and each file outside of it that a page links."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_text(source)))
    for page in list(files.documentation_pages()):
        for target in LINK.findall(NOT_PROSE.sub("", page.content_string)):
            found = _in_repository(page.src_uri, target)
            place = _place(found)
            if (ROOT / found).is_file() and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / found)))
    return files


def on_nav(nav: Any, **_: Any) -> Any:
    """The board and the repository (`$REPO_URL`) beside the sections. mkdocs' own `repo_url` would make each page ask GitHub for stars."""
    nav.items.append(Link("Board", BOARD))
    if repository := os.environ.get("REPO_URL"):
        nav.items.append(Link("Source", repository))
    return nav


def on_post_build(config: Any) -> None:
    """Make the board of the committed results. A board that fails ends the build."""
    out = str(Path(config.site_dir).resolve() / BOARD)
    subprocess.run([sys.executable, "-m", "softbench", "board", *RESULTS, "-o", out], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that hold in the repository, as they hold in the site; and the glossary's terms as abbreviations."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # it has no neighbours
    if here == "board.md":
        markdown = markdown.replace("\n\n", "\n\n<a href='demo/'>The board of this repository's results</a>\n\n", 1)
    page.meta["search"] = {"boost": SEARCHED.get(here.partition("/")[0], 1)}

    def moved(match: re.Match[str]) -> str:
        return os.path.relpath(_place(_in_repository(here, match[1])), PurePosixPath(here).parent)

    parts = NOT_PROSE.split(markdown)
    text = "".join(part if i % 2 else LINK.sub(moved, part) for i, part in enumerate(parts))
    return text if here == "glossary.md" else f"{text}\n\n{_abbreviations()}\n"


def on_page_content(html: str, **_: Any) -> str:
    """Each term has its meaning where it stands first, and none in a heading."""
    seen: set[str] = set()

    def first(match: re.Match[str]) -> str:
        term = match[1].lower().removesuffix("s")
        if term in seen:
            return match[1]
        seen.add(term)
        return match[0]

    headings = re.split(r"(<h\d.*?</h\d>)", html, flags=re.DOTALL)
    return "".join(ABBREVIATION.sub(r"\1" if i % 2 else first, part) for i, part in enumerate(headings))


def _text(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    return _of_notebook(json.loads(text)) if source.endswith(".ipynb") else text


def _of_notebook(notebook: dict[str, Any]) -> str:
    cells = (("".join(cell["source"]), cell["cell_type"]) for cell in notebook["cells"])
    shown = [text if kind == "markdown" else f"```python\n{text}\n```" for text, kind in cells]
    return "\n\n".join([*shown, '<a href="../first-comparison.ipynb" download>Download the notebook</a>'])


def _in_repository(page: str, target: str) -> str:
    """The path in the repository of what a page of the site links."""
    source = SOURCES.get(page, f"docs/{page}")
    return os.path.normpath(PurePosixPath(source).parent / target)


def _place(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def _abbreviations() -> str:
    lines = []
    for term, meaning in glossary.meanings().items():
        if len(term) >= LONG and term not in EVERYDAY:
            forms = {term, f"{term}s", term[0].upper() + term[1:], f"{term[0].upper()}{term[1:]}s"}
            lines += [f"*[{form}]: {meaning}" for form in sorted(forms)]
    return "\n".join(lines)
