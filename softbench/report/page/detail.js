// What a cell's row opens to: the command line, the reason, the samples by round, and every column of the CSV.
page.detail = (cell) => {
  const { make, data } = page;
  const more = data.more[cell];
  const file = data.files[page.value(cell, "file")];
  const inner = make("div", "", { class: "inner" });
  const title = (text) => inner.append(make("h3", text));

  title("Command to measure it again");
  inner.append(make("code", more.command, { class: "command" }));
  if (more.reason || page.value(cell, "reason")) {
    title("Reason");
    inner.append(make("p", more.reason || page.value(cell, "reason"), { class: "long" }));
  }
  if (more.rounds) {
    title("Samples by round, microseconds");
    inner.append(page.strip(more.rounds));
    if (more.rounds.some((round) => round[3])) inner.append(make("p", "Red: the GPU was slowed, or the CPU was busy.", { class: "help" }));
    inner.append(rounds(more.rounds));
  } else if (page.value(cell, "median_us")) {
    title("Samples by round");
    inner.append(make("p", file.missing || "The run's JSON has no samples of this cell."));
  }
  if (more.kernels) {
    title(more.kernels.length === 1 ? "Kernel of a call" : "Kernels of a call, in order");
    const list = make("ol");
    for (const index of more.kernels) {
      const item = make("li");
      item.append(make("code", data.kernels[index]));
      list.append(item);
    }
    inner.append(list);
  }
  title("All columns");
  const columns = make("dl");
  data.columns.forEach((name, i) => {
    const value = name === "file" ? file.name : data.cells[cell][i];
    if (value === null || value === "") return;
    const pair = make("div");
    pair.append(make("dt", name), make("dd", String(value)));
    columns.append(pair);
  });
  inner.append(columns);
  return inner;

  function rounds(all) {
    const details = make("details");
    details.append(make("summary", "As a table"));
    const table = make("table");
    const head = make("tr");
    ["set", "round", "place", "samples", "median", "SM clock", "power", "temperature", "slowed by", "values"].forEach((name) => head.append(make("th", name, { scope: "col" })));
    const top = make("thead");
    top.append(head);
    const body = make("tbody");
    for (const [set, round, place, throttled, clock, power, temperature, count, samples] of all) {
      const row = make("tr");
      const left = samples.length < count ? ` (${samples.length} of ${count} are shown)` : "";
      const texts = [set, round, place, count, page.median(samples), clock ? `${clock} MHz` : "", power ? `${power} W` : "", temperature ? `${temperature} C` : "", throttled, samples.join(" ") + left];
      texts.forEach((text) => row.append(make("td", String(text))));
      body.append(row);
    }
    table.append(top, body);
    const wide = make("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": "Samples by round" });
    wide.append(table);
    details.append(wide);
    return details;
  }
};

page.median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return +(sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2).toPrecision(4);
};

/** A strip for each round with a dot for each sample, and a line at the round's median. */
page.strip = (rounds) => {
  const svg = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  const width = Math.max(300, Math.min(960, innerWidth - 90)), height = 180, left = 60, bottom = 22, top = 8;
  const values = rounds.flatMap((round) => round[8]).sort((a, b) => a - b);
  const low = values[0];
  const high = Math.max(values[Math.floor(0.96 * (values.length - 1))], low * 1.02);
  const y = (us) => top + (height - top - bottom) * (1 - (Math.min(us, high) - low) / (high - low));
  const above = values.filter((us) => us > high).length;
  const label = `Samples of ${rounds.length} rounds, from ${page.micros(low)} to ${page.micros(values.at(-1))}`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "strip", role: "img", "aria-label": label });
  for (const us of [low, (low + high) / 2, high]) {
    picture.append(svg("line", { x1: left, x2: width, y1: y(us), y2: y(us) }), svg("text", { x: left - 6, y: y(us) + 4, "text-anchor": "end" }, page.micros(us)));
  }
  const step = (width - left) / rounds.length;
  rounds.forEach(([set, round, , throttled, , , , , samples], i) => {
    const begin = left + i * step + 0.08 * step;
    samples.forEach((us, j) => picture.append(svg("circle", { cx: begin + 0.84 * step * (j + 0.5) / samples.length, cy: y(us), r: 2, class: throttled ? "throttled" : "" })));
    const middle = y(page.median(samples));
    picture.append(svg("line", { x1: begin, x2: begin + 0.84 * step, y1: middle, y2: middle, class: "median" }));
    const every = Math.ceil(rounds.length / 15);
    if (i % every === 0) picture.append(svg("text", { x: begin + 0.42 * step, y: height - 6, "text-anchor": "middle" }, rounds.length * 90 > width ? String(round) : `round ${round}` + (set ? `, set ${set}` : "")));
  });
  if (above) picture.append(svg("text", { x: width - 4, y: top + 12, "text-anchor": "end" }, `${above} above ${page.micros(high)}`));
  return picture;
};
