// The tabs that compare: two files, and the gate's verdicts.
(() => {
  const { make } = page;
  const percent = (ratio) => `${ratio >= 1 ? "+" : ""}${+(100 * (ratio - 1)).toPrecision(2)}%`;

  /** Ratios with their intervals around 1, a row each: label, text, low, value, high, kind, hollow, backend and what a click opens. */
  const forest = (root, rows, { margin = 0, left, right }) => {
    const ends = rows.flatMap(({ low, value, high }) => [low, value, high]).filter((one) => one > 0).map(Math.log).sort((a, b) => a - b);
    const reach = Math.min(Math.max(1.3 * Math.max(margin, 0.02), Math.abs(ends[0] ?? 0), Math.abs(ends.at(-1) ?? 0)) * 1.05, Math.log(4));
    const place = (ratio) => 100 * (0.5 + 0.5 * Math.max(-1, Math.min(1, Math.log(ratio) / reach)));
    const span = (name, low, high) => {
      const made = make("i", "", { class: name });
      made.style.left = `${place(low)}%`;
      made.style.width = `${place(high) - place(low)}%`;
      return made;
    };
    const box = make("div", "", { class: "forest" });
    box.append(
      make(
        "div",
        [
          make("span", ""),
          make("span", [make("span", `← ${left}, ${percent(Math.exp(-reach))}`), make("span", `${right}, ${percent(Math.exp(reach))} →`)], {
            class: "ways",
          }),
          make("span", ""),
        ],
        { class: "line head", "aria-hidden": "true" },
      ),
    );
    for (const { label, text, low, value, high, kind, hollow, open } of rows) {
      const track = make(
        "span",
        [
          ...(margin ? [span("margin", 1 / (1 + margin), 1 + margin)] : []),
          make("i", "", { class: "one" }),
          span("reach", low ?? value, high ?? value),
        ],
        { class: "track" },
      );
      const dot = make("i", "", { class: hollow ? "dot hollow" : "dot" });
      dot.style.left = `${place(value)}%`;
      track.append(dot);
      const line = make(open ? "button" : "div", [make("span", label), track, make("span", text, { class: "n" })], {
        class: `line ${kind}`,
        ...(open ? { type: "button" } : {}),
      });
      if (open) line.addEventListener("click", open);
      box.append(line);
    }
    root.append(box);
  };

  const quantile = (sorted, share) => sorted[Math.round(share * (sorted.length - 1))];
  const VERDICT_KIND = { faster: "good", slower: "bad", same: "", yardstick: "plain" };

  page.first.comparison = () => {
    const { pairs } = page.data, root = page.find("#pair-figure");
    const by = new Map();
    pairs.verdict.forEach((verdict, i) => {
      if (pairs.ratio[i] === null || verdict === "yardstick") return;
      if (!by.has(pairs.backend[i])) by.set(pairs.backend[i], []);
      by.get(pairs.backend[i]).push(i);
    });
    const change = (i) => pairs.change[i] ?? pairs.ratio[i];
    const rows = [...by].map(([backend, some]) => {
      const sorted = some.map(change).sort((a, b) => a - b);
      const [slower, faster] = ["slower", "faster"].map((verdict) => some.filter((i) => pairs.verdict[i] === verdict).length);
      const changed = [slower && `${slower} slower`, faster && `${faster} faster`].filter(Boolean).join(", ") || "same within noise";
      return {
        label: backend,
        value: quantile(sorted, 0.5),
        low: quantile(sorted, 0.1),
        high: quantile(sorted, 0.9),
        kind: slower ? "bad" : faster ? "good" : "",
        text: `${percent(quantile(sorted, 0.5))}; ${changed} of ${some.length}`,
        order: Math.max(slower, faster),
        open: () => {
          page.find("#pair-backend").value = backend;
          filter();
        },
      };
    }).sort((a, b) => b.order - a.order);
    if (rows.length) {
      root.append(make("h3", "Change of each backend, relative to copy"));
      forest(root, rows, { left: "B is slower", right: "B is faster" });
      root.append(
        make("p", "The dot is the median over a backend's cells; the bar holds 80 % of them. A click shows its cells below.", {
          class: "help",
        }),
      );
    }
    const list = page.list(page.find("#pair-list"), {
      label: "Comparison",
      count: pairs.verdict.length,
      kind: (i) =>
        VERDICT_KIND[pairs.verdict[i]] ?? (pairs.verdict[i] === "B: missing" || pairs.verdict[i] === "A: missing" ? "plain" : "warn"),
      open: (i, focus) => {
        if (pairs.cell[i] !== null) page.panel.open(pairs.cell[i], focus);
      },
      columns: [
        { name: "backend", term: "backend", widest: innerWidth < 600 ? 12 : 28, text: (i) => pairs.backend[i] },
        {
          name: "without drift",
          term: "drift",
          number: true,
          key: (i) => pairs.change[i],
          text: (i) =>
            pairs.change[i] === null ? "" : `${pairs.change[i].toFixed(3)} (${pairs.low[i].toFixed(3)} to ${pairs.high[i].toFixed(3)})`,
        },
        { name: "verdict", term: "verdict", text: (i) => pairs.verdict[i] },
        { name: "case", term: "case", text: (i) => `${pairs.case[i]} ${pairs.unit[i]}`.trim() },
        { name: "A, GB/s", term: "bandwidth", number: true, key: (i) => pairs.a[i], text: (i) => gbps(pairs.a[i]) },
        { name: "B, GB/s", term: "bandwidth", number: true, key: (i) => pairs.b[i], text: (i) => gbps(pairs.b[i]) },
        { name: "B/A", number: true, key: (i) => pairs.ratio[i], text: (i) => pairs.ratio[i]?.toFixed(3) ?? "" },
      ],
    });
    const select = page.find("#pair-backend"), verdicts = page.find("#pair-verdict");
    const options = (element, texts) => element.append(...[...new Set(texts)].sort().map((text) => make("option", text)));
    options(select, pairs.backend);
    options(verdicts, pairs.verdict);
    const filter = () =>
      list.show(
        list.every.filter(
          (i) => (!select.value || pairs.backend[i] === select.value) && (!verdicts.value || pairs.verdict[i] === verdicts.value),
        ),
      );
    page.find("#pair-filter").hidden = false;
    page.find("#pair-filter").addEventListener("input", filter);
    page.find("#pair-filter").addEventListener("submit", (event) => event.preventDefault());
  };

  const STATE_KIND = { slower: "bad", broken: "bad", missing: "bad", failed: "bad", clock: "warn", ambiguous: "warn", faster: "good", new: "plain" };
  page.first.gate = () => {
    const { verdicts } = page.data, MOST = 40;
    const kind = (i) => verdicts.gated[i] ? STATE_KIND[verdicts.state[i]] ?? "" : "plain";
    const fails = (i) => verdicts.gated[i] && STATE_KIND[verdicts.state[i]] === "bad";
    const known = verdicts.ratio.map((_, i) => i).filter((i) => verdicts.ratio[i] !== null);
    // Those that fail, then those furthest from 1.
    const drawn = new Set(
      [...known].sort((a, b) => fails(b) - fails(a) || Math.abs(verdicts.ratio[b] - 1) - Math.abs(verdicts.ratio[a] - 1)).slice(0, MOST),
    );
    const open = (i) => verdicts.cell[i] === null ? undefined : () => page.panel.open(verdicts.cell[i]);
    if (drawn.size) {
      const root = page.find("#gate-figure");
      forest(
        root,
        known
          .filter((i) => drawn.has(i))
          .map((i) => ({
            label: `${verdicts.backend[i]} ${verdicts.case[i]}`,
            value: verdicts.ratio[i],
            low: verdicts.low[i],
            high: verdicts.high[i],
            kind: kind(i),
            hollow: !verdicts.gated[i],
            text: `${verdicts.ratio[i].toFixed(3)} ${verdicts.state[i]}`,
            open: open(i),
          })),
        { margin: verdicts.margin[0], left: "new is faster", right: "new is slower" },
      );
      root.append(
        make(
          "p",
          [
            "Latency of new over old, with its interval. Grey: the ", page.term("margin"), ". Hollow: ", page.term("advisory cell", "advisory"), ".",
            known.length > MOST ? ` ${known.length - MOST} cells nearest to 1 are in the table only.` : "",
          ],
          { class: "help" },
        ),
      );
    }
    page.list(page.find("#verdict-list"), {
      label: "Verdicts",
      count: verdicts.state.length,
      kind,
      open: (i, focus) => {
        if (verdicts.cell[i] !== null) page.panel.open(verdicts.cell[i], focus);
      },
      columns: [
        { name: "state", term: "verdict", text: (i) => verdicts.state[i] + (verdicts.gated[i] ? "" : " (advisory)") },
        { name: "new/old", number: true, key: (i) => verdicts.ratio[i], text: (i) => verdicts.ratio[i]?.toFixed(3) ?? "" },
        { name: "backend", term: "backend", widest: 28, text: (i) => verdicts.backend[i] },
        { name: "case", term: "case", text: (i) => verdicts.case[i] },
        {
          name: "95 % interval",
          term: "interval",
          number: true,
          key: (i) => verdicts.low[i],
          text: (i) => (verdicts.low[i] === null ? "" : `${verdicts.low[i].toFixed(3)} to ${verdicts.high[i].toFixed(3)}`),
        },
        { name: "n", text: (i) => verdicts.n[i] },
        { name: "reason", widest: 90, text: (i) => verdicts.reason[i] },
      ],
    });
  };
})();
