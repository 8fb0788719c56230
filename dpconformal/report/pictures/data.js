// What the file holds, decoded. The encoding is described in dpconformal/report/encode.py.
const DATA = JSON.parse(document.getElementById("data").textContent);
const LAST = 65532;

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Rows of numbers, each a function of its place.
function rowsOf(packed) {
  const bytes = bytesOf(packed.codes);
  const width = bytes.length / 2 / packed.low.length;
  return (row) => {
    const low = packed.low[row], step = packed.high[row] / LAST - low / LAST;
    return Array.from({ length: width }, (_, i) => {
      const at = 2 * (row * width + i), code = bytes[at] + 256 * bytes[at + 1];
      return code <= LAST ? low + code * step : [-Infinity, Infinity, NaN][code - LAST - 1];
    });
  };
}

function countsOf(packed, rows) {
  const bytes = bytesOf(packed.codes), size = packed.bytes;
  const width = bytes.length / size / rows;
  return (row) => Array.from({ length: width }, (_, i) => {
    let count = 0;
    for (let k = size - 1; k >= 0; k--) count = 256 * count + bytes[size * (row * width + i) + k];
    return count;
  });
}

// JSON has no word for infinity, and null for no number.
const real = (value) => (value === null ? NaN : Number(value === "inf" ? Infinity : value === "-inf" ? -Infinity : value));

const sum = (values) => values.reduce((total, value) => total + value, 0);

// Series are decoded when they are first looked at.
const decoded = new Map();
function seriesAt(index) {
  if (!decoded.has(index)) {
    const raw = DATA.series[index];
    const counts = countsOf(raw.covered, DATA.levels.length);
    decoded.set(index, {
      ...raw,
      thresholds: rowsOf(raw.thresholds),
      covered: counts,
      shares: DATA.levels.map((_, k) => sum(counts(k)) / raw.rounds),
      interval: [0, 1].map(rowsOf(raw.interval)),
      chance: [0, 1].map(rowsOf(raw.chance)),
      scores: rowsOf(raw.dots)(0),
      following: raw.following.map(real),
      regret: raw.regret.map((row) => row.map(real)),
      bound: raw.bound.map((row) => row.map(real)),
    });
  }
  return decoded.get(index);
}

// The place of the level nearest to a number.
function nearest(levels, wanted) {
  let best = 0;
  levels.forEach((level, k) => { if (Math.abs(level - wanted) < Math.abs(levels[best] - wanted)) best = k; });
  return best;
}

// Numbers as people write them.
const minus = (text) => text.replace("-", "\u2212");
const whole = (value) => value.toLocaleString("en-US");
const percent = (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)}\u00a0%` : "\u2013");
function num(value, digits = 4) {
  if (Number.isNaN(value)) return "\u2013";
  if (!Number.isFinite(value)) return value > 0 ? "\u221e" : "\u2212\u221e";
  const size = Math.abs(value);
  if (size && (size >= 1e6 || size < 1e-4)) return minus(value.toExponential(2));
  const short = Number(value.toPrecision(digits));
  return minus(size >= 1e4 ? whole(short) : String(short));
}
