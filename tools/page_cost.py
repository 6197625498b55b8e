"""What pages of results cost: python tools/page_cost.py FILE.csv ...

Each file has a line: its cells, the size of its page, CPU seconds to write it, and seconds until Chromium has loaded it (median of five).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from browser import Browser

from softbench.report.page import document
from softbench.report.page.source import read_source
from softbench.results.csv import read_csv

LOADED = "const { loadEventEnd, startTime } = performance.getEntriesByType('navigation')[0]; return (loadEventEnd - startTime) / 1e3"
OPENED = 5


def main() -> None:
    browser = Browser()
    print("cells   MB  CPU s to write  s to open  file")
    with TemporaryDirectory() as folder:
        for file in map(Path, sys.argv[1:]):
            rows, _ = read_csv(file)
            begin = time.process_time()
            page = document.write([read_source(file, rows)], Path(folder) / f"{file.stem}.html")
            written = time.process_time() - begin
            opened = []
            for _ in range(OPENED):
                browser.open(page)
                opened.append(browser.run(LOADED))
            print(f"{len(rows):5} {page.stat().st_size / 1e6:4.1f} {written:15.1f} {median(opened):10.2f}  {file.name}")
    browser.close()


if __name__ == "__main__":
    main()
