// A table of any number of rows, of which only those near the screen are elements. It sorts by its headings.

/**
 * A table in `root`. `columns` have name, text of a row, key to sort by, and may have number (right-aligned), term, title and widest (in letters).
 * `open` is called with the row that a click or Enter chooses, `kind` gives its class. Returns how to show some rows, and one row.
 */
page.list = (root, { label, columns, count, kind = () => "", open }) => {
  const MARGIN = 12;
  const table = page.make("table", "", { class: "list", "aria-label": label });
  const head = page.make("tr");
  const body = page.make("tbody");
  const sizes = page.make("colgroup");
  const spaces = [
    page.make("tr", [page.make("td", "", { colspan: columns.length })], { class: "space", "aria-hidden": "true" }),
    page.make("tr", [page.make("td", "", { colspan: columns.length })], { class: "space", "aria-hidden": "true" }),
  ];
  const scroller = page.make("div", [table], { class: "scroller", tabindex: "0", role: "region", "aria-label": label });
  table.append(sizes, page.make("thead", [head]), body);
  root.append(scroller);

  const every = Array.from({ length: count }, (_, i) => i);
  let shown = every, sorted = every, by = null, down = false, selected = null, height = 28, all = false;

  const sample = every.filter((i) => i % Math.max(1, Math.floor(count / 2000)) === 0);
  columns.forEach((column, i) => {
    const longest = Math.max(column.name.length + 3, ...sample.map((row) => String(column.text(row)).length + (i ? 0 : 1)));
    const col = page.make("col");
    col.style.width = `${Math.min(column.widest ?? 46, longest) * 7.7 + 22}px`;
    sizes.append(col);
    const button = page.make("button", column.name, { type: "button", ...(column.term ? { "data-term": column.term } : {}) });
    const cell = page.make("th", [button], { scope: "col", ...(column.number ? { class: "n" } : {}) });
    button.addEventListener("click", () => {
      down = by === column && !down;
      by = column;
      [...head.cells].forEach((other) => other.removeAttribute("aria-sort"));
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort();
      scroller.scrollTop = 0;
      render();
      page.say(`Sorted by ${column.name}, ${down ? "descending" : "ascending"}`);
    });
    head.append(cell);
  });

  const missing = (value) => value === null || value === undefined || value === "";
  const sort = () => {
    if (!by) { sorted = shown; return; }
    const keyed = shown.map((row) => [(by.key ?? by.text)(row), row]);
    // Rows without a value stay at the end in both orders.
    keyed.sort(
      ([a], [b]) =>
        missing(a) - missing(b) ||
        (down ? -1 : 1) * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))),
    );
    sorted = keyed.map(([, row]) => row);
  };
  const make = (row) => page.make("tr", columns.map((column, i) => {
    const text = String(column.text(row));
    const cell = page.make(i ? "td" : "th", i || !open ? text : [page.make("button", text, { type: "button" })], i ? {} : { scope: "row" });
    if (column.number) cell.className = "n";
    const title = column.title ? column.title(row) : text.length > 12 ? text : "";
    if (title) cell.title = title;
    return cell;
  }), { "data-row": row, class: kind(row) });
  let made = new Map();
  const render = () => {
    const from = all ? 0 : Math.max(0, Math.floor(scroller.scrollTop / height) - MARGIN);
    const to = all
      ? Math.min(sorted.length, all)
      : Math.min(sorted.length, from + Math.ceil((scroller.clientHeight || 700) / height) + 2 * MARGIN);
    spaces[0].firstChild.style.height = `${from * height}px`;
    spaces[1].firstChild.style.height = all ? "0px" : `${(sorted.length - to) * height}px`;
    const focused = document.activeElement?.closest?.("tr")?.dataset.row;
    // A row that is shown already keeps its element, so that a click or the focus on it is not lost.
    made = new Map(sorted.slice(from, to).map((row) => [row, made.get(row) ?? make(row)]));
    let place = from + 1;
    for (const [row, line] of made) {
      line.setAttribute("aria-rowindex", place += 1);
      line.classList.toggle("selected", row === selected);
      line.querySelector("button")?.setAttribute("tabindex", row === (made.has(selected) ? selected : sorted[from]) ? "0" : "-1");
    }
    body.replaceChildren(spaces[0], ...made.values(), spaces[1]);
    table.setAttribute("aria-rowcount", sorted.length + 1);
    if (focused !== undefined) page.find(`tr[data-row="${focused}"] button`, body)?.focus({ preventScroll: true });
  };
  const measure = () => {
    const line = page.find("tr[data-row]", body);
    if (line?.offsetHeight && Math.abs(line.offsetHeight - height) > 0.5) { height = line.offsetHeight; render(); }
  };
  let waiting = false;
  scroller.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; render(); });
  });
  let tall = 0;
  new ResizeObserver(() => {
    if (scroller.clientHeight === tall) return;
    tall = scroller.clientHeight;
    render();
    measure();
  }).observe(scroller);

  const go = (row, focus = true) => {
    selected = row;
    const place = sorted.indexOf(row);
    const headed = table.tHead.offsetHeight;
    if (place * height < scroller.scrollTop || (place + 1) * height + headed > scroller.scrollTop + scroller.clientHeight)
      scroller.scrollTop = place * height - scroller.clientHeight / 2;
    render();
    if (focus) page.find(`tr[data-row="${row}"] button`, body)?.focus({ preventScroll: true });
  };
  if (open) {
    body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-row]");
      if (!line || getSelection().toString()) return;
      go(Number(line.dataset.row));
      open(Number(line.dataset.row));
    });
    body.addEventListener("keydown", (event) => {
      const line = event.target.closest("tr[data-row]");
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
      if (!line || !step) return;
      event.preventDefault();
      const place = Math.min(sorted.length - 1, Math.max(0, sorted.indexOf(Number(line.dataset.row)) + step));
      go(sorted[place]);
      if (page.panel.isOpen()) open(sorted[place], false);
    });
  }
  // A printer gets the first rows, all of them elements.
  page.printers.push(() => {
    all = page.PRINTED_ROWS;
    render();
    const undo = page.printNote(root, sorted.length - all, "rows");
    return () => {
      undo();
      all = 0;
      render();
    };
  });
  sort();
  render();
  measure();
  return {
    /** Show these rows only, in the chosen order. */
    show(rows) { shown = rows; sort(); scroller.scrollTop = 0; render(); },
    every, go,
    rows: () => sorted,
  };
};
