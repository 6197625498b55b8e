"""The notebook of docs/ in a kernel."""

from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-comparison.ipynb"
ON_THE_CPU = 'device="cpu"'


def run_the_notebook(folder, device="cpu"):
    """Run it in this folder, compare what it shows, and return the rows that it stored. It names its device once."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is missing: pip install -e '.[dev]'")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install -e '.[dev]'")
    import softbench

    document = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in document.cells if cell.cell_type == "code"]
    assert all(not cell.outputs for cell in code)
    (measuring,) = [cell for cell in code if ON_THE_CPU in cell.source]
    measuring.source = measuring.source.replace(ON_THE_CPU, f'device="{device}"')
    nbclient.NotebookClient(document, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    progress, table, frame, picture = [cell.outputs for cell in code][2:]
    assert "softbench: " in progress[0]["data"]["text/plain"] or progress[0]["data"]["text/plain"] == ""
    assert all(word in table[0]["data"]["text/html"] for word in ("<pre", "by_exp", "wrong", "torch"))
    assert "unsafe: wrong" in table[0]["data"]["text/html"]
    assert "<table" in frame[0]["data"]["text/html"]
    assert 'src="data:image/png;base64,' in picture[0]["data"]["text/html"]
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == ["my_kernels.py", "results"]
    return softbench.Result.load(folder / "results" / "latest.csv").rows
