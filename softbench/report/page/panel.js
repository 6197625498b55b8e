// The side panel of a cell: the command line, the reason, the samples by round, the kernels, and every column of the CSV.
page.panel = (() => {
  const { make } = page;
  let opener = null, begins = null;
  const root = () => page.find("#panel");

  /** The rounds of a cell: [set, round, place, slowed, clock, power, temperature, count, samples]. */
  const roundsOf = (cell) => {
    const { rounds, samples } = page.data;
    if (!begins) {
      begins = new Map();
      let start = 0;
      rounds.cell.forEach((one, i) => {
        if (!begins.has(one)) begins.set(one, []);
        begins.get(one).push([i, start]);
        start += rounds.shown[i];
      });
    }
    const names = ["set", "round", "place", "slowed", "clock", "power", "temperature", "count"];
    return (begins.get(cell) ?? []).map(([i, start]) => [
      ...names.map((name) => rounds[name][i]),
      samples.slice(start, start + rounds.shown[i]),
    ]);
  };

  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
    return +(sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2).toPrecision(4);
  };

  /** A strip for each round with a dot for each sample, and a line at the round's median. */
  const strip = (rounds, width) => {
    const height = 180, left = 60, bottom = 22, top = 8;
    const values = rounds.flatMap((round) => round[8]).sort((a, b) => a - b);
    const low = values[0];
    const high = Math.max(values[Math.floor(0.96 * (values.length - 1))], low * 1.02);
    const y = (us) => top + (height - top - bottom) * (1 - (Math.min(us, high) - low) / (high - low));
    const above = values.filter((us) => us > high).length;
    const label = `Samples of ${rounds.length} rounds, from ${micros(low)} to ${micros(values.at(-1))}`;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "strip", role: "img", "aria-label": label });
    for (const us of [low, (low + high) / 2, high]) {
      picture.append(
        svg("line", { x1: left, x2: width, y1: y(us), y2: y(us) }),
        svg("text", { x: left - 6, y: y(us) + 4, "text-anchor": "end" }, [micros(us)]),
      );
    }
    const step = (width - left) / rounds.length;
    rounds.forEach(([set, round, , slowed, , , , , samples], i) => {
      const begin = left + i * step + 0.08 * step;
      samples.forEach((us, j) =>
        picture.append(
          svg("circle", { cx: begin + (0.84 * step * (j + 0.5)) / samples.length, cy: y(us), r: 2, class: slowed ? "slowed" : "" }),
        ),
      );
      const middle = y(median(samples));
      picture.append(svg("line", { x1: begin, x2: begin + 0.84 * step, y1: middle, y2: middle, class: "median" }));
      if (round !== null && i % Math.ceil(rounds.length / 8) === 0)
        picture.append(
          svg("text", { x: begin + 0.42 * step, y: height - 6, "text-anchor": "middle" }, [
            rounds.length * 90 > width ? String(round) : `round ${round}` + (set ? `, set ${set}` : ""),
          ]),
        );
    });
    if (above) picture.append(svg("text", { x: width - 4, y: top + 12, "text-anchor": "end" }, [`${above} above ${micros(high)}`]));
    return picture;
  };

  const asTable = (all) => {
    const texts = all.map(([set, round, place, slowed, clock, power, temperature, count, samples]) => [
      set,
      round,
      place,
      count,
      median(samples),
      clock ? `${clock} MHz` : "",
      power ? `${power} W` : "",
      temperature ? `${temperature} C` : "",
      slowed,
      samples.map((us) => digits(us, 4)).join(" ") + (samples.length < count ? ` (${samples.length} of ${count} are shown)` : ""),
    ]);
    const head = ["set", "round", "place", "samples", "median", "SM clock", "power", "temperature", "slowed by", "values"];
    return make("details", [make("summary", "The rounds as a table"), make("div", [make("table", [
      make("thead", [make("tr", head.map((name) => make("th", name, { scope: "col" })))]),
      make("tbody", texts.map((line) => make("tr", line.map((text) => make("td", String(text ?? "")))))),
    ])], { class: "wide", tabindex: "0", role: "region", "aria-label": "Samples by round" })]);
  };

  const content = (cell, width) => {
    const { data } = page;
    const file = data.files[page.value(cell, "file")];
    const number = data.cells.case[cell];
    const found = [];
    const title = (text, term) => found.push(make("h3", term ? [page.term(term, text)] : text));
    const facts = [
      ["median", "median", page.value(cell, "median_us") && micros(page.value(cell, "median_us"))],
      ["interval", "95 % interval", page.interval(cell)],
      ["bandwidth", "bandwidth, GB/s", page.bandwidth(cell)],
      ["fraction of copy", "of copy", page.value(cell, "of_copy") && page.percent(page.value(cell, "of_copy"))],
      ["status", "status", page.value(cell, "status") === "ok" ? "" : page.value(cell, "status")],
      ["class", "class", page.value(cell, "class")],
      ["label", "labels", page.value(cell, "labels")],
    ].filter(([, , text]) => text);
    found.push(
      make(
        "dl",
        facts.flatMap(([term, name, text]) => {
          const labels = name === "labels" ? text.split(" ").flatMap((label) => [page.term(label), " "]) : text;
          return [make("dt", [page.term(term, name)]), make("dd", labels)];
        }),
        { class: "facts" },
      ),
    );
    const reason = data.more.reason[cell] || page.value(cell, "reason");
    if (reason) { title("Reason"); found.push(make("p", reason, { class: "long" })); }
    title("Command to measure it again");
    found.push(make("code", page.command(cell), { class: "command" }));
    const rounds = roundsOf(cell);
    if (rounds.length && rounds[0][1] === null) {
      title("Quantiles of the samples", "sample");
      found.push(
        strip(rounds, width),
        make(
          "p",
          `${rounds[0][8].length} quantiles of ${rounds[0][7]} samples, from the smallest to the largest, in microseconds: ` +
            `${rounds[0][8].map((us) => digits(us, 4)).join(", ")}. The run's JSON has all samples.`,
          { class: "help" },
        ),
      );
    } else if (rounds.length) {
      title("Samples by round", "round");
      found.push(strip(rounds, width));
      if (rounds.some((round) => round[3])) found.push(make("p", "Red: the GPU was slowed, or the CPU was busy.", { class: "help" }));
      found.push(asTable(rounds));
    } else if (page.value(cell, "median_us")) {
      title("Samples by round", "round");
      found.push(make("p", file.missing || "The run's JSON has no samples of this cell."));
    }
    const kernels = data.more.kernels[cell].split(" ").filter(Boolean);
    if (kernels.length) {
      title(kernels.length === 1 ? "Kernel of a call" : "Kernels of a call, in order");
      found.push(make("ol", kernels.map((index) => make("li", [make("code", data.kernels[index])]))));
    }
    title("All columns");
    const columns = Object.keys(data.cells).filter((name) => !["case", "doubtful"].includes(name) && !name.startsWith("command_"));
    const pairs = columns
      .map((name) => [name, name === "file" ? file.name : page.value(cell, name)])
      .filter(([, value]) => value !== null && value !== "");
    found.push(
      make(
        "dl",
        pairs.map(([name, value]) => make("div", [make("dt", name), make("dd", value === Infinity ? "inf" : String(value))])),
        { class: "columns" },
      ),
    );
    found.unshift(make("p", `${page.caseText(number)}${data.files.length > 1 ? `, ${file.name}` : ""}`));
    return found;
  };

  /** Show a cell. `focus`: move the focus into the panel; it returns when the panel closes. */
  const open = (cell, focus = true) => {
    const panel = root();
    if (panel.hidden) opener = document.activeElement;
    panel.hidden = false;
    document.body.classList.add("with-panel");
    page.tip.hide();
    const heading = make("h2", page.value(cell, "backend"), { id: "panel-title", tabindex: "-1" });
    const shut = make("button", "Close", { type: "button", class: "close" });
    shut.addEventListener("click", close);
    const width = Math.max(280, panel.clientWidth - 34);
    panel.replaceChildren(make("div", [heading, shut], { class: "panel-head" }), ...content(cell, width));
    panel.scrollTop = 0;
    panel.dataset.c = cell;
    history.replaceState(null, "", `#cell-${cell}`);
    if (focus) heading.focus(); else page.say(page.describe(cell));
  };
  const close = () => {
    if (root().hidden) return;
    root().hidden = true;
    document.body.classList.remove("with-panel");
    history.replaceState(null, "", `#${page.tabs.current()}`);
    // A row of a table may be another element by now.
    (opener?.isConnected ? opener : page.find("section:not([hidden]) tr.selected button"))?.focus({ preventScroll: true });
  };
  addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  return { open, close, isOpen: () => !root().hidden };
})();
