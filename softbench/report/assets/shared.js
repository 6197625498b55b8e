/** What every page of softbench makes alike: elements, numbers, and the choice of a light or a dark page. */

/** An element with properties and children; a child that is a text is set as text, never as markup. */
function el(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.flat().filter((child) => child !== null && child !== ""));
  return made;
}
function svg(tag, attributes, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const digits = (value, most = 3) => (value === null ? "" : value === Infinity ? "inf" : String(+value.toPrecision(most)));
const micros = (us) => (us < 1e3 ? `${digits(us)} us` : us < 1e6 ? `${digits(us / 1e3)} ms` : `${digits(us / 1e6)} s`);
const gbps = (value) => (value >= 100 ? String(Math.round(value)) : digits(value));
/** True if the page is dark: as the button says, else as the system does. */
const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
/** Gives the button its name and action; `changed` is called when the page became light or dark. */
function themeButton(button, changed) {
  const name = () => { button.textContent = isDark() ? "Light page" : "Dark page"; };
  const follow = () => { name(); changed(); };
  button.hidden = false;
  name();
  button.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; follow(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
}
