// The table of cells: sort by a heading, filter, and open a row in the side panel.
page.cells = (() => {
  const number = (name, text) => ({
    number: true,
    key: (cell) => page.value(cell, name),
    text: (cell) => {
      const found = page.value(cell, name);
      return found === null ? "" : text(found);
    },
  });
  const word = (name) => ({ text: (cell) => page.value(cell, name) ?? "" });
  const meanings = (cell) =>
    (page.value(cell, "labels") ?? "").split(" ").filter(Boolean).map((label) => `${label}: ${page.data.terms[label] ?? ""}`).join("\n");
  /** The columns, those that a small screen shows first. */
  const columns = () => {
    const file = page.data.files.length > 1 ? [{ name: "file", text: (cell) => page.data.files[page.value(cell, "file")].name }] : [];
    const every = [
      { name: "backend", term: "backend", widest: innerWidth < 600 ? 14 : 28, ...word("backend") },
      {
        name: "shape",
        term: "case",
        text: (cell) => page.size(page.data.cells.case[cell]),
        key: (cell) => page.ofCase(cell, "M") * 2 ** 24 + page.ofCase(cell, "N"),
      },
      { name: "GB/s", term: "bandwidth", number: true, key: (cell) => page.value(cell, "gbps"), text: page.bandwidth },
      { name: "of copy", term: "fraction of copy", ...number("of_copy", page.percent) },
      { name: "pass", term: "pass", text: (cell) => page.ofCase(cell, "pass") },
      { name: "dtype", text: (cell) => page.ofCase(cell, "dtype") },
      { name: "status", term: "status", ...word("status") },
      { name: "class", term: "class", ...word("class") },
      { name: "median", term: "median", ...number("median_us", micros) },
      { name: "95 % interval", term: "interval", number: true, key: (cell) => page.value(cell, "low_us"), text: page.interval },
      { name: "of peak", ...number("of_peak", page.percent) },
      { name: "speed-up", term: "speed-up", ...number("speedup", (times) => `${page.ratio(times)}x`) },
      { name: "device time", term: "device time", ...number("device_us", micros) },
      { name: "error / bound", term: "bound", ...number("error_over_bound", digits) },
      { name: "labels", term: "label", ...word("labels"), title: meanings },
    ];
    return [...every.slice(0, 3), ...file, ...every.slice(3)].filter(
      (column) => column === every[0] || column.name === "GB/s" || page.data.cells.case.some((_, cell) => column.text(cell) !== ""),
    );
  };
  const kind = (cell) => {
    const status = page.value(cell, "status");
    if (["wrong", "failed", "timeout", "oom"].includes(status)) return "bad";
    if (status !== "ok") return "plain";
    return page.data.cells.doubtful?.[cell] || ["low-precision", "finite-only", "tolerance"].includes(page.value(cell, "class")) ? "warn" : "";
  };
  let list = null;
  const form = () => page.find("#filters");

  page.first.cells = () => {
    const root = page.find("#cell-list"), cells = page.data.cells.case;
    const of = {
      file: (cell) => page.data.files[page.value(cell, "file")].name,
      backend: (cell) => page.value(cell, "backend"),
      pass: (cell) => page.ofCase(cell, "pass"),
      dtype: (cell) => page.ofCase(cell, "dtype"),
      status: (cell) => page.value(cell, "status"),
      class: (cell) => page.value(cell, "class") ?? "",
    };
    const places = [];
    for (const [name, value] of Object.entries(of)) {
      const choices = [...new Set(cells.map((_, cell) => value(cell)))].filter(Boolean);
      if (choices.length < 2) continue;
      if (name !== "file") choices.sort();
      places.push(
        page.make("label", [
          `${name} `,
          page.make("select", [page.make("option", "all", { value: "" }), ...choices.map((choice) => page.make("option", choice))], {
            "data-column": name,
          }),
        ]),
      );
    }
    page.find("#filter-places").replaceChildren(...places);
    page.find(".more", form()).open = innerWidth > 640;
    list = page.list(root, { label: "Cells", columns: columns(), count: cells.length, kind, open: page.panel.open });
    const texts = new Map();
    const text = (cell) => {
      if (!texts.has(cell))
        texts.set(
          cell,
          [
            ...["backend", "labels", "reason", "status", "class", "device", "unit"].map((name) => page.value(cell, name) ?? ""),
            page.caseText(cells[cell]),
          ]
            .join(" ")
            .toLowerCase(),
        );
      return texts.get(cell);
    };
    const filter = () => {
      const words = page.find("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
      const wanted = page.all("select[data-column]", form()).filter((select) => select.value);
      const only = page.find("#doubtful").checked;
      const found = list.every.filter((cell) => wanted.every((select) => of[select.dataset.column](cell) === select.value)
        && (!only || page.data.cells.doubtful?.[cell]) && (!words.length || words.every((one) => text(cell).includes(one))));
      list.show(found);
      page.find("#shown").textContent =
        found.length === cells.length ? `${cells.length} cells` : `${found.length} of ${cells.length} cells`;
    };
    page.find("#doubtful").parentElement.hidden = !page.data.cells.doubtful?.some(Boolean);
    form().hidden = false;
    form().addEventListener("input", filter);
    form().addEventListener("submit", (event) => event.preventDefault());
    form().addEventListener("reset", () => setTimeout(filter));
    filter();
  };
  return { list: () => list };
})();
