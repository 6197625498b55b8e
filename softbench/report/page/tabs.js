// The parts of the report as tabs, the theme, and what a printer gets.
page.tabs = (() => {
  const links = page.all("#tabs a");
  const sections = page.all("main > section");
  const names = sections.map((section) => section.id);
  let now = names[0];
  page.find("#tabs").setAttribute("role", "tablist");
  page.find("#tabs").setAttribute("aria-label", "Parts of the report");
  page.find("main").classList.add("tabbed");
  links.forEach((link, i) => {
    sections[i].id = `part-${names[i]}`;  // so that the browser does not scroll to it
    link.setAttribute("role", "tab");
    link.id = `tab-${names[i]}`;
    link.setAttribute("aria-controls", sections[i].id);
    sections[i].setAttribute("role", "tabpanel");
    sections[i].setAttribute("aria-labelledby", link.id);
  });

  const show = (id) => {
    now = id;
    links.forEach((link, i) => {
      const chosen = names[i] === id;
      link.setAttribute("aria-selected", chosen);
      link.tabIndex = chosen ? 0 : -1;
      sections[i].hidden = !chosen;
    });
    page.first[id]?.();
    delete page.first[id];
    page.tip.hide();
  };

  const follow = () => {
    const wanted = location.hash.slice(1);
    const cell = /^cell-(\d+)$/.exec(wanted);
    if (wanted === "main" && !page.find("main").classList.contains("unread")) return;  // the link to the content
    if (cell && Number(cell[1]) < page.count()) {
      if (page.find("main").classList.contains("unread")) show(names.includes("cells") ? "cells" : names[0]);
      page.cells.list()?.go(Number(cell[1]), false);
      page.panel.open(Number(cell[1]));
    } else {
      page.panel.close();
      show(names.includes(wanted) ? wanted : names[0]);
      scrollTo(0, 0);
    }
    page.find("main").classList.remove("unread");
  };
  page.find("#tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = links.indexOf(document.activeElement);
    const next = event.key === "Home" ? 0 : event.key === "End" ? links.length - 1 : step ? (at + step + links.length) % links.length : -1;
    if (next < 0) return;
    event.preventDefault();
    links[next].focus();
    location.hash = links[next].hash;
  });

  themeButton(page.find("#theme"), page.redraw);

  let undo = [];
  addEventListener("beforeprint", () => {
    page.printing = true;
    sections.forEach((section) => { section.hidden = false; });
    for (const id of names) {
      page.first[id]?.();
      delete page.first[id];
    }
    undo = page.printers.map((printer) => printer());
    page.redraw();
  });
  addEventListener("afterprint", () => {
    page.printing = false;
    undo.forEach((one) => one?.());
    show(now);
    page.redraw();
  });
  return { follow, current: () => now };
})();
