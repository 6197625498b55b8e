"use strict";
/** The board: what `site.py` embedded, shown for the operation, the card and the run that the address names. Texts are set as text only. */
const VIEWS = { now: "Now", operations: "Operations", history: "History", changes: "Changes", runs: "Runs" };
const KEYS = { op: "Operation", direction: "Direction", dtype: "Dtype", card: "Card" };
const SIGN = { faster: "▲", slower: "▼", lost: "✕", back: "✓" };
const WHAT = { faster: "faster", slower: "slower", lost: "without a result", back: "with a result again" };
const SHOWN = 12, LINES = 10, LATELY = 6, MANY = 100;
let data, state, chart;

const $ = (id) => document.getElementById(id);
const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
const percent = (fraction) => `${fraction < 0.0995 ? Number((100 * fraction).toPrecision(2)) : Math.round(100 * fraction)}%`;
/** How much faster the faster of two is, as the threshold counts it. */
const ahead = (ratio) => `${(100 * (Math.max(ratio, 1 / ratio) - 1)).toFixed(1)}%`;
const mean = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
const day = (run) => data.runs.started[run].slice(0, 10) || "no date";
const named = (group) => `${group.op} ${group.direction} ${group.dtype}`;
/** Date and commit of a run; date and time if another run has the same. */
function short(run) {
  const text = (of) => `${day(of)} ${data.runs.commit[of].slice(0, 9)}`.trim();
  data.shorts ??= data.runs.run.map((_, of) => text(of));
  return data.shorts.indexOf(text(run)) === data.shorts.lastIndexOf(text(run)) ? text(run) : data.runs.started[run].slice(0, 16).replace("T", " ") || data.runs.run[run];
}

function link(text, changes, properties = {}) {
  return el("a", { href: address({ ...state, ...changes }), ...properties }, text);
}
function address(of) {
  const kept = Object.entries(of).filter(([, value]) => value !== "" && value !== undefined);
  return `#${kept.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&")}`;
}
/** The keys of the address that name a group, and the history of one of its cases or backends. */
const keysOf = (group) => Object.fromEntries(Object.keys(KEYS).map((key) => [key, group[key]]));
const ofCase = (group, number) => ({ ...keysOf(group), view: "history", case: group.case[number], backend: "" });
const ofBackend = (group, number) => ({ ...keysOf(group), view: "history", case: "", backend: data.backends.name[number] });
/** Gives an element the colour of a backend. */
function tint(made, number) {
  made.style.setProperty("--own", `light-dark(${data.backends.light[number]}, ${data.backends.dark[number]})`);
  return made;
}
const backend = (number, changes) => tint(link(data.backends.name[number], changes, { className: "name" }), number);
/** A run as a link to its page, or its date and commit. */
function runLink(run, text = short(run)) {
  return data.runs.page[run] ? el("a", { href: data.runs.page[run], title: `Page of ${data.runs.run[run]}` }, text) : el("span", {}, text);
}
function table(head, rows, className = "") {
  const cells = (row, tag) => row.map((cell, i) => {
    const made = el(tag, { className: [head[i][1] ?? "", cell?.kind ?? ""].join(" ").trim() }, cell?.kind !== undefined ? cell.text : cell);
    if (tag === "th") made.scope = "col";
    else if (className === "grid") made.dataset.card = cell && i ? head[i][0] : "";
    return made;
  });
  const body = el("tbody", {}, rows.map((row) => el("tr", {}, cells(row, "td"))));
  return el("div", { className: "wide" }, el("table", { className }, el("thead", {}, el("tr", {}, cells(head.map(([name]) => name), "th"))), body));
}
/** The first of many rows, and a button that shows all. */
function cut(rows, most, make, noun) {
  const box = el("div", {}, make(rows.slice(0, most)));
  if (rows.length > most) {
    box.append(el("button", { type: "button", className: "more", onclick: () => box.replaceChildren(make(rows)) }, `Show all ${rows.length} ${noun}`));
  }
  return box;
}

