// An empty picture with its axes, as wide as its place: drawn anew on every change of size, so text keeps its size.
let paperWidth = null; // while printing
let titles = 0;

// Names of ticks, with as many digits as it takes to tell them apart.
function distinct(values, format) {
  let names = [];
  for (let digits = 4; digits < 16 && new Set(names).size < values.length; digits++) names = values.map((value) => format(value, digits));
  return names;
}

// On paper a figure is lower than on a screen, so that two fit on a page.
function axes(place, { x, y, xName, yName, title, height, paper = 215, yFormat = num, xFormat = whole }) {
  const width = Math.max(240, Math.floor(paperWidth ?? place.clientWidth));
  const tall = Math.min(height(width), paperWidth ? paper : Infinity);
  const yTicks = ticks(y[0], y[1], Math.max(3, Math.round((tall - 60) / 50)));
  const names = distinct(yTicks, yFormat);
  const left = 12 + 7 * Math.max(...names.map((name) => name.length), 2);
  const inner = { left, right: width - 14, top: 24, bottom: tall - 36 };
  const xTicks = ticks(x[0], x[1], Math.max(2, Math.round((inner.right - left) / 95)));
  const id = `title-${++titles}`;
  const svg = piece("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-labelledby": id });
  piece("title", { id }, svg, title);
  const toX = (value) => left + ((value - x[0]) / (x[1] - x[0])) * (inner.right - left);
  const toY = (value) => inner.bottom - ((value - y[0]) / (y[1] - y[0])) * (inner.bottom - inner.top);
  yTicks.forEach((value, i) => {
    piece("path", { class: "grid", d: `M${left} ${at(toY(value))}H${inner.right}` }, svg);
    piece("text", { x: left - 6, y: at(toY(value) + 4), "text-anchor": "end" }, svg, names[i]);
  });
  for (const value of xTicks) {
    const here = toX(value), name = xFormat(value);
    // A name at the right end must not stick out.
    const anchor = here + 3.5 * name.length > width - 2 ? "end" : "middle";
    piece("path", { class: "axis", d: `M${at(here)} ${inner.bottom}v5` }, svg);
    piece("text", { x: at(anchor === "end" ? width - 2 : here), y: inner.bottom + 18, "text-anchor": anchor }, svg, name);
  }
  piece("path", { class: "axis", d: `M${left} ${inner.bottom}H${inner.right}` }, svg);
  piece("text", { class: "strong", x: 0, y: 12 }, svg, yName);
  piece("text", { class: "strong", x: inner.right, y: tall - 3, "text-anchor": "end" }, svg, xName);
  // What lies outside of the range shown is cut off.
  const clip = `clip-${titles}`;
  piece("path", { d: boxPath(left - 6, inner.top - 6, inner.right + 6, inner.bottom + 6) }, piece("clipPath", { id: clip }, svg));
  const body = piece("g", { "clip-path": `url(#${clip})` }, svg);
  place.replaceChildren(svg);
  return { svg, body, inner, toX, toY, width };
}

// A sentence where a picture would be.
function instead(place, text) {
  const said = document.createElement("p");
  said.className = "note";
  said.textContent = text;
  place.replaceChildren(said);
}
