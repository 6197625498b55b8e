// The table of cells: sort by a heading, filter, and open a row to what lies under it.
page.sortable = (table, key) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = page.make("button", head.textContent, { type: "button" });
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      table.dispatchEvent(new Event("sorting"));
      const keyed = [...body.rows].map((row) => [key(row, column, head), row]);
      const missing = (value) => value === null || value === "";
      // Rows without a value stay at the end in both orders.
      keyed.sort(([a], [b]) => missing(a) - missing(b) || (down ? -1 : 1) * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b))));
      body.append(...keyed.map(([, row]) => row));
      page.say(`Sorted by ${button.textContent}, ${down ? "descending" : "ascending"}`);
    });
  });
};

page.cells = (() => {
  const table = page.find("#cell-table");
  const rows = [...table.tBodies[0].rows];
  const byCell = new Map(rows.map((row) => [Number(row.dataset.c), row]));

  const number = (value) => value === "inf" ? Infinity : value;
  const key = (row, column, head) => {
    const cell = Number(row.dataset.c);
    const name = head.dataset.sort;
    if (name === "pass") return page.pass(cell);
    if (name === "shape") return page.value(cell, "M") * 2 ** 24 + page.value(cell, "N");
    return number(page.value(cell, name));
  };

  const close = (row) => {
    if (row.nextElementSibling?.classList.contains("detail")) row.nextElementSibling.remove();
    page.find("button.open", row)?.setAttribute("aria-expanded", "false");
  };
  const open = (row) => {
    close(row);
    const detail = page.make("tr", "", { class: "detail" });
    const place = page.make("td", "", { colspan: row.cells.length });
    place.append(page.detail(Number(row.dataset.c)));
    detail.append(place);
    row.after(detail);
    page.find("button.open", row).setAttribute("aria-expanded", "true");
  };
  const opener = (row) => {
    const first = row.cells[0];
    const button = page.make("button", first.textContent, { type: "button", class: "open", "aria-expanded": "false" });
    first.replaceChildren(button);
  };
  page.first.cells = () => rows.forEach(opener);
  table.tBodies[0].addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-c]");
    if (!row || getSelection().toString()) return;
    if (row.nextElementSibling?.classList.contains("detail")) close(row); else open(row);
  });
  table.addEventListener("sorting", () => rows.forEach(close));
  page.sortable(table, key);

  const form = page.find("#filters");
  const shown = page.find("#shown");
  const doubtful = new Set(page.data.doubtful);
  const text = (cell) => page.data.cells[cell].filter((value) => typeof value === "string").join(" ").toLowerCase() + ` ${page.size(cell)}`;
  const filter = () => {
    const words = page.find("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = page.all("select[data-column]", form).filter((select) => select.value);
    const only = page.find("#doubtful").checked;
    let count = 0;
    for (const row of rows) {
      const cell = Number(row.dataset.c);
      const of = (name) => name === "pass" ? page.pass(cell) : name === "file" ? page.data.files[page.value(cell, name)].name : String(page.value(cell, name));
      const found = wanted.every((select) => of(select.dataset.column) === select.value) && (!only || doubtful.has(cell)) && (!words.length || words.every((word) => text(cell).includes(word)));
      row.hidden = !found;
      if (!found) close(row);
      count += found;
    }
    shown.textContent = count === rows.length ? `${count} cells` : `${count} of ${rows.length} cells`;
  };
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));

  /** Show a cell, also if a filter hides it. */
  const reveal = (cell) => {
    const row = byCell.get(cell);
    if (!row) return;
    if (row.hidden) { form.reset(); rows.forEach((other) => { other.hidden = false; }); }
    open(row);
    row.scrollIntoView({ block: "center" });
    page.find("button.open", row).focus({ preventScroll: true });
  };
  return { reveal };
})();