/** The series of a group, with their points. */
function seriesOf(group) {
  let to = 0;
  return group.lines ??= group.series.n.map((n, i) => {
    const from = to, parts = Object.entries(group.points).map(([name, values]) => [name, values.slice(from, from + n)]);
    to += n;
    return { case: group.series.case[i], backend: group.series.backend[i], ...Object.fromEntries(parts) };
  });
}
/** Each case of a group as of a run: its results, the fastest first, and which of them are fastest. */
function casesOf(group, upto) {
  const cases = group.case.map((name, number) => ({ name, number, results: [], failed: [], first: [] }));
  for (const line of seriesOf(group)) {
    const at = line.run.findLastIndex((run) => run <= upto);
    if (at < 0) continue;
    const result = { backend: line.backend, run: line.run[at], us: line.us[at], copy: line.copy[at] && line.copy[at] / 1000, state: line.state[at] };
    if (data.backends.name[line.backend] !== data.yardstick) cases[line.case][result.us ? "results" : "failed"].push(result);
  }
  group.fastest.run.forEach((run, i) => { if (run <= upto) cases[group.fastest.case[i]].first = group.fastest.names[i]; });
  const shares = cases.some((one) => one.results.some((result) => result.copy));
  for (const one of cases) {
    const best = Math.min(...one.results.filter((result) => one.first.includes(result.backend)).map((result) => result.us));
    for (const result of one.results) result.share = shares ? result.copy : best / result.us;
    const place = (result) => one.first.indexOf(result.backend) + 1 || SHOWN * MANY;
    one.results.sort((a, b) => place(a) - place(b) || (b.share ?? 0) - (a.share ?? 0));
  }
  return { cases: cases.filter((one) => one.results.length + one.failed.length), of: shares ? "copy" : "the fastest" };
}
/** The backends of these cases: how often each is fastest, and the mean of its shares. */
function ranking(cases) {
  const found = new Map();
  for (const one of cases) {
    for (const result of [...one.results, ...one.failed]) {
      if (!found.has(result.backend)) found.set(result.backend, { backend: result.backend, wins: 0, ties: 0, shares: [], cases: 0, failed: [] });
      const own = found.get(result.backend);
      if (!result.us) { own.failed.push(`${one.name} ${result.state}`); continue; }
      own.cases += 1;
      if (result.share) own.shares.push(result.share);
      if (one.first.includes(result.backend)) own[one.first.length === 1 ? "wins" : "ties"] += 1;
    }
  }
  for (const one of found.values()) one.mean = one.shares.length ? mean(one.shares) : 0;
  return [...found.values()].sort((a, b) => b.wins + b.ties - a.wins - a.ties || b.mean - a.mean);
}

