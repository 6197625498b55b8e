"""The data of a page: small, and the same in the browser."""

import base64
import gzip
import json
import math

from softbench.report.assets.embedded import asset, column, embedded

DATA = {"cells": {"of_copy": [0.123456789, None, math.inf, math.nan, 3.0], "backend": ["</script>", "inf", "é\n", "inf", ""]}, "n": 3}
READ = {"cells": {"of_copy": [0.123457, None, "inf", None, 3], "backend": ["</script>", "inf", "é\n", "inf", ""]}, "n": 3}


def test_columns_are_words_and_six_digits():
    data = {"cells": {name: column(values) for name, values in DATA["cells"].items()}}
    assert data["cells"]["of_copy"] == {"numbers": [0.123457, None, None, None, 3], "infinite": [2]}
    assert data["cells"]["backend"] == {"words": ["</script>", "inf", "é\n", ""], "of": [0, 1, 2, 1, 3]}
    text = embedded(data)
    assert not set("<>&\"'") & set(text)
    assert json.loads(gzip.decompress(base64.b64decode(text))) == data
    assert text == embedded(data)


def test_browser_reads_what_was_embedded(browser, tmp_path):
    data = {"cells": {name: column(values) for name, values in DATA["cells"].items()}, "n": 3}
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><script>{asset('unpack.js')}</script><script id='data' type='x'>{embedded(data)}</script>")
    browser.open(file)
    text = "JSON.stringify(data, (_, v) => v === Infinity ? 'inf' : v)"
    script = f"unpack(document.getElementById('data').textContent).then((data) => arguments[0]({text}))"
    assert json.loads(browser.driver.execute_async_script(script)) == READ
