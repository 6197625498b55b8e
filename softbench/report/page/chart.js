// A figure of lines, drawn by uPlot. Points, names beside lines and the strip of the fastest are drawn here.

/** The backends whose lines are hidden in all figures, and the one whose name the mouse or the focus is on. */
page.hidden = new Set();
page.lit = null;

page.chart = (() => {
  const NAME = "12px system-ui, sans-serif",
    SMALL = "11px system-ui, sans-serif",
    STRIP = 18;

  const logTicks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of [1, 2, 5]) if (step * 10 ** power >= low && step * 10 ** power <= high) found.push(step * 10 ** power);
    }
    return found.length > 8 ? found.filter((value) => String(value).replace(/[0.]/g, "")[0] === "1") : found;
  };
  /** As many of the places as have room, the powers of two first. */
  const placeTicks = (u, places, position, width) => {
    const chosen = [];
    const ordered = [...places].sort((a, b) => Number.isInteger(Math.log2(b)) - Number.isInteger(Math.log2(a)) || a - b);
    for (const place of ordered) {
      if (chosen.every((other) => Math.abs(position(other) - position(place)) > width)) chosen.push(place);
    }
    return chosen.sort((a, b) => a - b);
  };

  /**
   * A figure in `root`. `series` have backend, label, yardstick, faint, dash, width and points of x, y, cell, hollow and text. `strip` has places with the
   * backends that are the fastest there.
   */
  return (root, { label, series, axis, y, strip = [], height = 340, open = page.panel.open }) => {
    const xs = [...new Set(series.flatMap((one) => one.points.map((point) => point.x)))].sort((a, b) => a - b);
    const column = new Map(xs.map((x, i) => [x, i]));
    const values = series.map((one) => {
      const found = new Array(xs.length).fill(null);
      one.points.forEach((point) => {
        found[column.get(point.x)] = point.y;
      });
      return found;
    });
    const wide = xs.at(-1) >= (xs.length <= 8 ? 4 : 32) * xs[0];
    const shown = (i) => !page.hidden.has(series[i].backend);
    const faint = (one) => one.faint && page.lit !== one.backend;
    const colour = (one) => page.colour(one.backend) + (faint(one) ? "59" : "");
    const ys = () => values.flatMap((some, i) => (shown(i) ? some.filter((value) => value !== null) : []));
    const range = () => {
      const some = ys().sort((a, b) => a - b);
      if (!some.length) return y.log ? [1, 10] : [0, 1];
      const [low, high] = [some[0], some.at(-1)];
      if (y.log) return [low / 1.25, high * 1.25];
      if (y.near) {
        // The best at each place, and what is up to a tenth below it.
        const best = xs.map((_, j) => Math.max(...values.map((some, i) => (shown(i) && some[j] !== null ? some[j] : 0)))).filter(Boolean);
        return [0.9 * Math.min(...best), 1.02 * high];
      }
      const bottom = y.zero && low < 0.75 * high ? 0 : Math.max(0, low - 0.08 * (high - low) - 0.02 * high);
      return [bottom, high + 0.06 * (high - bottom)];
    };
    const narrow = () => root.clientWidth < 560;
    const box = page.make("div", "", {
      class: "canvas",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "figure",
      "aria-label": `${label}. The arrow keys go to its points, Enter opens a cell.`,
    });
    root.append(box);
    let u = null;

    const at = (i, j) => [u.valToPos(xs[j], "x", true), u.valToPos(values[i][j], "y", true)];
    const inside = ([px, py]) =>
      px >= u.bbox.left - 1 && px <= u.bbox.left + u.bbox.width + 1 && py >= u.bbox.top - 1 && py <= u.bbox.top + u.bbox.height + 1;

    const drawPoints = (context, ratio) => {
      series.forEach((one, i) => {
        if (!shown(i)) return;
        const path = new Path2D(page.MARKERS[page.marker(one.backend)]);
        const size = (one.points.length > 60 ? 0.45 : one.yardstick ? 0.5 : 0.8) * ratio;
        one.points.forEach((point) => {
          const place = at(i, column.get(point.x));
          if (point.y === null || !inside(place)) return;
          context.save();
          context.translate(...place);
          context.scale(size, size);
          context.fillStyle = point.hollow ? page.css("--paper") : colour(one);
          context.strokeStyle = colour(one);
          context.lineWidth = 1.6;
          context.fill(path);
          if (point.hollow) context.stroke(path);
          context.restore();
        });
      });
    };

    /** The names of lines at their right ends; those of the fastest first where there is no room for all. */
    const drawNames = (context, ratio) => {
      const wins = new Map();
      strip.forEach(({ names }) => names.forEach((name) => wins.set(name, (wins.get(name) ?? 0) + 1)));
      const last = new Map();
      series.forEach((one, i) => {
        const j = shown(i) && !faint(one) ? values[i].findLastIndex((value, k) => value !== null && inside(at(i, k))) : -1;
        if (j < 0 || j <= (last.get(one.label)?.j ?? -1)) return;
        last.set(one.label, { one, i, j, y: at(i, j)[1], rank: wins.get(one.backend) ?? (one.yardstick ? 0.5 : 0) });
      });
      const ends = [...last.values()];
      const step = 14 * ratio;
      const room = narrow() ? 4 : Math.floor(u.bbox.height / step);
      const kept = ends
        .sort((a, b) => b.rank - a.rank || a.y - b.y)
        .slice(0, room)
        .sort((a, b) => a.y - b.y);
      kept.forEach((end, k) => {
        end.at = k ? Math.max(end.y, kept[k - 1].at + step) : end.y;
      });
      const over = kept.length ? kept.at(-1).at - (u.bbox.top + u.bbox.height) : 0;
      if (over > 0) {
        let limit = u.bbox.top + u.bbox.height;
        for (const end of [...kept].reverse()) {
          end.at = Math.min(end.at, limit);
          limit = end.at - step;
        }
      }
      context.textAlign = "left";
      context.textBaseline = "middle";
      const left = u.bbox.left + u.bbox.width;
      kept.forEach(({ one, i, j, y: from, at: to }) => {
        const [px] = at(i, j);
        context.strokeStyle = page.css("--rule");
        context.lineWidth = ratio;
        context.beginPath();
        context.moveTo(px + 5 * ratio, from);
        context.lineTo(left + 8 * ratio, to);
        context.stroke();
        context.save();
        context.translate(left + 14 * ratio, to);
        context.scale(ratio, ratio);
        context.fillStyle = colour(one);
        context.fill(new Path2D(page.MARKERS[page.marker(one.backend)]));
        context.restore();
        context.font = scaled(wins.has(one.backend) ? `600 ${NAME}` : NAME, ratio);
        context.fillStyle = page.css("--ink");
        context.fillText(short(one.label), left + 22 * ratio, to);
      });
    };

    /** Along the top: which backend is fastest at each place, in its colour; several where they tie. */
    const drawStrip = (context, ratio) => {
      const top = u.bbox.top - (STRIP + 5) * ratio;
      const [left, right] = [u.bbox.left, u.bbox.left + u.bbox.width];
      const places = strip.map(({ x }) => u.valToPos(x, "x", true));
      const begin = places.map((px, i) => (i ? (places[i - 1] + px) / 2 : left));
      const groups = [];
      strip.forEach(({ names }, i) => {
        const text = names.join(" or ");
        if (groups.at(-1)?.text === text) groups.at(-1).end = begin[i + 1] ?? right;
        else groups.push({ text, names, begin: begin[i], end: begin[i + 1] ?? right });
      });
      groups.forEach(({ text, names, begin: a, end: b }) => {
        const [from, to] = [Math.max(a, left), Math.min(b, right)];
        if (to <= from) return;
        names.slice(0, 4).forEach((name, k, some) => {
          context.fillStyle = page.colour(name);
          context.globalAlpha = 0.3;
          context.fillRect(from, top + (k * STRIP * ratio) / some.length, to - from, (STRIP * ratio) / some.length);
          context.globalAlpha = 1;
        });
        context.strokeStyle = page.css("--paper");
        context.lineWidth = 2 * ratio;
        context.strokeRect(from, top, to - from, STRIP * ratio);
        context.font = scaled(`600 ${SMALL}`, ratio);
        context.fillStyle = page.css("--ink");
        context.textAlign = "center";
        context.textBaseline = "middle";
        const fits = [text, names.length > 2 ? `${names.length} tie` : "", names.length === 1 ? text.slice(0, 6) : "tie"].find(
          (one) => one && context.measureText(one).width < to - from - 6 * ratio,
        );
        if (fits) context.fillText(fits, (from + to) / 2, top + (STRIP * ratio) / 2 + ratio);
      });
      context.font = scaled(SMALL, ratio);
      context.fillStyle = page.css("--quiet");
      context.textAlign = "right";
      if (strip.length) context.fillText("fastest", left - 6 * ratio, top + (STRIP * ratio) / 2 + ratio);
    };

    const scaled = (font, ratio) => font.replace(/([\d.]+)px/, (_, size) => `${size * ratio}px`);
    const short = (text) => (text.length > (narrow() ? 14 : 26) ? `${text.slice(0, narrow() ? 13 : 25)}…` : text);
    const measure = document.createElement("canvas").getContext("2d");
    const margin = () => {
      measure.font = `600 ${NAME}`;
      const widths = series.filter((_, i) => shown(i)).map((one) => measure.measureText(short(one.label)).width);
      return Math.min(narrow() ? 120 : 230, 26 + Math.max(20, ...widths));
    };

    const draw = () => {
      u?.destroy();
      box.replaceChildren();
      const grid = { stroke: page.css("--grid"), width: 1 };
      const axes = { font: SMALL, stroke: page.css("--quiet"), grid, ticks: { ...grid, size: 4 } };
      const tick = 8 * String(xs.at(-1)).length;
      u = new uPlot(
        {
          width: Math.max(280, root.clientWidth),
          height: narrow() ? Math.min(height, 280) : height,
          padding: [strip.length ? STRIP + 12 : 10, margin(), 0, 0],
          legend: { show: false },
          cursor: { points: { show: false }, y: false, x: false, drag: { x: true, y: true, uni: 25 } },
          scales: {
            x: {
              time: false,
              distr: wide ? 3 : 1,
              log: 2,
              range: (_, low, high) =>
                low === high
                  ? [low - 0.5, high + 0.5]
                  : wide
                    ? [low / 1.06, high * 1.06]
                    : [low - 0.03 * (high - low), high + 0.03 * (high - low)],
            },
            y: { distr: y.log ? 3 : 1, range: (_, low, high, key) => zoomed ?? range() },
          },
          axes: [
            {
              ...axes,
              size: 26,
              label: axis,
              labelSize: 16,
              labelFont: SMALL,
              labelGap: 0,
              splits: (self, _, low, high) =>
                placeTicks(
                  self,
                  xs.filter((x) => x >= low && x <= high),
                  (x) => self.valToPos(x, "x"),
                  tick,
                ),
              filter: (_, splits) => splits,
              values: (_, splits) => splits.map(String),
            },
            {
              ...axes,
              size: 52,
              label: y.label,
              labelSize: 16,
              labelFont: SMALL,
              labelGap: 0,
              ...(y.log ? { splits: (_, __, low, high) => logTicks(low, high), filter: (_, splits) => splits } : {}),
              values: (_, splits) => splits.map((value) => (y.text ? y.text(value) : String(+value.toPrecision(6)))),
            },
          ],
          series: [
            {},
            ...series.map((one, i) => ({
              label: one.label,
              show: shown(i),
              spanGaps: true,
              stroke: colour(one),
              width: faint(one) ? 1 : one.width,
              dash: one.dash ?? [],
              points: { show: false },
            })),
          ],
          hooks: {
            setSelect: [
              (self) => {
                const { left, top, width, height: tall } = self.select;
                zoomed =
                  tall > 0 && width > 0 && tall < self.over.clientHeight
                    ? [self.posToVal(top + tall, "y"), self.posToVal(top, "y")]
                    : zoomed;
              },
            ],
            draw: [
              (self) => {
                u = self;
                const { ctx } = self,
                  ratio = devicePixelRatio;
                ctx.save();
                ctx.setLineDash([]);
                drawStrip(ctx, ratio);
                if (y.one) {
                  ctx.strokeStyle = page.css("--ink");
                  ctx.lineWidth = ratio;
                  const level = self.valToPos(1, "y", true);
                  if (level > self.bbox.top && level < self.bbox.top + self.bbox.height) {
                    ctx.beginPath();
                    ctx.moveTo(self.bbox.left, level);
                    ctx.lineTo(self.bbox.left + self.bbox.width, level);
                    ctx.stroke();
                  }
                }
                drawPoints(ctx, ratio);
                drawNames(ctx, ratio);
                ctx.restore();
              },
            ],
          },
        },
        [xs, ...values],
        box,
      );
      u.over.addEventListener("dblclick", () => {
        zoomed = null;
        u.setData(u.data);
      });
    };
    let zoomed = null;
    draw();
    page.redraws.add(draw);
    let width = root.clientWidth;
    const resized = new ResizeObserver(() => {
      if (root.clientWidth && Math.abs(root.clientWidth - width) > 2) {
        width = root.clientWidth;
        draw();
      }
    });
    resized.observe(root);

    // Points: the nearest to the mouse, or the one that the arrow keys chose.
    const text = (i, j) => {
      const point = series[i].points.find(({ x }) => x === xs[j]);
      return point.text ?? page.describe(point.cell);
    };
    const cell = (i, j) => series[i].points.find(({ x }) => x === xs[j]).cell;
    const nearest = (event) => {
      const ratio = devicePixelRatio,
        over = u.over.getBoundingClientRect();
      const [mx, my] = [(event.clientX - over.left) * ratio + u.bbox.left, (event.clientY - over.top) * ratio + u.bbox.top];
      let best = null;
      values.forEach(
        (some, i) =>
          shown(i) &&
          some.forEach((value, j) => {
            if (value === null) return;
            const [px, py] = at(i, j);
            const distance = Math.hypot(px - mx, py - my);
            if (distance < 24 * ratio && (!best || distance < best.distance)) best = { i, j, distance };
          }),
      );
      return best;
    };
    const boxOf = ({ i, j }) => {
      const over = box.getBoundingClientRect(),
        [px, py] = at(i, j);
      return {
        left: over.left + px / devicePixelRatio - 6,
        top: over.top + py / devicePixelRatio - 6,
        bottom: over.top + py / devicePixelRatio + 6,
        width: 12,
      };
    };
    const ring = page.make("div", "", { class: "ring", hidden: "" });
    const speak = (point) => {
      if (!point) {
        page.tip.hide();
        ring.hidden = true;
        return;
      }
      const place = boxOf(point),
        over = box.getBoundingClientRect();
      if (!ring.isConnected) box.append(ring);
      ring.hidden = false;
      ring.style.left = `${place.left - over.left}px`;
      ring.style.top = `${place.top - over.top}px`;
      page.tip.show(text(point.i, point.j), place);
    };
    let chosen = null;
    box.addEventListener("mousemove", (event) => speak(nearest(event)));
    box.addEventListener("mouseleave", () => speak(null));
    box.addEventListener("click", (event) => {
      const found = nearest(event);
      if (found && cell(found.i, found.j) !== undefined) open(cell(found.i, found.j));
    });
    box.addEventListener("blur", () => speak(null));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (event.key === "Enter" && chosen && cell(chosen.i, chosen.j) !== undefined) open(cell(chosen.i, chosen.j));
      if (!step) return;
      event.preventDefault();
      const visible = series.map((_, i) => i).filter((i) => shown(i) && values[i].some((value) => value !== null));
      if (!visible.length) return;
      if (!chosen || !visible.includes(chosen.i)) chosen = { i: visible[0], j: values[visible[0]].findIndex((value) => value !== null) };
      else if (step[1]) {
        let { j } = chosen;
        do j = (j + step[1] + xs.length) % xs.length;
        while (values[chosen.i][j] === null);
        chosen = { i: chosen.i, j };
      } else {
        // Up and down go to the next line at this place, by value.
        const here = visible.filter((i) => values[i][chosen.j] !== null).sort((a, b) => values[b][chosen.j] - values[a][chosen.j]);
        chosen = { i: here[(here.indexOf(chosen.i) + step[0] + here.length) % here.length], j: chosen.j };
      }
      speak(chosen);
      page.say(text(chosen.i, chosen.j));
    });
    return {
      remove: () => {
        page.redraws.delete(draw);
        resized.disconnect();
        u.destroy();
        box.remove();
      },
    };
  };
})();