function now(group, upto) {
  const { cases, of } = casesOf(group, upto), ranked = ranking(cases), timed = cases.filter((one) => one.results.length);
  const lately = group.changes.filter((one) => one.run <= upto);
  const runs = runsOf(group).filter((run) => run <= upto);
  const list = lately.length ? cut(lately, LATELY, (some) => el("ul", { className: "changes" }, some.map((one) => changeItem(one, false))), "changes")
    : el("p", {}, runs.length > 1 ? `No backend changed by more than ${percent(data.threshold)} in ${count(runs.length, "run")}.`
      : "One run has measured this, so nothing can have changed. Measure again, and build the board with both files.");
  return [
    ...answer(group, ranked, timed, of, lately[0]),
    el("div", { className: "columns" },
      el("section", {}, el("h2", {}, "Backends"), help(`Where each is fastest, and its mean share of ${of} over the cases that it measured. Choose a backend for its history.`),
        cut(ranked, SHOWN, (some) => backendTable(group, some, timed.length, lately), "backends")),
      el("section", {}, el("h2", {}, "Changed lately"),
        help(`Changes beyond ${percent(data.threshold)} and beyond noise, without the drift of copy. Newest run: `, runLink(runs.at(-1)), "."), list)),
    el("h2", {}, "Cases"),
    help(`A dot is a backend, at its share of ${of}; the large one is fastest, a hollow one doubtful. Choose a case for its history.`),
    cut(cases, MANY, (some) => caseTable(group, some, of), "cases"),
  ];
}
function answer(group, ranked, cases, of, last) {
  const [first, second] = ranked;
  if (!cases.length) return [el("p", { className: "answer" }, "No backend has a result here.")];
  const text = el("p", { className: "answer" }, el("b", {}, backend(first.backend, ofBackend(group, first.backend))), first.wins ? ` is fastest in ${first.wins} of ${count(cases.length, "case")}` : "",
    first.ties ? `${first.wins ? " and" : ""} ties for the fastest in ${first.ties}${first.wins ? " more" : ` of ${count(cases.length, "case")}`}.` : ".", first.mean ? ` It has ${percent(first.mean)} of ${of} on average.` : "");
  if (second?.mean) text.append(" Next: ", backend(second.backend, ofBackend(group, second.backend)), ` with ${percent(second.mean)}.`);
  if (last) text.append(" Last change: ", backend(last.backend, ofBackend(group, last.backend)), ` ${SIGN[last.kind]} `, link(`${WHAT[last.kind]} in ${count(last.case.length, "case")}, ${day(last.run)}`, { view: "changes" }), ".");
  const lost = ranked.filter((one) => one.failed.length).map((one) => `${data.backends.name[one.backend]} (${one.failed[0]}${one.failed.length > 1 ? `, ${one.failed.length - 1} more` : ""})`);
  return [text, lost.length ? help(`Without a result: ${lost.slice(0, 4).join(", ")}${lost.length > 4 ? ` and ${count(lost.length - 4, "other backend")}` : ""}.`) : ""];
}
function help(...texts) {
  return el("p", { className: "help" }, ...texts);
}
function backendTable(group, ranked, cases, lately) {
  const head = [["backend"], ["mean share", "bar"], ["", "n"], ["fastest", "n"], ["ties", "n"], ["cases", "n wide-only"], ["last change", "n wide-only"]];
  return table(head, ranked.map((one) => {
    const bar = tint(el("span"), one.backend), last = lately.find((found) => found.backend === one.backend);
    bar.style.width = `${Math.min(100, (100 * one.mean) / 1.1)}%`;
    return [backend(one.backend, ofBackend(group, one.backend)), bar, one.mean ? percent(one.mean) : "", one.wins || "", one.ties || "", `${one.cases} of ${cases}`,
      last ? { kind: last.kind, text: [SIGN[last.kind], " ", day(last.run)] } : ""];
  }));
}
function caseTable(group, cases, of) {
  const scale = el("span", { className: "scale", ariaLabel: `share of ${of}` }, [0, 50, 100].map((at) => {
    const mark = el("span", {}, `${at}%`);
    mark.style.left = `${at / 1.2}%`;
    return mark;
  }));
  return table([["case"], [scale, "bar"], ["fastest"], [`of ${of}`, "n"], ["speed", "n wide-only"], ["lead", "n wide-only"]], cases.map((one) => {
    const [best] = one.results, next = one.results.find((result) => !one.first.includes(result.backend));
    const speed = !best ? "" : group.bytes[one.number] && !group.in_l2[one.number] ? `${gbps(group.bytes[one.number] / best.us / 1e3)} GB/s` : micros(best.us);
    const names = one.first.flatMap((number) => [backend(number, ofCase(group, one.number)), " "]);
    return [link(one.name, ofCase(group, one.number)), strip(one), names, best?.share ? percent(best.share) : "",
      speed, best?.share && next?.share && one.first.length === 1 ? ahead(best.share / next.share) : one.first.length > 1 ? "tie" : ""];
  }));
}
function strip(one) {
  const known = one.results.filter((result) => result.share), text = (result) => `${data.backends.name[result.backend]} ${percent(result.share)}`;
  return el("div", { className: "strip", role: "img", ariaLabel: known.map(text).join(", ") }, known.toReversed().map((result) => {
    const className = (one.first.includes(result.backend) ? "first " : "") + result.state;
    const dot = tint(el("i", { className, title: `${text(result)}, ${micros(result.us)}, ${short(result.run)}` }), result.backend);
    dot.style.left = `${Math.min(100, (100 * result.share) / 1.2)}%`;
    return dot;
  }));
}

