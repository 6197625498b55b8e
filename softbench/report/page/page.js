"use strict";
// One object holds what the parts of the script share. Each part is a file; the page has them in one script.
const page = {
  data: null,
  find: (selector, root = document) => root.querySelector(selector),
  all: (selector, root = document) => [...root.querySelectorAll(selector)],
  /** An element with a text or with children. A text is never read as markup. */
  make(tag, content = "", attributes = {}) {
    const made = el(tag, {}, content);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  },
  /** What each tab does before it is shown for the first time. */
  first: {},
  say: (text) => { page.find("#said").textContent = text; },
};

page.value = (cell, name) =>
  page.data.cells[name]?.[cell] ?? (name === "labels" || name === "reason" || name === "shape" || name === "relative_to" ? "" : null);
page.ofCase = (cell, name) => page.data.cases[name][page.data.cells.case[cell]];
page.size = (number) => page.data.cases.shape[number] || `${page.data.cases.M[number]}x${page.data.cases.N[number]}`;
page.caseText = (number) => `${page.data.cases.pass[number]} ${page.data.cases.dtype[number]} ${page.size(number)}`;
page.count = () => page.data.cells.case.length;
page.lastFile = () => page.data.files.length - 1;
page.command = (cell) => ["backends", "size", "rest"].map((part) => page.value(cell, `command_${part}`)).join(" ");

page.percent = (fraction) => fraction >= 0.01 ? `${Math.round(100 * fraction)}%` : `${+(100 * fraction).toPrecision(1)}%`;
page.ratio = (value) => value >= 99.95 ? value.toFixed(0) : value >= 0.095 ? value.toFixed(2) : String(+value.toPrecision(2));
page.bandwidth = (cell) => {
  const text = gbps(page.value(cell, "gbps"));
  return text && text + (page.value(cell, "labels").split(" ").includes("L2-resident") ? " (L2)" : "");
};
page.interval = (cell) => {
  const [low, high] = [page.value(cell, "low_us"), page.value(cell, "high_us")];
  if (low === null || high === null) return "";
  const [a, b] = [micros(low), micros(high)].map((text) => text.split(" "));
  return a[1] === b[1] ? `${a[0]} to ${b.join(" ")}` : `${a.join(" ")} to ${b.join(" ")}`;
};

/** What a point says: the same for a mouse, a keyboard and a screen reader. */
page.describe = (cell) => {
  const value = (name) => page.value(cell, name);
  const lines = [`${value("backend")}, ${page.caseText(page.data.cells.case[cell])}`];
  if (page.data.files.length > 1) lines[0] += ` (${page.data.files[value("file")].name})`;
  if (value("status") !== "ok") lines.push(value("status"));
  if (value("median_us"))
    lines.push(`median ${micros(value("median_us"))}` + (page.interval(cell) && `, 95 % interval ${page.interval(cell)}`));
  const more = [];
  if (value("gbps")) more.push(`${page.bandwidth(cell).replace(" (L2)", "")} GB/s${page.bandwidth(cell).endsWith(")") ? " (L2)" : ""}`);
  if (value("of_copy")) more.push(`${page.percent(value("of_copy"))} of copy`);
  if (value("of_peak")) more.push(`${page.percent(value("of_peak"))} of the datasheet's peak`);
  if (value("speedup")) more.push(`${page.ratio(value("speedup"))}x ${value("relative_to")}`);
  if (value("device_us")) {
    const [low, high] = [page.data.more.device_low[cell], page.data.more.device_high[cell]];
    more.push(`device time ${micros(value("device_us"))}` + (low ? ` (${micros(low)} to ${micros(high)})` : ""));
  }
  if (more.length) lines.push(more.join(", "));
  if (value("error_over_bound") !== null) lines.push(`error ${digits(value("error_over_bound"))} of its bound (${value("class")})`);
  if (value("labels")) lines.push(`labels: ${value("labels")}`);
  if (value("reason")) lines.push(value("reason").length > 300 ? `${value("reason").slice(0, 300)}...` : value("reason"));
  return lines.join("\n");
};

// How a backend looks. Its colour follows the page's theme, its marker and dash do not.
page.MARKERS = {
  o: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", s: "M-3.5,-3.5h7v7h-7z", "^": "M0,-4.5L4.5,3.5H-4.5z", D: "M0,-4.8L4.8,0L0,4.8L-4.8,0z",
  v: "M0,4.5L4.5,-3.5H-4.5z", P: "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", X: "M-4,-2L-2,-4L0,-2L2,-4L4,-2L2,0L4,2L2,4L0,2L-2,4L-4,2L-2,0z",
  "<": "M-4.5,0L3.5,-4.5V4.5z", ">": "M4.5,0L-3.5,-4.5V4.5z",
};
page.DASHES = { "-": [], "--": [7, 4], "-.": [8, 3, 2, 3], ":": [2, 3] };
page.printing = false;
page.dark = () => !page.printing && isDark();
page.colour = (backend) => page.data.looks[backend][page.dark() ? 1 : 0];
page.marker = (backend) => page.data.looks[backend][2];
page.dash = (backend) => page.data.looks[backend][3];
/** Gives an element the colour of a backend, for both themes. */
page.tint = (element, backend, name = "--own") => {
  const [light, dark] = page.data.looks[backend];
  element.style.setProperty(name, `light-dark(${light}, ${dark})`);
  return element;
};
/** A colour of the style sheet, as a canvas needs it. */
page.css = (name) => {
  const probe = page.find("#probe");
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
};
page.isYardstick = (cell) => page.value(cell, "class") === "yardstick";
/** What a printer gets of long tables and of many figures. `printers` are called before, and each may return what undoes it. */
page.PRINTED_ROWS = 1000;
page.PRINTED_FIGURES = 24;
page.printers = [];
page.printNote = (root, left, what) => {
  const note = page.make("p", left > 0 ? `${left} more ${what} are not printed; the page and the CSV have them.` : "");
  root.append(note);
  return () => note.remove();
};
/** Called when the theme or what is hidden changes. */
page.redraws = new Set();
page.redraw = () => page.redraws.forEach((draw) => draw());
