// The page has its style and its script compressed. The policy names the hash of each, so that nothing else can take their place.
(async () => {
  try {
    for (const kind of ["style", "script"]) {
      const made = document.createElement(kind);
      made.textContent = await (await inflate(document.getElementById(`packed-${kind}`).textContent)).text();
      document.head.append(made);
    }
  } catch (error) {
    const note = document.getElementById("unread");
    note.textContent = `This browser cannot read the page (${error}). A browser of 2024 or later can.`;
    note.hidden = false;
  }
})();
