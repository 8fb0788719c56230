// Pieces of SVG. Text is only ever set as text.
const SVG = "http://www.w3.org/2000/svg";

function piece(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

const at = (value) => Math.round(10 * value) / 10;

// A line through points [x, y] in pixels; null lifts the pen.
function linePath(points) {
  let path = "", down = false;
  for (const point of points) {
    if (point) path += `${down ? "L" : "M"}${at(point[0])} ${at(point[1])}`;
    down = point !== null;
  }
  return path;
}

const dotPath = (points) => points.map(([x, y]) => `M${at(x)} ${at(y)}h0`).join("");

// The area between two lines over the same x.
function areaPath(x, low, high) {
  const there = x.map((value, i) => [value, low[i]]);
  const back = x.map((value, i) => [value, high[i]]).reverse();
  return `${linePath([...there, ...back])}Z`;
}

const boxPath = (x0, y0, x1, y1) => `M${at(x0)} ${at(y0)}H${at(x1)}V${at(y1)}H${at(x0)}Z`;

// Round numbers between two ends, about as many as wanted.
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(wanted, 1);
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [[1.5, 1], [3.5, 2], [7.5, 5], [10, 10]].find(([most]) => rough <= most * power * (1 + 1e-9))[1];
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// A range with some room; of a single number, around it.
function roomy(low, high, share = 0.05) {
  if (!(high > low)) return [low - (Math.abs(low) / 10 || 0.5), low + (Math.abs(low) / 10 || 0.5)];
  const room = share * (high - low);
  return [low - room, high + room];
}

const extent = (values) => {
  const finite = values.filter(Number.isFinite);
  return finite.length ? [finite.reduce((a, b) => Math.min(a, b)), finite.reduce((a, b) => Math.max(a, b))] : null;
};
