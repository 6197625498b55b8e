/** What `compressed` of `softbench.report.assets.embedded` made of a text. */
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** The data of `embedded`: decompresses the text, and turns each column into an array of its values. */
async function unpack(text) {
  const json = await (await inflate(text)).json();
  const columns = (value) => {
    if (value === null || typeof value !== "object") return value;
    if (value.words && value.of) return value.of.map((i) => value.words[i]);
    if (value.numbers && value.infinite) {
      value.infinite.forEach((i) => { value.numbers[i] = Infinity; });
      return value.numbers;
    }
    for (const [name, inner] of Object.entries(value)) {
      if (inner !== null && typeof inner === "object") value[name] = columns(inner);
    }
    return value;
  };
  return columns(json);
}
