/** The data of `softbench.report.assets.embedded`: decompresses the text, and turns each column into an array of its values. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const json = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
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
