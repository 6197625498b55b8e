"use strict";
// One object holds what the parts of the script share. Each part is a file; the page has them in one script.
const page = {
  data: JSON.parse(document.getElementById("data").textContent),
  find: (selector, root = document) => root.querySelector(selector),
  all: (selector, root = document) => [...root.querySelectorAll(selector)],
  /** An element with a text. The text is never read as markup. */
  make(tag, text = "", attributes = {}) {
    const made = document.createElement(tag);
    made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  },
  /** What each part of the page does before it is shown for the first time. */
  first: {},
  say: (text) => { page.find("#said").textContent = text; },
};
page.column = Object.fromEntries(page.data.columns.map((name, i) => [name, i]));
page.value = (cell, name) => page.data.cells[cell][page.column[name]];
page.size = (cell) => page.value(cell, "shape") || `${page.value(cell, "M")}x${page.value(cell, "N")}`;
page.pass = (cell) => (page.value(cell, "op") === "softmax" ? "" : `${page.value(cell, "op")} `) + page.value(cell, "direction");
page.micros = (us) => us < 1e3 ? `${+us.toPrecision(3)} us` : us < 1e6 ? `${+(us / 1e3).toPrecision(3)} ms` : `${+(us / 1e6).toPrecision(3)} s`;
page.percent = (fraction) => fraction >= 0.01 ? `${Math.round(100 * fraction)}%` : `${+(100 * fraction).toPrecision(1)}%`;

page.short = (value) => typeof value === "number" ? +value.toPrecision(3) : value;
page.ratio = (value) => value >= 99.95 ? value.toFixed(0) : value >= 0.095 ? value.toFixed(2) : String(+value.toPrecision(2));

/** What a point says: the same for a mouse, a keyboard and a screen reader. */
page.describe = (cell) => {
  const value = (name) => page.value(cell, name);
  const lines = [`${value("backend")}, ${page.pass(cell)} ${value("dtype")} ${page.size(cell)}`];
  if (page.data.files.length > 1) lines[0] += ` (${page.data.files[value("file")].name})`;
  if (value("status") !== "ok") lines.push(value("status"));
  if (value("median_us")) {
    const interval = value("low_us") ? `, 95 % interval ${page.micros(value("low_us"))} to ${page.micros(value("high_us"))}` : "";
    lines.push(`median ${page.micros(value("median_us"))}${interval}`);
  }
  const more = [];
  const inL2 = value("labels").split(" ").includes("L2-resident");
  if (value("gbps")) more.push(`${+value("gbps").toPrecision(4)} GB/s${inL2 ? " (L2)" : ""}`);
  if (value("of_copy")) more.push(`${page.percent(value("of_copy"))} of copy`);
  if (value("of_peak")) more.push(`${page.percent(value("of_peak"))} of the datasheet's peak`);
  if (value("speedup")) more.push(`${page.ratio(value("speedup"))}x ${value("relative_to")}`);
  if (value("device_us")) {
    const ends = page.data.more[cell].device;
    more.push(`device time ${page.micros(value("device_us"))}` + (ends ? ` (${ends.map(page.micros).join(" to ")})` : ""));
  }
  if (more.length) lines.push(more.join(", "));
  if (value("error_over_bound") !== null) lines.push(`error ${page.short(value("error_over_bound"))} of its bound (${value("class")})`);
  if (value("labels")) lines.push(`labels: ${value("labels")}`);
  if (value("reason")) lines.push(value("reason"));
  lines.push(page.data.more[cell].command);
  return lines.join("\n");
};