/** One change: a sentence, the two runs, and its cases. */
function changeItem(one, where = true) {
  const group = data.groups[one.group], known = one.value.filter((value) => value);
  const far = known.length ? known.reduce((a, b) => (Math.abs(Math.log(b)) > Math.abs(Math.log(a)) ? b : a)) : null;
  const size = known.length ? `, by ${ahead(mean(known))}${known.length > 1 ? ` on average, ${ahead(far)} at most` : ""}` : "";
  const notes = [...versionChanges(one.before, one.run), ...one.notes];
  const rows = one.case.map((number, i) => [
    link(group.case[number], ofCase(group, number)),
    one.value[i] ? `${one.value[i].toFixed(3)}x (${one.low[i].toFixed(3)} to ${one.high[i].toFixed(3)})` : "",
  ]);
  return el("li", { className: one.kind },
    el("p", {}, el("b", {}, `${SIGN[one.kind]} `), backend(one.backend, ofBackend(group, one.backend)), " ", el("b", {}, WHAT[one.kind]), ` in ${one.case.length} of ${count(one.compared, "case")}${size}`),
    el("p", { className: "help" }, where ? [link(`${named(group)}, ${group.card}`, { ...keysOf(group), view: "now" }), "; "] : "",
      runLink(one.run), " after ", runLink(one.before), notes.length ? `; ${notes.join("; ")}` : ""),
    el("details", {}, el("summary", {}, one.case.length > 1 ? "Cases" : "Case"), table([["case"], ["speed, now over before, without drift", "n"]], rows)));
}
/** What differs between the software, or the timer, of two runs. */
function versionChanges(before, run) {
  return data.runs.versions.filter((name) => data.runs[name][before] && data.runs[name][run] && data.runs[name][before] !== data.runs[name][run])
    .map((name) => `${name} ${data.runs[name][before]} → ${data.runs[name][run]}`);
}
function runsOf(group) {
  group.runs ??= [...new Set(group.points.run)].sort((a, b) => a - b);
  return group.runs;
}

function operations(_, upto) {
  const cards = [...new Set(data.groups.map((group) => group.card))], rows = new Map();
  for (const group of data.groups) {
    const { cases, of } = casesOf(group, upto), [first] = ranking(cases), timed = cases.filter((one) => one.results.length).length;
    if (!rows.has(named(group))) rows.set(named(group), cards.map(() => ""));
    if (!first || !timed) continue;
    const last = group.changes.find((one) => one.run <= upto);
    const score = link(`${first.wins + first.ties} of ${timed}`, { ...keysOf(group), view: "now" }, { title: `Cases in which it is fastest or ties: ${named(group)} on ${group.card}` });
    rows.get(named(group))[cards.indexOf(group.card)] = {
      kind: "", text: [backend(first.backend, { ...keysOf(group), view: "now" }), " ", score, first.mean ? ` · ${percent(first.mean)} of ${of}` : "",
        last ? el("span", { className: last.kind, title: `${data.backends.name[last.backend]} ${last.kind}, ${day(last.run)}` }, el("b", {}, ` ${SIGN[last.kind]}`)) : ""],
    };
  }
  return [el("h2", {}, "Operations"),
    help("The backend that is fastest in most cases, in how many it is or ties, and its mean share. ▲ and ▼: the newest change of any backend. Choose a field for its cases."),
    table([["operation"], ...cards.map((card) => [card])], [...rows].map(([name, cells]) => [name, ...cells]), "grid")];
}

