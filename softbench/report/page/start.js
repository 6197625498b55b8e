page.all("table.sortable").forEach((table) => page.sortable(table, (row, column) => {
  const text = row.cells[column].textContent;
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}));
page.all(".script").forEach((help) => { help.hidden = false; });
addEventListener("hashchange", page.tabs.follow);
page.tabs.follow();
