// The text beside the mouse or the focus: of a point, or what a term means. Escape hides it.
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
    tip.style.top = `${over > 4 ? over : Math.max(4, Math.min(box.bottom + 10, innerHeight - own.height - 4))}px`;
  };
  addEventListener("scroll", hide, { passive: true, capture: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  const term = (event) => event.target.closest?.("[data-term]");
  const meaning = (event) => {
    const found = term(event);
    if (!found || !page.data) return;
    const name = found.dataset.term;
    found.setAttribute("aria-describedby", "tip");
    if (page.data.terms[name]) show(`${name}: ${page.data.terms[name]}`, found.getBoundingClientRect());
  };
  addEventListener("mouseover", meaning);
  addEventListener("focusin", meaning);
  for (const end of ["mouseout", "focusout"]) addEventListener(end, (event) => { if (term(event)) hide(); });
  return { show, hide };
})();

/** A word with its meaning as a tooltip, which the Tab key reaches. */
page.term = (name, text = name) => page.make("span", text, { class: "term", tabindex: "0", "data-term": name });