function history(group, upto) {
  const names = data.backends.name, own = names.indexOf(state.backend), number = group.case.indexOf(state.case);
  const lines = seriesOf(group).filter((line) => line.run[0] <= upto), whole = number < 0 && lines.some((line) => line.backend === own);
  const most = lines.reduce((best, line) => (names[line.backend] !== data.yardstick && line.run.length > best.run.length ? line : best), lines[0]);
  const all = lines.filter((line) => (whole ? line.backend === own : line.case === (number < 0 ? most.case : number)));
  const shares = all.some((line) => line.copy.some((value) => value)), unit = state.unit === "speed" || !shares ? "GB/s" : "% of copy";
  const shown = all.filter((line) => whole || unit === "GB/s" || names[line.backend] !== data.yardstick);
  const values = new Map(shown.map((line) => [line, new Map(line.run.map((run, at) => [run, valueOf(group, line, at, unit)]).filter(([run]) => run <= upto))]));
  const runs = runsOf(group).filter((run) => [...values.values()].some((found) => found.has(run)));
  return [el("h2", {}, whole ? `History of ${state.backend}` : `History of ${group.case[all[0].case]}`),
    help(whole ? "Each case of the backend over its runs, oldest first. Choose a case for all backends in it." : "One step is one run, oldest first; ! is doubtful. Choose a backend for all its cases.",
      unit === "GB/s" ? "" : " A value is relative to the copy of its own run."),
    el("div", { className: "controls" },
      chooser("case", "Case", [["", whole ? "all" : group.case[most.case]], ...group.case.map((name) => [name, name])], state.case, whole ? { backend: "" } : {}),
      chooser("backend", "Backend", [["", "all"], ...[...new Set(lines.map((line) => line.backend))].map((i) => [names[i], names[i]])], whole ? state.backend : "", { case: "" }),
      shares ? chooser("unit", "Unit", [["", "% of copy"], ["speed", "GB/s"]], state.unit) : ""),
    new Set(runs.map((run) => data.runs.timer[run])).size > 1 ? help("These runs used several timers, which do not measure the same where a launch takes longer than the kernel.") : "",
    runs.length < 2 ? help("Only one run has this: measure it again, put the new CSV beside the others, and build the board again.") : "",
    ...(whole ? casesOfBackend(group, values, runs, unit) : backendsOfCase(group, values, runs, unit, upto))];
}
/** A point of a line with its text, which says why there is no value, and the kind of its change. */
function valueOf(group, line, at, unit) {
  const value = unit === "GB/s" ? line.us[at] && group.bytes[line.case] / line.us[at] / 1e3 : line.copy[at] && line.copy[at] / 10;
  const kind = group.verdicts.get([line.run[at], line.backend, line.case].join()) ?? "";
  const text = value ? (unit === "GB/s" ? gbps(value) : value.toFixed(1)) : line.us[at] ? "no copy" : line.state[at];
  return { value: value || null, kind, text: `${SIGN[kind] ?? ""} ${text}${value && line.state[at] ? " !" : ""}` };
}
function backendsOfCase(group, values, runs, unit, upto) {
  const order = ranking(casesOf(group, upto).cases).map((one) => one.backend), place = (line) => (order.indexOf(line.backend) + 1 || Infinity);
  const lines = [...values.keys()].sort((a, b) => place(a) - place(b));
  const drawn = el("div", { id: "chart", role: "img", ariaLabel: "The table below has the same numbers" });
  requestAnimationFrame(() => draw(drawn, runs, lines.slice(0, LINES), values, unit));
  const make = (some) => table([["run"], ...some.map((line) => [backend(line.backend, ofBackend(group, line.backend)), "n"]), ["what changed", "wide-only"]], runs.map((run, at) => [
    runLink(run), ...some.map((line) => values.get(line).get(run) ?? ""), at ? versionChanges(runs[at - 1], run).join("; ") : ""]).reverse());
  return [drawn, cut(lines, LINES, make, "backends in the table")];
}
function casesOfBackend(group, values, runs, unit) {
  const lines = [...values.keys()].sort((a, b) => a.case - b.case);
  return [table([["case"], ["", "bar"], ["first", "n wide-only"], [`newest, ${unit}`, "n"], ["newest run", "n wide-only"]], lines.map((line) => {
    const own = [...values.get(line)], [run, last] = own.at(-1);
    return [link(group.case[line.case], ofCase(group, line.case)), sparkline(line, values.get(line), runs), own[0][1].text, last, runLink(run)];
  }))];
}
/** The values of a line over all runs as a small curve, whose height is a fifth of its largest value or more. */
function sparkline(line, values, runs) {
  const known = [...values.values()].map((one) => one.value).filter((value) => value), width = 200;
  const high = Math.max(...known), low = Math.min(0.8 * high, ...known);
  const points = runs.map((run, i) => [(i + 0.5) * (width / runs.length), values.get(run)?.value]).filter(([, value]) => value).map(([x, value]) => [x, 24 - (20 * (value - low)) / (high - low)]);
  const made = tint(svg("svg", { viewBox: `0 0 ${width} 28`, preserveAspectRatio: "xMinYMid", class: "spark", "aria-hidden": "true" }), line.backend);
  made.append(svg("polyline", { points: points.map((point) => point.join(",")).join(" ") }), ...points.slice(-1).map(([x, y]) => svg("circle", { cx: x, cy: y, r: 2.5 })));
  return made;
}
function draw(box, runs, lines, values, unit) {
  chart?.destroy();
  chart = null;
  if (!box.isConnected || !lines.length) return;
  const dark = isDark(), names = data.backends, axis = { stroke: getComputedStyle(document.body).color, grid: { stroke: dark ? "#3a4149" : "#d6dae0", width: 1 } };
  chart = new uPlot({
    width: box.clientWidth, height: 300, cursor: { y: false, points: { size: 9 } }, scales: { x: { time: false, range: [-0.5, runs.length - 0.5] } },
    axes: [{ ...axis, values: (_, at) => at.map((i) => (Number.isInteger(i) && runs[i] !== undefined ? day(runs[i]).slice(5) : "")), space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500] },
      { ...axis, label: unit, size: 64 }],
    series: [{}, ...lines.map((line) => ({
      label: names.name[line.backend], stroke: (dark ? names.dark : names.light)[line.backend], width: 2, spanGaps: true, points: { show: runs.length < 60, size: 7 },
    }))],
  }, [runs.map((_, i) => i), ...lines.map((line) => runs.map((run) => values.get(line).get(run)?.value ?? null))], box);
}

