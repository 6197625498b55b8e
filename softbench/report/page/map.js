// The winner map: the fastest backend of each case of a pass and dtype, with its lead, or its speed-up over a chosen backend.

/** The maps of the page: a pass and dtype each, with the numbers of its cases that have a fastest backend. N-D cases have their own. */
page.groups = () => {
  const { cases } = page.data;
  const found = new Map();
  cases.best.forEach((best, i) => {
    if (best === null) return;
    const key = `${cases.pass[i]} ${cases.dtype[i]}${cases.shape[i] ? ", N-D" : ""}`;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(i);
  });
  return found;
};

page.names = (number) => page.data.cases.tied[number].map((cell) => page.value(cell, "backend")).sort();

page.map = (() => {
  const LIMITS = [0.8, 0.97, 1.03, 1.25, 2];
  /** The cell of each backend and case of the file that the map shows. */
  let index = null;
  const cellOf = (backend, number) => {
    if (!index) {
      index = new Map();
      page.data.cells.case.forEach((one, cell) => {
        if (page.value(cell, "file") === page.lastFile()) index.set(`${one} ${page.value(cell, "backend")}`, cell);
      });
    }
    return index.get(`${number} ${backend}`);
  };
  /** True if the fastest of a case is ahead of this backend beyond noise. */
  const beats = (number, backend) => {
    const { best, tied, unknown } = page.data.cases;
    if (unknown[number] || page.value(best[number], "backend") === backend) return false;
    const other = cellOf(backend, number);
    return (
      other !== undefined &&
      page.value(other, "median_us") !== null &&
      page.value(other, "status") === "ok" &&
      !tied[number].includes(other)
    );
  };
  const crossover = (a, b) =>
    a !== undefined &&
    b !== undefined &&
    beats(a, page.value(page.data.cases.best[b], "backend")) &&
    beats(b, page.value(page.data.cases.best[a], "backend"));

  const fill = (place, number, over) => {
    const { best, lead, unknown } = page.data.cases;
    const cell = best[number], names = page.names(number);
    const doubtful = page.data.cells.doubtful?.[cell] ? " !" : "";
    place.dataset.c = cell;
    place.setAttribute(
      "aria-label",
      page.describe(cell) +
        (names.length > 1 ? `\nties with ${names.filter((name) => name !== page.value(cell, "backend")).join(", ")}` : ""),
    );
    if (over) {
      const other = cellOf(over, number);
      const us = other === undefined ? null : page.value(other, "median_us");
      // Over the reference backend it is the number of the CSV, so that the map and the tables agree.
      const times = page.value(cell, "relative_to") === over ? page.value(cell, "speedup") : us && us / page.value(cell, "median_us");
      place.classList.add(times ? `r${LIMITS.filter((limit) => times >= limit).length}` : "none");
      place.append(page.make("b", times ? `${page.ratio(times)}x` : "no result"), page.make("span", page.value(cell, "backend")));
      return;
    }
    // Of many that tie, the named one is the fastest; its stripes are of its colour and of the next one's.
    const [first, second] = page.data.cases.tied[number].map((one) => page.value(one, "backend"));
    page.tint(place, first);
    if (second) {
      page.tint(place, second, "--other");
      place.classList.add("tie");
    }
    const many = names.length > 2;
    const ahead = many ? `tie of ${names.length}` : second ? "tie" : lead[number] !== null ? `+${page.percent(lead[number])}` : "";
    place.append(
      page.make("b", many ? first : names.join(" = ")),
      page.make("span", (unknown[number] && ahead ? `(${ahead})` : ahead) + doubtful),
    );
  };

  /** The colours of the winners with their number of cases, and what the other signs mean. */
  const key = (numbers, over, edges) => {
    const list = page.make("ul", "", { class: "map-key" });
    const entry = (box, ...texts) => { const item = page.make("li", [box, ...texts]); list.append(item); };
    const swatch = (kind = "") => page.make("i", "", { class: kind });
    if (over) {
      ["under 0.8x", "0.8x to 0.97x", "0.97x to 1.03x", "1.03x to 1.25x", "1.25x to 2x", "2x and more"].forEach((text, i) =>
        entry(swatch(`r${i}`), text),
      );
      return list;
    }
    const alone = new Map();
    let ties = 0, tie = null;
    for (const number of numbers) {
      const names = page.names(number);
      if (names.length === 1) alone.set(names[0], (alone.get(names[0]) ?? 0) + 1); else { ties += 1; tie ??= names; }
    }
    [...alone].sort((a, b) => b[1] - a[1]).forEach(([name, count]) => entry(page.tint(swatch(), name), `${name}: fastest in ${count}`));
    if (ties)
      entry(page.tint(page.tint(swatch("tie"), tie[0]), tie[1], "--other"), page.term("tie"), ` in ${ties}: striped in the colours of two`);
    if (numbers.some((number) => page.data.cases.tied[number].length === 1 && page.data.cases.lead[number] !== null))
      entry(page.make("b", "+12%"), page.term("lead", "lead"), " over the next");
    if (numbers.some((number) => page.data.cells.doubtful?.[page.data.cases.best[number]]))
      entry(page.make("b", "!"), page.term("doubtful"));
    if (edges) entry(swatch("edge"), page.term("crossover"));
    return list;
  };

  /** A map of these cases in `root`. `over`: the backend that speed-ups are over; empty for the fastest. */
  return (root, title, numbers, over = "") => {
    const { M, N, shape } = page.data.cases;
    const shaped = shape[numbers[0]] !== "";
    const [ms, ns] = [M, N].map((axis) => [...new Set(numbers.map((number) => axis[number]))].sort((a, b) => a - b));
    const table = page.make("table", "", { class: "map" });
    const places = [];
    let edges = false;
    const make = (number, tag = "td") => {
      const place = page.make(tag, "", { tabindex: "-1", role: tag === "td" ? "gridcell" : "button" });
      fill(place, number, over);
      places.push(place);
      return place;
    };
    table.setAttribute("aria-label", title);
    if (shaped || Math.min(ms.length, ns.length) === 1 || numbers.length < 0.6 * ms.length * ns.length) {
      // A line, or few of the grid's fields are known, so each field says its shape.
      const [head, other, heads] = ms.length <= ns.length ? [M, N, ms] : [N, M, ns], letters = head === M ? ["M", "N"] : ["N", "M"];
      const flows = shaped || numbers.length < 1.5 * heads.length;
      const rows = flows
        ? [["", [...numbers].sort((a, b) => N[a] - N[b] || M[a] - M[b])]]
        : heads.map((one) => [
            `${letters[0]} ${one}`,
            numbers.filter((number) => head[number] === one).sort((a, b) => other[a] - other[b]),
          ]);
      table.classList.add("loose");
      for (const [name, some] of rows) {
        const line = page.make("tr");
        if (name) line.append(page.make("th", name, { scope: "row" }));
        const fields = page.make("td", "", { class: "fields" });
        for (const number of some) {
          const place = make(number, "div");
          place.prepend(page.make("small", flows ? page.size(number) : `${letters[1]} ${other[number]}`));
          fields.append(place);
        }
        line.append(fields);
        table.append(line);
      }
    } else {
      table.setAttribute("role", "grid");
      const down = ns.length > ms.length;
      const [downs, acrosses] = down ? [ns, ms] : [ms, ns];
      const place = new Map(numbers.map((number) => [down ? `${N[number]} ${M[number]}` : `${M[number]} ${N[number]}`, number]));
      table.append(
        page.make("thead", [
          page.make("tr", [
            page.make("td", down ? "N \\ M" : "M \\ N"),
            ...acrosses.map((across) => page.make("th", String(across), { scope: "col" })),
          ]),
        ]),
      );
      const body = page.make("tbody");
      downs.forEach((d, i) => {
        const line = page.make("tr", [page.make("th", String(d), { scope: "row" })]);
        acrosses.forEach((across, j) => {
          const number = place.get(`${d} ${across}`);
          if (number === undefined) { line.append(page.make("td", "", { class: "none" })); return; }
          const made = make(number);
          if (!over) {
            if (crossover(number, place.get(`${d} ${acrosses[j - 1]}`))) { made.classList.add("left"); edges = true; }
            if (crossover(number, place.get(`${downs[i - 1]} ${across}`))) { made.classList.add("top"); edges = true; }
          }
          line.append(made);
        });
        body.append(line);
      });
      table.append(body);
    }
    const wide = page.make("div", [table], { class: "wide" });
    root.append(page.make("h3", title), key(numbers, over, edges), wide);

    // One stop of the Tab key, arrow keys between the fields.
    places[0]?.setAttribute("tabindex", "0");
    const of = (event) => event.target.closest?.("[data-c]");
    table.addEventListener("click", (event) => { if (of(event)) page.panel.open(Number(of(event).dataset.c)); });
    table.addEventListener("keydown", (event) => {
      const here = places.indexOf(of(event));
      if (here < 0) return;
      if (event.key === "Enter") page.panel.open(Number(places[here].dataset.c));
      const across = shaped || table.classList.contains("loose") ? 1 : table.rows[1].cells.length - 1;
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[event.key];
      const next = places[here + (step ?? 0)];
      if (!step) return;
      event.preventDefault();
      if (!next) return;
      places[here].setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
    const over_ = (event) => { if (of(event)) page.tip.show(of(event).getAttribute("aria-label"), of(event).getBoundingClientRect()); };
    table.addEventListener("mouseover", over_);
    table.addEventListener("focusin", over_);
    table.addEventListener("mouseout", page.tip.hide);
    table.addEventListener("focusout", page.tip.hide);
  };
})();
