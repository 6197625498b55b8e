// The figures of the overview and of the tabs of curves and maps, made from the page's data when they are first seen.
(() => {
  const BARS = 10, FEW = 8, BRIGHT = 5;
  const FILE_DASH = [[6, 4], []];  // of two files, the older is dashed

  /** What can be drawn: a number of each cell. */
  const quantities = () => {
    const has = (name) => page.data.cells[name]?.some((value) => value !== null);
    const value = (name) => (cell) => page.value(cell, name);
    const found = [];
    const peak = Math.max(0, ...(page.data.cells.gbps ?? []).filter(Boolean));
    if (has("gbps"))
      found.push({
        name: "bandwidth",
        label: peak >= 1000 ? "bandwidth, TB/s" : "bandwidth, GB/s",
        of: (cell) => page.value(cell, "gbps") && page.value(cell, "gbps") / (peak >= 1000 ? 1000 : 1),
        zero: true,
        most: true,
      });
    if (has("of_copy"))
      found.push({
        name: "fraction of copy",
        label: "fraction of copy",
        of: (cell) => (page.isYardstick(cell) || !page.value(cell, "gbps") ? null : page.value(cell, "of_copy")),
        zero: true,
        one: true,
        most: true,
      });
    if (has("of_copy")) found.push({ ...found.at(-1), name: "fraction of copy, near the fastest", near: true });
    if (has("speedup"))
      found.push({
        name: `speed-up over ${page.data.cells.relative_to?.find(Boolean) ?? "the reference"}`,
        label: "speed-up",
        of: (cell) => (page.isYardstick(cell) ? null : page.value(cell, "speedup")),
        log: true,
        one: true,
        text: (times) => `${page.ratio(times)}x`,
        most: true,
      });
    found.push({ name: "median", label: "median", of: value("median_us"), log: true, text: micros });
    if (has("device_us")) found.push({ name: "device time", label: "device time", of: value("device_us"), log: true, text: micros });
    return found;
  };

  /** The cells of each case. */
  let index = null;
  const cellsOf = (number) => {
    if (!index) {
      index = page.data.cases.best.map(() => []);
      page.data.cells.case.forEach((one, cell) => index[one].push(cell));
    }
    return index[number];
  };
  const lineTitle = (line) => {
    const number = line.cases[0], { pass, dtype } = page.data.cases;
    return `${pass[number]} ${dtype[number]}, ${line.axis ? line.fixed : line.cases.length === 1 ? page.size(number) : `${line.cases.length} shapes`}`;
  };

  /** The backends that are not faint: all if they are few, else the yardstick, the reference, and those that are
   * the fastest most often, or closest to it. */
  const leaders = (line, parts) => {
    const names = [...new Set(parts.map((one) => one.backend))];
    if (names.length <= FEW) return new Set(names);
    const points = new Map(names.map((name) => [name, 0]));
    for (const number of line.cases) {
      const best = page.data.cases.best[number];
      if (best === null) continue;
      for (const name of page.names(number)) points.set(name, (points.get(name) ?? 0) + 10);
      for (const cell of cellsOf(number)) {
        const us = page.value(cell, "median_us"), name = page.value(cell, "backend");
        if (us && page.value(cell, "file") === page.lastFile())
          points.set(name, (points.get(name) ?? 0) + page.value(best, "median_us") / us);
      }
    }
    const ranked = names.sort((a, b) => points.get(b) - points.get(a)).slice(0, BRIGHT);
    return new Set([
      ...ranked,
      page.data.cells.relative_to?.find(Boolean),
      ...parts.filter((one) => one.yardstick).map((one) => one.backend),
    ]);
  };

  /** The lines of a figure: one for each file, backend and kind of length. */
  const series = (line, quantity) => {
    const two = page.data.files.length > 1, axis = page.data.cases[line.axis];
    const kinds = new Map(line.kinds.flatMap(([kind, places]) => places.map((place) => [place, kind])));
    const found = new Map();
    for (const number of line.cases) {
      for (const cell of cellsOf(number)) {
        const y = quantity.of(cell);
        if (y === null || y <= 0 || page.value(cell, "status") !== "ok") continue;
        const backend = page.value(cell, "backend"), file = page.value(cell, "file"), kind = kinds.get(axis[number]);
        const key = [file, kind, backend].join("\n");
        const yardstick = page.isYardstick(cell);
        if (!found.has(key))
          found.set(key, {
            backend,
            yardstick,
            file,
            kind,
            label: backend,
            width: two ? (file ? 2 : 1.2) : 1.6,
            dash: two ? FILE_DASH[file] : page.data.kinds[kind]?.length ? page.data.kinds[kind] : page.DASHES[page.dash(backend)],
            points: [],
          });
        found.get(key).points.push({ x: axis[number], y, cell, hollow: Boolean(page.data.cells.doubtful?.[cell]) });
      }
    }
    // A line of another kind than the first ends where the next of its places is far: what lies between is another kind's.
    const parts = [...found.values()].flatMap((one) => {
      one.points.sort((a, b) => a.x - b.x);
      if (one.kind === line.kinds[0]?.[0]) return [one];
      const split = [[]];
      one.points.forEach((point) => {
        if (split.at(-1).length && point.x > page.data.leap * split.at(-1).at(-1).x) split.push([]);
        split.at(-1).push(point);
      });
      return split.map((points) => ({ ...one, points }));
    });
    const bright = leaders(line, parts);
    for (const one of parts) one.faint = !bright.has(one.backend);
    // The faint below, then the yardstick, and the file before below the file after.
    return parts.sort((a, b) => b.faint - a.faint || b.yardstick - a.yardstick || a.file - b.file);
  };
  const strip = (line) => line.cases.filter((number) => page.data.cases.best[number] !== null)
    .map((number) => ({ x: page.data.cases[line.axis][number], names: page.names(number) })).sort((a, b) => a.x - b.x);

  const keyOf = (lines) => {
    if (page.data.files.length > 1) return page.data.files.map((file, i) => [FILE_DASH[i], file.name]);
    const kinds = [...new Set(lines.flatMap((line) => line.kinds.map(([kind]) => kind)))].filter((kind) => page.data.kinds[kind]);
    return kinds.length > 1 ? kinds.map((kind) => [page.data.kinds[kind], `N: ${kind}`]) : [];
  };
  const legend = (root, lines) => {
    const seen = new Map();
    for (const line of lines) {
      for (const number of line.cases) {
        for (const cell of cellsOf(number)) {
          const backend = page.value(cell, "backend");
          const label = page.isYardstick(cell) ? `${backend} (yardstick)` : backend;
          if (!seen.has(backend) && page.value(cell, "median_us") !== null)
            seen.set(backend, { backend, label, dash: page.data.files.length > 1 ? [] : page.DASHES[page.dash(backend)] });
        }
      }
    }
    page.legend(root, [...seen.values()], keyOf(lines));
  };

  /** Rows of bars for shapes that form no line. */
  const bars = (root, line, quantity) => {
    const opened = new Set();
    const draw = () => {
      box.replaceChildren();
      for (const number of line.cases) {
        const some = cellsOf(number).filter((cell) => quantity.of(cell) !== null && !page.hidden.has(page.value(cell, "backend")));
        some.sort((a, b) => (quantity.most ? -1 : 1) * (quantity.of(a) - quantity.of(b)));
        if (!some.length) continue;
        const most = Math.max(...some.map(quantity.of));
        const part = page.make("div", [page.make("p", page.size(number), { class: "size" })]);
        box.append(part);
        const shown = opened.has(number) ? some.length : BARS;
        for (const cell of some.slice(0, shown)) {
          const bar = page.tint(page.make("i"), page.value(cell, "backend"));
          bar.style.width = `${100 * quantity.of(cell) / most}%`;
          const file = page.data.files.length > 1 ? `, ${page.data.files[page.value(cell, "file")].name}` : "";
          const button = page.make(
            "button",
            [
              page.make("span", page.value(cell, "backend") + file),
              page.make("span", [bar], { class: "track" }),
              page.make("span", (quantity.text ?? digits)(quantity.of(cell)), { class: "n" }),
            ],
            { type: "button", class: "bar", "data-c": cell },
          );
          button.addEventListener("click", () => page.panel.open(cell));
          button.addEventListener("mouseover", () => page.tip.show(page.describe(cell), button.getBoundingClientRect()));
          button.addEventListener("mouseout", page.tip.hide);
          part.append(button);
        }
        if (some.length > shown) {
          const rest = page.make("button", `${some.length - shown} more`, { type: "button", class: "rest" });
          rest.addEventListener("click", () => { opened.add(number); draw(); });
          part.append(rest);
        }
      }
    };
    const box = page.make("div", "", { class: "bars" });
    root.append(page.make("p", quantity.label, { class: "help" }), box);
    draw();
    if (!box.firstChild) box.textContent = `No cell here has this number: ${quantity.name}.`;
    page.redraws.add(draw);
    return { remove: () => { page.redraws.delete(draw); box.remove(); } };
  };

  const figure = (root, line, quantity, height) => {
    if (!line.axis) return bars(root, line, quantity);
    const some = series(line, quantity);
    if (!some.length) { root.append(page.make("p", `No cell here has this number: ${quantity.name}.`)); return null; }
    return page.chart(root, {
      label: `${lineTitle(line)}: ${quantity.name}`,
      series: some,
      axis: line.axis === "N" ? "N, columns of a row" : "M, rows",
      y: quantity,
      strip: strip(line),
      height,
    });
  };

  const choice = (name, texts, chosen, term) => {
    const select = page.make("select", texts.map((text, i) => page.make("option", text, { value: i })), { name });
    select.value = chosen;
    return [page.make("label", [page.term(term, name), " ", select]), select];
  };

  /** The overview's picture: one figure, and the map of its pass and dtype. */
  const overview = () => {
    const root = page.find("#picture"), { lines } = page.data, groups = page.groups();
    if (!lines.length) {
      root.append(
        page.make(
          "p",
          groups.size
            ? "No cell has a bandwidth, so there is no curve. The map is by the medians."
            : "No backend but the yardstick has a result. The tab Wrong and skipped says why.",
        ),
      );
      groups.forEach((numbers, title) => page.map(root, `Fastest backend, ${title}`, numbers));
      return;
    }
    const kinds = quantities();
    const [shapes, chooseLine] = choice(
      "shapes",
      lines.map(lineTitle),
      lines.reduce(
        (best, line, i) => (line.axis && (best === null || line.cases.length > 1.5 * lines[best].cases.length) ? i : best),
        null,
      ) ?? 0,
      "case",
    );
    const [quantity, chooseQuantity] = choice("quantity", kinds.map(({ name }) => name), 0, "bandwidth");
    const form = page.make("form", [shapes, quantity], { class: "controls" });
    form.addEventListener("submit", (event) => event.preventDefault());
    const place = page.make("div", "", { class: "plot" }), named = page.make("div"), map = page.make("div");
    root.append(form, place, named, map);
    let made = null;
    const draw = () => {
      const line = lines[chooseLine.value];
      made?.remove();
      place.replaceChildren();
      made = figure(place, line, kinds[chooseQuantity.value], 380);
      named.replaceChildren();
      if (line.axis) legend(named, [line]);
      map.replaceChildren();
      const { pass, dtype, shape } = page.data.cases, first = line.cases[0];
      const key = `${pass[first]} ${dtype[first]}${shape[first] ? ", N-D" : ""}`;
      if (groups.has(key)) page.map(map, `Fastest backend, ${key}`, groups.get(key));
    };
    form.addEventListener("input", draw);
    draw();
  };

  /** All figures, each of which is drawn when it comes near the screen. */
  const curves = () => {
    const root = page.find("#all-curves"), { lines } = page.data, kinds = quantities();
    if (!lines.length) { root.append(page.make("p", "No cell has a bandwidth, so there is nothing to draw.")); return; }
    const [quantity, chooseQuantity] = choice(
      "quantity",
      kinds.map(({ name }) => name),
      Math.max(
        0,
        kinds.findIndex(({ name }) => name === "fraction of copy"),
      ),
      "fraction of copy",
    );
    const form = page.make("form", [quantity], { class: "controls" });
    form.addEventListener("submit", (event) => event.preventDefault());
    root.append(form);
    legend(root, lines);
    const grid = page.make("div", "", { class: "grid" });
    root.append(grid);
    const places = lines.map((line) => {
      const place = page.make("div", "", { class: "plot waiting" });
      grid.append(page.make("figure", [page.make("figcaption", lineTitle(line)), place]));
      return place;
    });
    const made = new Map();
    const show = (i) => {
      if (made.has(i)) return;
      places[i].classList.remove("waiting");
      made.set(i, figure(places[i], lines[i], kinds[chooseQuantity.value], 300));
    };
    const near = new IntersectionObserver(
      (entries) =>
        entries.forEach((entry) => {
          if (entry.isIntersecting) show(places.indexOf(entry.target));
        }),
      { rootMargin: "600px" },
    );
    places.forEach((place) => near.observe(place));
    form.addEventListener("input", () => {
      const again = [...made.keys()];
      made.forEach((one, i) => { one?.remove(); places[i].replaceChildren(); });
      made.clear();
      again.forEach(show);
    });
    page.printers.push(() => {
      places.slice(0, page.PRINTED_FIGURES).forEach((_, i) => show(i));
      return page.printNote(root, places.length - page.PRINTED_FIGURES, "figures");
    });
  };

  const maps = () => {
    const root = page.find("#all-maps"), groups = page.groups();
    if (!groups.size) {
      root.append(page.make("p", "No case has a fastest backend, because none but the yardstick has a result."));
      return;
    }
    const rivals = [
      ...new Set(
        (page.data.cells.backend ?? []).filter(
          (_, cell) => page.value(cell, "file") === page.lastFile() && page.value(cell, "median_us") !== null,
        ),
      ),
    ];
    const select = page.make(
      "select",
      [
        page.make("option", "the fastest backend and its lead", { value: "" }),
        ...rivals.map((name) => page.make("option", `speed-up of the fastest over ${name}`, { value: name })),
      ],
      { id: "map-show" },
    );
    const form = page.make("form", [page.make("label", ["Show ", select])], { class: "controls" });
    form.addEventListener("submit", (event) => event.preventDefault());
    const place = page.make("div");
    root.append(form, place);
    const draw = () => {
      place.replaceChildren();
      groups.forEach((numbers, title) => page.map(place, title, numbers, select.value));
    };
    form.addEventListener("input", draw);
    draw();
  };
  page.first.curves = curves;
  page.first.map = maps;
  page.first.overview = overview;
})();