function changes(group, upto) {
  const found = (state.all ? data.changes : group.changes).filter((one) => one.run <= upto && (!state.kind || one.kind === state.kind));
  return [el("h2", {}, "Changes"),
    help(`Newest first, with the verdicts of softbench compare: the interval of the change does not contain 1, and the change is beyond ${percent(data.threshold)}, without the drift of copy. Open the page of a run for its samples.`),
    el("div", { className: "controls" }, chooser("all", "Of", [["", named(group)], ["1", "all operations and cards"]], state.all),
      chooser("kind", "Kind", [["", "all"], ...Object.entries(WHAT)], state.kind)),
    found.length ? cut(found, MANY, (some) => el("ul", { className: "changes" }, some.map((one) => changeItem(one))), "changes") : el("p", {}, "There is none.")];
}
function runs() {
  const all = data.runs.run.map((_, i) => i).reverse(), missing = all.some((run) => !data.runs.page[run]);
  return [el("h2", {}, "Runs"),
    help(`Each run with its command, newest first. Choose a date for the page of the run: curves, cells and samples.${missing ? " Without a link: run softbench report FILE, or build the board with --pages." : ""}`),
    data.problems.length ? el("div", { className: "note" }, el("b", {}, `${count(data.problems.length, "file")} not read:`), el("ul", {}, data.problems.map((text) => el("li", {}, text)))) : "",
    cut(all, MANY, (some) => table([["started"], ["card"], ["cells", "n"], ["commit", "wide-only"], ["torch", "wide-only"], ["file", "wide-only"], ["command", "wide-only"]], some.map((run) => [
      runLink(run, data.runs.started[run].slice(0, 16).replace("T", " ") || data.runs.run[run]), data.runs.card[run], data.runs.cells[run], data.runs.commit[run],
      data.runs.torch[run], data.runs.file[run], el("code", {}, data.runs.command[run])])), "runs")];
}

