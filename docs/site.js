// The search takes "--wait" for "not wait", so an option is searched without its dashes.
document.addEventListener("input", event => {
  if (event.target.matches(".md-search__input")) event.target.value = event.target.value.replace(/(^|\s)-+/g, "$1");
}, true);
