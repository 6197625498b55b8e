// Read the data, then show the part that the address names.
page.find("main").classList.add("unread");
unpack(page.find("#data").textContent).then((data) => {
  page.data = data;
  page.find("#data").remove();
  addEventListener("hashchange", page.tabs.follow);
  page.tabs.follow();
  document.documentElement.dataset.ready = "true";
});