/** The group that fits the address best: the key that was chosen last counts most. */
function chosen() {
  const weight = (group) => Object.keys(KEYS).reduce((sum, key) => sum + (group[key] === state[key] ? (key === state.last ? 8 : key === "op" ? 3 : 2) : 0), 0);
  return data.groups.reduce((best, group) => {
    const [a, b] = [weight(group), weight(best)];
    const [x, y] = [group, best].map((one) => 1000 * runsOf(one).length + one.case.length);
    return a > b || (a === b && x > y) ? group : best;
  });
}
/** A select that changes a key of the address; `others` change with it. */
function chooser(key, label, choices, value, others = {}) {
  const select = el("select", { name: key, onchange: () => go({ ...others, [key]: select.value, last: key in KEYS ? key : state.last }) }, choices.map(([of, text]) => el("option", { value: of }, text)));
  select.value = value ?? "";
  return el("label", {}, `${label} `, select);
}
/** Renew a chooser. A select whose choices are the same stays, and keeps the focus and the letters that were typed. */
function renew(there, made) {
  const [select, next] = [there, made].map((one) => one.querySelector("select"));
  if (select.innerHTML === next.innerHTML) select.value = next.value;
  else there.replaceWith(made);
}
function go(changes) {
  location.hash = address({ ...state, ...changes });
}
function read() {
  state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!(state.view in VIEWS)) state.view = "now";
}
function show() {
  const focused = document.activeElement?.name;
  read();
  const group = chosen();
  Object.assign(state, keysOf(group));
  const of = runsOf(group), asked = data.runs.run.indexOf(state.upto ?? ""), upto = of.includes(asked) ? asked : data.runs.run.length - 1;
  if (upto !== asked) state.upto = "";
  const values = (key) => [...new Set(data.groups.map((one) => one[key]))].map((one) => [one, one]);
  const choosers = [...Object.entries(KEYS).map(([key, label]) => chooser(key, label, values(key), state[key])),
    chooser("upto", "As of", [["", "the newest run"], ...[...of].reverse().map((run) => [data.runs.run[run], `${short(run)}${data.runs.torch[run] && `, torch ${data.runs.torch[run]}`}`])], state.upto)];
  if ($("choose").children.length) choosers.forEach((made, i) => renew($("choose").children[i], made));
  else $("choose").append(...choosers);
  $("choose").hidden = state.view === "runs";
  $("views").replaceChildren(...Object.entries(VIEWS).map(([view, name]) => {
    const made = link(name, { view, case: view === "history" ? state.case : "", backend: view === "history" ? state.backend : "" });
    if (view === state.view) made.ariaCurrent = "page";
    return made;
  }));
  $("view").replaceChildren(...{ now, operations, history, changes, runs }[state.view](group, upto).filter((part) => part !== ""));
  if (focused) document.getElementsByName(focused)[0]?.focus();
  $("said").textContent = `${VIEWS[state.view]}: ${named(group)}, ${group.card}`;
}
(async () => {
  data = await unpack($("data").textContent);
  for (const group of data.groups) {
    group.changes = data.changes.filter((one) => data.groups[one.group] === group);
    group.verdicts = new Map(group.changes.flatMap((one) => one.case.map((number) => [[one.run, one.backend, number].join(), one.kind])));
  }
  const cards = new Set(data.runs.card), last = data.runs.run.length - 1;
  $("about").textContent = `${count(last + 1, "run")} on ${count(cards.size, "card")}, ${day(0)} to ${day(last)}`;
  $("words").append(...Object.entries(data.words).flatMap(([word, meaning]) => [el("dt", {}, word), el("dd", {}, meaning)]));
  document.querySelector(".skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };
  addEventListener("hashchange", show);
  addEventListener("resize", () => { if (chart?.root.isConnected) chart.setSize({ width: $("chart").clientWidth, height: 300 }); });
  themeButton($("theme"), show);
  show();
})();
