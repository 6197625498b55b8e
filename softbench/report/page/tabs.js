// The parts of the report as tabs. Without a script they follow each other.
page.tabs = (() => {
  const links = page.all("#tabs a");
  const sections = page.all("main > section");
  const names = sections.map((section) => section.id);
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
    page.first[id]?.();
    delete page.first[id];
    links.forEach((link, i) => {
      const chosen = names[i] === id;
      link.setAttribute("aria-selected", chosen);
      link.tabIndex = chosen ? 0 : -1;
      sections[i].hidden = !chosen;
      if (chosen) link.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
    page.tip.hide();
  };

  const follow = () => {
    const wanted = location.hash.slice(1);
    const cell = /^cell-(\d+)$/.exec(wanted);
    if (wanted === "main" && sections.some((section) => !section.hidden) && sections.some((section) => section.hidden)) return;  // the link to the content
    if (cell) {
      show("cells");
      page.cells.reveal(Number(cell[1]));
    } else {
      show(names.includes(wanted) ? wanted : names[0]);
      scrollTo(0, 0);
    }
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
  const theme = page.find("#theme");
  const dark = () => matchMedia("(prefers-color-scheme: dark)").matches;
  let now = dark() ? "dark" : "light";
  const name = () => { theme.textContent = now === "dark" ? "Light page" : "Dark page"; };
  theme.hidden = false;
  name();
  theme.addEventListener("click", () => {
    now = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = now;
    name();
  });
  return { follow };
})();