/** A legend whose names hide and show their lines in all figures. `entries` have backend, label and dash; `key` explains dashes. */
page.legend = (root, entries, key = []) => {
  const sample = (dash, backend) => {
    const line = svg("line", { x1: 1, x2: 33, y1: 6, y2: 6, "stroke-dasharray": dash.join(" ") });
    const made = svg(
      "svg",
      { width: 34, height: 12, "aria-hidden": "true" },
      backend ? [line, svg("path", { d: page.MARKERS[page.marker(backend)], transform: "translate(17 6)" })] : [line],
    );
    return backend ? page.tint(made, backend) : made;
  };
  const list = page.make("div", "", { class: "legend" });
  let waiting = 0;
  const light = (backend) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { page.lit = backend; page.redraw(); }, 120);
  };
  for (const { backend, label, dash } of entries) {
    const button = page.make("button", [sample(dash, backend), label], {
      type: "button",
      "aria-pressed": String(!page.hidden.has(backend)),
      "data-name": backend,
    });
    button.addEventListener("click", () => {
      const hide = !page.hidden.has(backend);
      if (hide) page.hidden.add(backend); else page.hidden.delete(backend);
      page
        .all(".legend button")
        .filter((other) => other.dataset.name === backend)
        .forEach((other) => other.setAttribute("aria-pressed", String(!hide)));
      page.redraw();
    });
    for (const begin of ["mouseenter", "focus"]) button.addEventListener(begin, () => light(backend));
    for (const end of ["mouseleave", "blur"]) button.addEventListener(end, () => light(null));
    list.append(button);
  }
  for (const [dash, text] of key) list.append(page.make("span", [sample(dash, null), text], { class: "key" }));
  root.append(list);
};
