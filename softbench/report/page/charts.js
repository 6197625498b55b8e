// Figures: choose one, hide lines, and read the cell under a point by mouse or keyboard.
page.tip = (() => {
  const tip = page.find("#tip");
  const hide = () => { tip.hidden = true; };
  const show = (text, box) => {
    tip.textContent = text;
    tip.hidden = false;
    const own = tip.getBoundingClientRect();
    const x = Math.min(Math.max(4, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 4);
    const over = box.top - own.height - 10;
    tip.style.left = `${x}px`;
    tip.style.top = `${over > 4 ? over : Math.min(box.bottom + 10, innerHeight - own.height - 4)}px`;
  };
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  return { show, hide };
})();

/** The Tab key stops at the point that had the focus last, or else at the first that is shown. */
page.stop = (points) => {
  const visible = points.filter((point) => !point.closest(".off"));
  const chosen = visible.find((point) => point.getAttribute("tabindex") === "0") ?? visible[0];
  points.forEach((point) => point.setAttribute("tabindex", point === chosen ? "0" : "-1"));
};

/** Points of a figure or cells of a heat map: one stop of the Tab key, arrow keys between them, and the same text for all readers. */
page.reachable = (root, points) => {
  page.stop(points);
  points.forEach((point) => {
    point.setAttribute("aria-label", page.describe(Number(point.dataset.c)));
    if (root.tagName === "FIGURE") point.setAttribute("role", "img");
  });
  const of = (event) => points.find((point) => point === event.target.closest?.("[data-c]"));
  const reach = (point) => {
    points.forEach((other) => other.setAttribute("tabindex", other === point ? "0" : "-1"));
    point.focus({ preventScroll: true });
    point.scrollIntoView({ block: "nearest", inline: "nearest" });
  };
  const open = (point) => { location.hash = `cell-${point.dataset.c}`; };
  root.addEventListener("keydown", (event) => {
    const point = of(event);
    if (!point) return;
    const visible = points.filter((other) => !other.closest(".off"));
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") open(point);
    if (!step) return;
    event.preventDefault();
    reach(visible[(visible.indexOf(point) + step + visible.length) % visible.length]);
  });
  root.addEventListener("click", (event) => { if (of(event)) open(of(event)); });
  const over = (event) => { if (of(event)) page.tip.show(page.describe(Number(of(event).dataset.c)), of(event).getBoundingClientRect()); };
  root.addEventListener("mouseover", over);
  root.addEventListener("focusin", over);
  root.addEventListener("mouseout", page.tip.hide);
  root.addEventListener("focusout", page.tip.hide);
};

(() => {
  const figures = page.all("figure.chart");
  const prepared = new Set();
  const prepare = (figure) => {
    if (!prepared.has(figure)) page.reachable(figure, page.all("svg [data-c]", figure));
    prepared.add(figure);
  };
  const controls = page.find("#curve-controls");
  if (controls) {
    const choose = () => {
      for (const figure of page.all("figure.chart", controls.parentElement)) {
        figure.hidden = page.all("select", controls).some((select) => figure.dataset[select.name] !== select.value);
        if (!figure.hidden && !page.first.curves) prepare(figure);
        figure.classList.toggle("other", figure.dataset.quantity !== page.find("[name=quantity]", controls).value);  // not printed
      }
      page.tip.hide();
    };
    controls.hidden = false;
    controls.addEventListener("input", choose);
    controls.addEventListener("submit", (event) => event.preventDefault());
    page.first.curves = () => figures.filter((figure) => !figure.hidden && controls.parentElement.contains(figure)).forEach(prepare);
    choose();
  }
  const press = (name, on) => {
    for (const figure of figures) {
      for (const button of page.all(".legend button", figure)) {
        if (button.dataset.name !== name) continue;
        button.setAttribute("aria-pressed", on);
        page.all(`.k${button.dataset.k}`, figure).forEach((part) => part.classList.toggle("off", !on));
      }
      if (prepared.has(figure)) page.stop(page.all("svg [data-c]", figure));
    }
  };
  for (const figure of figures) {
    for (const button of page.all(".legend button", figure)) {
      button.addEventListener("click", () => press(button.dataset.name, button.getAttribute("aria-pressed") !== "true"));
    }
  }
})();

// The heat map: the fastest backend of each case, or its speed-up over a chosen backend.
(() => {
  const select = page.find("#heat-show");
  const cells = page.all(".heat td[data-c]");
  const first = new Map(cells.map((place) => [place, [place.textContent, place.className]]));
  const name = (cell, backend) => [page.value(cell, "file"), backend, page.pass(cell), page.value(cell, "dtype"), page.size(cell)].join(" ");
  const byName = new Map(page.data.cells.map((_, cell) => [name(cell, page.value(cell, "backend")), cell]));
  const limits = [0.8, 0.97, 1.03, 1.25, 2];
  const show = () => {
    for (const place of cells) {
      const cell = Number(place.dataset.c);
      const other = byName.get(name(cell, select.value));
      [place.textContent, place.className] = first.get(place);
      if (!select.value) continue;
      // Over the reference backend the CSV has the speed-up of paired rounds.
      const us = other === undefined ? null : page.value(other, "median_us");
      const times = page.value(cell, "relative_to") === select.value ? page.value(cell, "speedup") : us && us / page.value(cell, "median_us");
      place.textContent = times ? `${page.ratio(times)}x ${page.value(cell, "backend")}` : "no result";
      place.className = times ? `r${limits.filter((limit) => times >= limit).length}` : "empty";
    }
  };
  page.find("#heat-controls").hidden = false;
  page.find("#heat-controls").addEventListener("submit", (event) => event.preventDefault());
  select.addEventListener("input", show);
  cells.forEach((place) => place.removeAttribute("title"));
  page.first.heat = () => page.all("table.heat").forEach((table) => page.reachable(table, page.all("td[data-c]", table)));
})();
